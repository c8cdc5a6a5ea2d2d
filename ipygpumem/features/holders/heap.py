"""Every object that Python's collector tracks, and who refers to whom: read by the collector's own C functions.

`gc.get_referents` runs an object's ``tp_traverse`` and no code of the user's. All objects are asked once, in chunks;
the answers become two columns, child and parent, sorted by child, so that the way up from a tensor is a binary search.
"""

from __future__ import annotations

import bisect
import gc
import itertools
import time
import types
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

__all__ = ["Heap"]

_CHUNK = 8192
_FEW = 32
"""Ids that are looked up one by one: below that a call of numpy costs more than it gives."""
_BITS = 24
_MASK = (1 << _BITS) - 1


class Heap:
    """The objects at one instant, kept alive as long as this is. ``deadline`` is in seconds of `time.perf_counter`.

    The caller pauses the collector meanwhile: a million lists are made here. ``seeds``: where to begin with the search
    for what `gc.freeze` has put away; nothing lists it.
    """

    def __init__(self, deadline: float, seeds: Callable[[], list[Any]] | None = None) -> None:
        self._deadline = deadline
        self.complete = True
        self.objects: list[Any] = gc.get_objects()
        _leave_out(self.objects)
        if gc.get_freeze_count():
            self._find_frozen([] if seeds is None else seeds())
        count = len(self.objects)
        if self._late():
            self.objects.clear()
            count = 0
        self.ids: Ints = np.fromiter(map(id, self.objects), np.int64, count)
        self._kinds: Ints = np.fromiter(map(id, map(type, self.objects)), np.int64, count)
        self._children: Ints = np.empty(0, np.int64)
        self._parents: NDArray[np.int32] = np.empty(0, np.int32)
        self._sorted = self._children.data

    def _late(self) -> bool:
        if time.perf_counter() > self._deadline:
            self.complete = False
        return not self.complete

    def _find_frozen(self, seeds: list[Any]) -> None:
        """Add what is not in the collector's list, and can be reached from there or from the seeds."""
        objects = self.objects
        known = set(map(id, objects))
        known.update(map(id, (objects, seeds)))  # our own lists hold everything, and are nobody's
        self._add(seeds, known)
        start = 0
        while start < len(objects) and not self._late():  # it grows
            following = min(start + _CHUNK, len(objects))
            self._add(gc.get_referents(*objects[start:following]), known)
            start = following

    def _add(self, things: list[Any], known: set[int]) -> None:
        fresh = {key: thing for key, thing in zip(map(id, things), things, strict=True) if key not in known}
        tracked = list(itertools.compress(fresh.values(), map(gc.is_tracked, fresh.values())))
        known.update(map(id, tracked))
        _leave_out(tracked)
        self.objects += tracked

    def release(self) -> None:
        """Let go of the objects. This one is among them, and would keep them all until the next collection."""
        self.objects.clear()

    def by_role(self, role: Callable[[type], str | None]) -> dict[str, list[Any]]:
        """The objects whose class has a role, by role."""
        objects = self.objects
        first = dict(zip(self._kinds.tolist(), range(len(objects)), strict=True))
        roles = {}
        for kind, at in first.items():
            what = role(type(objects[at]))
            if what is not None:
                roles[kind] = what
        found: dict[str, list[Any]] = {}
        for at in np.flatnonzero(_among(self._kinds, _bitmap(list(roles)))):
            what = roles.get(int(self._kinds[at]))
            if what is not None:
                found.setdefault(what, []).append(objects[at])
        return found

    def connect(self) -> None:
        """Ask every object for what it refers to. Stops at the deadline, and is then not complete."""
        known = _bitmap(self.ids)
        objects = self.objects
        children, parents = [], []
        for start in range(0, len(objects), _CHUNK):
            if self._late():
                return  # what would be left out nobody knows: no name is better than a wrong one
            answers = list(map(gc.get_referents, objects[start : start + _CHUNK]))
            lengths = np.fromiter(map(len, answers), np.int64, len(answers))
            ids = np.fromiter(map(id, itertools.chain.from_iterable(answers)), np.int64, int(lengths.sum()))
            del answers
            tracked = np.flatnonzero(_among(ids, known))
            children.append(ids[tracked])
            parents.append(np.repeat(np.arange(start, start + len(lengths), dtype=np.int32), lengths)[tracked])
        if children and not self._late():
            column = np.concatenate(children)
            order = np.argsort(column, kind="stable")
            self._children, self._parents = column[order], np.concatenate(parents)[order]
            self._sorted = self._children.data

    def parents(self, ids: Collection[int]) -> list[list[Any]]:
        """For each id the objects that refer to it, one for each reference."""
        if len(ids) < _FEW:
            return [self._of(key) for key in ids]
        wanted = np.fromiter(ids, np.int64, len(ids))
        low = np.searchsorted(self._children, wanted, "left").tolist()
        high = np.searchsorted(self._children, wanted, "right").tolist()
        objects, rows = self.objects, self._parents
        return [[objects[i] for i in rows[a:b].tolist()] for a, b in zip(low, high, strict=True)]

    def _of(self, key: int) -> list[Any]:
        low = bisect.bisect_left(self._sorted, key)
        high = bisect.bisect_right(self._sorted, key, low)
        objects = self.objects
        return [objects[i] for i in self._parents[low:high].tolist()]


def _leave_out(objects: list[Any]) -> None:
    """Take away what must not be asked: the module ``_asyncio``.

    Up to Python 3.12.5 and 3.13.0rc1 it answers with the memory of iterators that are gone (CPython #122695). Letting
    go of them again ties its list of free ones into a ring, and whoever follows that, the collector too, never ends.
    """
    kinds = np.fromiter(map(id, map(type, objects)), np.int64, len(objects))
    modules = np.flatnonzero(kinds == id(types.ModuleType)).tolist()
    for at in reversed(modules):
        name = vars(objects[at]).get("__name__")
        if type(name) is str and name == "_asyncio":
            del objects[at]


def _bitmap(ids: Ints | list[int]) -> NDArray[np.bool_]:
    marks = np.zeros(1 << _BITS, np.bool_)
    marks[(np.asarray(ids, np.int64) >> 4) & _MASK] = True
    return marks


def _among(ids: Ints, marks: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Whether each id may be among the marked ones: never no for one that is."""
    found: NDArray[np.bool_] = marks[(ids >> 4) & _MASK]
    return found
