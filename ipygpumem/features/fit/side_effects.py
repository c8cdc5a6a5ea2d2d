"""Restoration of iterators, and detection of changes to iterators, queues, locks and files that cannot be undone."""

from __future__ import annotations

import collections
import functools
import gc
import itertools
import operator
import queue
import sys
import types
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.interrupts import DeferredInterrupts
from ipygpumem.core.introspection import attempt
from ipygpumem.core.units import many
from ipygpumem.features.fit.references import LOCKS, queued_items

if TYPE_CHECKING:
    from typing_extensions import Self

_DEPTH = 3
_TEE: type = type(itertools.tee(())[0])
_CALLING = type(iter(int, 1))
_SEQUENCES: tuple[Any, ...] = ([], (), range(0), range(1 << 80), "", "\u20ac", b"", bytearray())
_INDEXED = tuple(type(iter(values)) for values in _SEQUENCES)
"""Types of iterators whose state is the index of their next item."""


def position(iterator: Any, depth: int = _DEPTH) -> tuple[Any, ...]:
    """Return a tuple that usually differs after an iterator has advanced, or a queue or lock has changed."""
    if issubclass(type(iterator), queue.Queue | queue.SimpleQueue):
        return iterator.qsize(), *map(id, queued_items(iterator))
    frame, yielded = attempt(lambda: iterator.gi_frame), attempt(lambda: iterator._num_yielded)
    parts: list[Any] = [yielded if type(yielded) is int else None, attempt(lambda: operator.length_hint(iterator, -1))]
    parts += [getattr(frame, "f_lasti", None), attempt(lambda: repr(iterator))]
    for referent in gc.get_referents(iterator) if depth else ():
        parts += [id(referent), len(referent) if type(iterator) is itertools.cycle and type(referent) is list else None]
        if hasattr(type(referent), "__next__"):
            parts.append(position(referent, depth - 1))
    return tuple(parts)


class SavedIterators:
    """The states of iterators, queues and locks. Only those of some iterators can be restored.

    Args:
        iterators: Names and objects of the iterators, queues and locks.
        owners: By ID of an iterator, another iterator that advances it. It is restored only with that iterator.
    """

    def __init__(self, iterators: Iterable[tuple[str, Any]], owners: Mapping[int, Any]) -> None:
        self._owners = owners
        self._saved = [
            (name, iterator, position(iterator), None if id(iterator) in owners else _restoration(iterator))
            for name, iterator in iterators
        ]

    def holders(self) -> Iterator[Any]:
        """Yield the containers of this object that refer to objects of the step."""
        yield from self._saved
        yield from (item for *_, restore in self._saved if restore is not None for item in gc.get_referents(restore))

    def check_fake_items(self) -> None:
        """Raise `OptionError` if an ``itertools.cycle`` or ``itertools.tee`` would keep fake tensors after the runs.

        These iterators store the items of another iterator. They cannot be restored if that iterator cannot.
        """
        for name, iterator, _, _ in self._saved:
            source = None
            if type(iterator) is itertools.cycle:
                source = _cycle_parts(iterator)[0]
            elif type(iterator) is _TEE:
                parts = [part for data in gc.get_referents(iterator) for part in gc.get_referents(data)]
                source = next((part for part in parts if hasattr(type(part), "__next__")), None)
            if source is not None and _restoration(source) is None:
                kind = "itertools.cycle" if type(iterator) is itertools.cycle else "itertools.tee"
                raise OptionError(
                    f"{name or 'an iterator'} is an {kind}, which would store tensors without data: create the batch "
                    "in the step, for example with torch.randn, or run without --dry"
                )

    def restore(self, advanced: Collection[int] = ()) -> list[str]:
        """Restore the iterators. Return a sentence for each changed object that could not be restored.

        ``advanced`` contains the IDs of iterators that are known to have advanced.
        """
        restored = {id(iterator) for _, iterator, _, restore in self._saved if restore is not None and restore()}
        changed = [
            (name, iterator)
            for name, iterator, saved_position, _ in self._saved
            if id(iterator) in advanced or position(iterator) != saved_position
            if restored.isdisjoint(self._with_owners(iterator))
        ]
        sentences = [f"The step {_described_change(*item)}, which is not undone." for item in changed]
        return list(dict.fromkeys(sentences))

    def _with_owners(self, iterator: Any) -> Iterator[int]:
        while iterator is not None:
            yield id(iterator)
            iterator = self._owners.get(id(iterator))


def _restoration(iterator: Any) -> Callable[[], bool] | None:
    """Return a function that restores the current state of an iterator, or None if the state cannot be restored.

    The function returns whether it succeeded.
    """
    kind = type(iterator)
    if kind is itertools.cycle:
        return _cycle_restoration(iterator)
    state = _index(iterator) if kind in _INDEXED else _tee_state(iterator) if kind is _TEE else None
    read = _index if kind in _INDEXED else _tee_state
    return None if state is None else functools.partial(_set_state, iterator, state, read)


def _set_state(iterator: Any, state: Any, read: Callable[[Any], Any]) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python 3.12 and later versions deprecate the state of iterators in itertools
        attempt(lambda: iterator.__setstate__(state))  # no effect on an exhausted iterator
    return bool(read(iterator) == state)


def _index(iterator: Any) -> int | None:
    state = iterator.__reduce__()[2:]
    return state[0] if state and type(state[0]) is int else None


def _tee_state(iterator: Any) -> Any:
    """Return the state of an iterator that `itertools.tee` has created, or None in Python 3.14 and later versions."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return attempt(lambda: iterator.__reduce__()[2])


def _cycle_restoration(cycle: Any) -> Callable[[], bool]:
    """Return a function that restores an ``itertools.cycle`` if its items can be read again or have all been read."""
    source, read_items = _cycle_parts(cycle)
    remaining = None if source is None else _restoration(source)
    items = list(read_items) if source is not None else _next_items(cycle, len(read_items))
    return functools.partial(_restore_cycle, cycle, items, source is None, remaining)


def _restore_cycle(cycle: Any, items: list[Any], repeats: bool, restore_source: Callable[[], bool] | None) -> bool:
    source, read_items = _cycle_parts(cycle)
    if source is not None:
        # otherwise, the cycle would never return the items that its source does not return again
        restored = restore_source is not None and restore_source()
        read_items[:] = items if restored else read_items
        return restored
    expected = items if repeats else [*read_items[len(items) :], *items]
    current = _next_items(cycle, len(expected))
    for shift in range(len(current)):
        if current[shift] is expected[0] and all(map(operator.is_, current[shift:] + current[:shift], expected)):
            _next_items(cycle, shift)
            return True
    return not current


def _cycle_parts(cycle: Any) -> tuple[Any, list[Any]]:
    """Return the iterator that a cycle reads, or None if it is exhausted, and the list of the items that were read."""
    parts = [part for part in gc.get_referents(cycle) if not isinstance(part, type)]
    return next((part for part in parts if type(part) is not list), None), parts[-1]


def _next_items(iterator: Any, count: int) -> list[Any]:
    with DeferredInterrupts():
        return list(itertools.islice(iterator, count))


def _described_change(name: str, changed: Any) -> str:
    """Return a description of a change, such as ``advanced the iterator batches`` or ``changed a queue``."""
    kind = "queue" if issubclass(type(changed), queue.Queue | queue.SimpleQueue) else "iterator"
    kind = "lock" if issubclass(type(changed), LOCKS) else kind
    verb = {"lock": "acquired or released", "queue": "changed"}.get(kind, "advanced")
    article = "the" if name else "an" if kind == "iterator" else "a"
    return f"{verb} {article} {kind} {name}".rstrip()


class SideEffects:
    """Context manager that counts writes to files through Python's file objects, and detects generators that run.

    It uses ``sys.setprofile``. If another profiler is active, nothing is detected.

    Attributes:
        writes: Number of writes by file name.
        advanced: IDs of generators that have run, and of iterators whose function was called.
    """

    def __init__(self) -> None:
        self.writes: collections.Counter[str] = collections.Counter()
        self.advanced: set[int] = set()
        self._iterators: dict[Any, int] = {}
        self._active = False

    def watch(self, iterators: Iterable[tuple[str, Any]]) -> None:
        """Detect when iterators that are generators, or results of ``iter(function, end)``, advance."""
        for _, iterator in iterators:
            frame = attempt(functools.partial(getattr, iterator, "gi_frame"))
            if frame is not None:
                self._iterators[frame] = id(iterator)
            elif type(iterator) is _CALLING:
                codes = [getattr(part, "__code__", None) for part in gc.get_referents(iterator)]
                self._iterators |= {code: id(iterator) for code in codes if code is not None}

    def __enter__(self) -> Self:
        self._active = sys.getprofile() is None
        if self._active:
            sys.setprofile(self._notify)
        return self

    def __exit__(self, *_: object) -> None:
        if self._active and sys.getprofile() == self._notify:
            sys.setprofile(None)
        self._iterators.clear()

    def _notify(self, frame: types.FrameType, event: str, function: Any) -> None:
        if event == "call":
            for key in (frame, frame.f_code):
                if key in self._iterators:
                    self.advanced.add(self._iterators[key])
        elif event == "c_call" and getattr(function, "__name__", "") in {"write", "writelines"}:
            name = getattr(getattr(function, "__self__", None), "name", None)
            if isinstance(name, str) and not name.startswith("<"):
                self.writes[name] += 1

    def notes(self) -> list[str]:
        """Return a sentence for each file to which the code wrote in the first run."""
        return [
            f"The step wrote to the file {name} ({many(count, 'write')} in the first run), which is not undone."
            for name, count in self.writes.items()
        ]
