"""Detection of changes by a step that cannot be undone: of iterators, queues and locks, and of files."""

from __future__ import annotations

import collections
import gc
import operator
import queue
import sys
import types
from typing import TYPE_CHECKING, Any

from ipygpumem.core.introspection import attempt
from ipygpumem.core.units import many
from ipygpumem.features.fit.references import queued_items

if TYPE_CHECKING:
    from typing_extensions import Self

_DEPTH = 3


def position(iterator: Any, depth: int = _DEPTH) -> tuple[Any, ...]:
    """Return a tuple that differs, in most cases, after an iterator has advanced, or a queue or lock has changed."""
    if issubclass(type(iterator), queue.Queue | queue.SimpleQueue):
        return iterator.qsize(), *map(id, queued_items(iterator))
    frame, yielded = attempt(lambda: iterator.gi_frame), attempt(lambda: iterator._num_yielded)
    parts: list[Any] = [yielded if type(yielded) is int else None, attempt(lambda: operator.length_hint(iterator, -1))]
    parts += [getattr(frame, "f_lasti", None), attempt(lambda: repr(iterator))]
    for referent in gc.get_referents(iterator) if depth else ():
        parts.append(id(referent))
        if hasattr(type(referent), "__next__"):
            parts.append(position(referent, depth - 1))
    return tuple(parts)


class WrittenFiles:
    """Context manager that counts writes to files through Python's file objects.

    It uses ``sys.setprofile``. If another profiler is active, no writes are counted.

    Attributes:
        writes: Number of writes by file name.
    """

    def __init__(self) -> None:
        self.writes: collections.Counter[str] = collections.Counter()
        self._active = False

    def __enter__(self) -> Self:
        self._active = sys.getprofile() is None
        if self._active:
            sys.setprofile(self._notify)
        return self

    def __exit__(self, *_: object) -> None:
        if self._active and sys.getprofile() == self._notify:
            sys.setprofile(None)

    def _notify(self, _: types.FrameType, event: str, function: Any) -> None:
        if event == "c_call" and getattr(function, "__name__", "") in {"write", "writelines"}:
            name = getattr(getattr(function, "__self__", None), "name", None)
            if isinstance(name, str) and not name.startswith("<"):
                self.writes[name] += 1

    def notes(self) -> list[str]:
        """Return a sentence for each file to which the code wrote."""
        return [
            f"The step wrote to the file {name} ({many(count, 'write')}), which is not undone."
            for name, count in self.writes.items()
        ]
