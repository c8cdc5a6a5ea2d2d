"""All objects that Python's garbage collector tracks, and the references between them.

`gc.get_referents` runs an object's ``tp_traverse`` in C and no code of the user. Every object is asked once, in chunks;
the answers become two columns, child and parent, sorted by child, so that finding an object's referrers is a binary
search.
"""

from __future__ import annotations

import bisect
import gc
import itertools
import sys
import time
import types
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.interpreter import frame_locals, running_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]

__all__ = ["Heap"]

_CHUNK = 8192
_MAX_SINGLE_LOOKUPS = 32
"""Number of ids up to which single lookups are faster than NumPy."""
_BITS = 24
_MASK = (1 << _BITS) - 1


class Heap:
    """The tracked objects at one instant, kept alive until `release`. The caller pauses the collector meanwhile.

    Reading stops at the deadline, in seconds of `time.perf_counter`.

    Attributes:
        objects: The objects.
        complete: Whether everything was read before the deadline.
    """

    def __init__(self, deadline: float) -> None:
        self._deadline = deadline
        self.complete = True
        self.objects: list[Any] = gc.get_objects()
        _remove_asyncio(self.objects)
        if gc.get_freeze_count():
            self._find_frozen()
        if self._out_of_time():
            self.objects.clear()
        count = len(self.objects)
        self._ids: Ids = np.fromiter(map(id, self.objects), np.int64, count)
        self._type_ids: Ids = np.fromiter(map(id, map(type, self.objects)), np.int64, count)
        self._children: Ids = np.empty(0, np.int64)
        self._parents: NDArray[np.int32] = np.empty(0, np.int32)
        self._children_view = self._children.data

    def _out_of_time(self) -> bool:
        if time.perf_counter() > self._deadline:
            self.complete = False
        return not self.complete

    def _find_frozen(self) -> None:
        """Add what ``gc.freeze`` hides from the collector's list, as far as it is reachable."""
        objects = self.objects
        seeds = [sys.modules, *(value for _, frame in running_frames() for _, value in frame_locals(frame))]
        seen = set(map(id, objects))
        seen.update(map(id, (objects, seeds)))  # our own lists refer to everything
        self._add(seeds, seen)
        start = 0
        while start < len(objects) and not self._out_of_time():  # the list grows meanwhile
            end = min(start + _CHUNK, len(objects))
            self._add(gc.get_referents(*objects[start:end]), seen)
            start = end

    def _add(self, candidates: list[Any], seen: set[int]) -> None:
        new = {key: obj for key, obj in zip(map(id, candidates), candidates, strict=True) if key not in seen}
        tracked = list(itertools.compress(new.values(), map(gc.is_tracked, new.values())))
        seen.update(map(id, tracked))
        _remove_asyncio(tracked)
        self.objects += tracked

    def release(self) -> None:
        """Drop the objects: the list contains this heap, and would keep everything until the next collection."""
        self.objects.clear()

    def by_role(self, role: Callable[[type], str | None]) -> dict[str, list[Any]]:
        """The objects whose class has a role, by role."""
        objects = self.objects
        first_of_type = dict(zip(self._type_ids.tolist(), range(len(objects)), strict=True))
        roles = {type_id: role(type(objects[index])) for type_id, index in first_of_type.items()}
        type_ids = [type_id for type_id, name in roles.items() if name is not None]
        by_role: dict[str, list[Any]] = {}
        for index in np.flatnonzero(_maybe_among(self._type_ids, _bitmap(type_ids))):
            name = roles.get(int(self._type_ids[index]))
            if name is not None:
                by_role.setdefault(name, []).append(objects[index])
        return by_role

    def connect(self) -> None:
        """Read the references of all objects. At the deadline none of them is kept: partial ones give wrong names."""
        id_bitmap = _bitmap(self._ids)
        objects = self.objects
        children, parents = [], []
        for start in range(0, len(objects), _CHUNK):
            if self._out_of_time():
                return
            referents = list(map(gc.get_referents, objects[start : start + _CHUNK]))
            lengths = np.fromiter(map(len, referents), np.int64, len(referents))
            ids = np.fromiter(map(id, itertools.chain.from_iterable(referents)), np.int64, int(lengths.sum()))
            del referents
            tracked = np.flatnonzero(_maybe_among(ids, id_bitmap))
            children.append(ids[tracked])
            parents.append(np.repeat(np.arange(start, start + len(lengths), dtype=np.int32), lengths)[tracked])
        if children and not self._out_of_time():
            column = np.concatenate(children)
            order = np.argsort(column, kind="stable")
            self._children, self._parents = column[order], np.concatenate(parents)[order]
            self._children_view = self._children.data

    def parents(self, ids: Collection[int]) -> list[list[Any]]:
        """For each id the objects that refer to it, one for each reference."""
        if len(ids) < _MAX_SINGLE_LOOKUPS:
            return [self._parents_of(object_id) for object_id in ids]
        wanted = np.fromiter(ids, np.int64, len(ids))
        starts = np.searchsorted(self._children, wanted, "left").tolist()
        ends = np.searchsorted(self._children, wanted, "right").tolist()
        objects, parents = self.objects, self._parents
        return [[objects[i] for i in parents[start:end].tolist()] for start, end in zip(starts, ends, strict=True)]

    def _parents_of(self, object_id: int) -> list[Any]:
        start = bisect.bisect_left(self._children_view, object_id)
        end = bisect.bisect_right(self._children_view, object_id, start)
        objects = self.objects
        return [objects[i] for i in self._parents[start:end].tolist()]


def _remove_asyncio(objects: list[Any]) -> None:
    """Remove the module ``_asyncio``, which must not be asked for its referents.

    Up to Python 3.12.5 and 3.13.0rc1 it answers with freed iterators (CPython #122695). Releasing those again turns its
    free list into a ring, and traversing that never ends.
    """
    type_ids = np.fromiter(map(id, map(type, objects)), np.int64, len(objects))
    modules = np.flatnonzero(type_ids == id(types.ModuleType)).tolist()
    for index in reversed(modules):
        name = vars(objects[index]).get("__name__")
        if type(name) is str and name == "_asyncio":
            del objects[index]


def _bitmap(ids: Ids | list[int]) -> NDArray[np.bool_]:
    bitmap = np.zeros(1 << _BITS, np.bool_)
    bitmap[(np.asarray(ids, np.int64) >> 4) & _MASK] = True
    return bitmap


def _maybe_among(ids: Ids, bitmap: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each id may be in the bitmap. There are false positives, but no false negatives."""
    result: NDArray[np.bool_] = bitmap[(ids >> 4) & _MASK]
    return result
