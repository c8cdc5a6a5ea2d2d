"""Find the referrers of tensors among all objects that Python's garbage collector tracks.

`gc.get_referents` calls an object's ``tp_traverse`` in C, which runs no user code. It is called once for each object.
The references are stored as two columns, child and parent, which are sorted by child so that the referrers of an object
can be found by binary search.
"""

from __future__ import annotations

import bisect
import gc
import itertools
import sys
import time
import types
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.introspection import frame_locals, is_exactly, is_instance, running_frames
from ipygpumem.features.holders.labels import global_namespaces, reference_labels
from ipygpumem.features.holders.roots import Root

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from numpy.typing import NDArray

    Ids = NDArray[np.int64]

_CHUNK = 8192
_MAX_SINGLE_LOOKUPS = 32
"""Number of ids below which `bisect` is faster than NumPy."""
_BITS = 24
_MASK = (1 << _BITS) - 1
_MAX_OBJECTS = 400_000


class SearchLimit:
    """Limit on the duration of a search. ``complete`` is False once this or another limit has been reached."""

    def __init__(self, seconds: float) -> None:
        self.start = time.perf_counter()
        self.end = self.start + seconds
        self.complete = True

    def reached(self) -> bool:
        """Return whether the time limit has been reached. If so, mark the search as incomplete."""
        is_reached = time.perf_counter() > self.end
        self.complete &= not is_reached
        return is_reached

    def passed(self, share: float) -> bool:
        """Return whether this share (between 0 and 1) of the time limit has passed."""
        return time.perf_counter() > self.start + (self.end - self.start) * share


class TrackedObjects:
    """A copy of the garbage collector's list of tracked objects, which stay alive until `release` is called."""

    def __init__(self, limit: SearchLimit) -> None:
        self._limit = limit
        self.objects: list[Any] = gc.get_objects()
        _remove_asyncio(self.objects)
        if gc.get_freeze_count():
            self._find_frozen()
        if self._limit.reached():
            self.objects.clear()
        self._type_ids: Ids = np.fromiter(map(id, map(type, self.objects)), np.int64, len(self.objects))
        self._children: Ids = np.empty(0, np.int64)
        self._parents: NDArray[np.int32] = np.empty(0, np.int32)
        self._children_view = self._children.data

    def _find_frozen(self) -> None:
        """Add reachable objects that `gc.freeze` removed from the collector's list."""
        objects = self.objects
        seeds = [sys.modules, *(value for _, frame in running_frames() for _, value in frame_locals(frame))]
        seen_ids = {*map(id, objects), id(objects), id(seeds)}  # these lists refer to all objects
        self._add(seeds, seen_ids)
        start = 0
        while start < len(objects) and not self._limit.reached():  # the list grows in the loop
            chunk = objects[start : start + _CHUNK]
            self._add(gc.get_referents(*chunk), seen_ids)
            start += len(chunk)

    def _add(self, candidates: list[Any], seen_ids: set[int]) -> None:
        new = {key: obj for key, obj in zip(map(id, candidates), candidates, strict=True) if key not in seen_ids}
        tracked = list(itertools.compress(new.values(), map(gc.is_tracked, new.values())))
        seen_ids.update(map(id, tracked))
        _remove_asyncio(tracked)
        self.objects += tracked

    def release(self) -> None:
        """Clear the list. It contains itself and would otherwise stay alive until the next garbage collection."""
        self.objects.clear()

    def by_role(self, role: Callable[[type], str | None]) -> dict[str, list[Any]]:
        """Group the objects by the role of their class in PyTorch, and omit objects of classes without a role."""
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
        """Read the references between all objects. If the time limit is reached, keep none to avoid wrong names."""
        objects = self.objects
        id_bitmap = _bitmap(np.fromiter(map(id, objects), np.int64, len(objects)))
        children, parents = [self._children], [self._parents]
        for start in range(0, len(objects), _CHUNK):
            if self._limit.reached():
                return
            referents = list(map(gc.get_referents, objects[start : start + _CHUNK]))
            lengths = np.fromiter(map(len, referents), np.int64, len(referents))
            ids = np.fromiter(map(id, itertools.chain.from_iterable(referents)), np.int64, int(lengths.sum()))
            del referents
            tracked = np.flatnonzero(_maybe_among(ids, id_bitmap))
            children.append(ids[tracked])
            parents.append(np.repeat(np.arange(start, start + len(lengths), dtype=np.int32), lengths)[tracked])
        column = np.concatenate(children)
        order = np.argsort(column, kind="stable")
        self._children, self._parents = column[order], np.concatenate(parents)[order]
        self._children_view = self._children.data

    def parents(self, ids: Collection[int]) -> list[list[Any]]:
        """Return a list of referrers for each id. A referrer is listed once for each of its references."""
        spans: Iterable[tuple[int, int]]
        if len(ids) < _MAX_SINGLE_LOOKUPS:
            column = self._children_view
            spans = [(start := bisect.bisect_left(column, key), bisect.bisect_right(column, key, start)) for key in ids]
        else:
            id_array = np.fromiter(ids, np.int64, len(ids))
            starts = np.searchsorted(self._children, id_array, "left").tolist()
            spans = zip(starts, np.searchsorted(self._children, id_array, "right").tolist(), strict=True)
        objects, parents = self.objects, self._parents
        return [[objects[i] for i in parents[start:end].tolist()] for start, end in spans]


def _remove_asyncio(objects: list[Any]) -> None:
    """Remove the module ``_asyncio``, whose referents must not be read.

    Up to Python 3.12.5 and 3.13.0rc1, they include freed iterators (CPython #122695). If a list of the referents is
    deleted, the iterators are freed twice, and the next traversal of the module does not terminate.
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
    """Return for each id whether it may be in the bitmap. There are false positives, but no false negatives."""
    result: NDArray[np.bool_] = bitmap[(ids >> 4) & _MASK]
    return result


class ReferrerGraph:
    """Objects from which a tensor or storage is reachable, and the references between them.

    The referrers of objects in ``terminal_ids`` are ignored.

    Attributes:
        objects: The objects by id.
        children: The ids of the objects to which each object refers, by the id of the referrer.
        extra: Referrers whose references are in C++ and unknown to the collector, by the id of the referent. For
            example, tensors refer to their gradients, and autograd nodes to their saved tensors.
    """

    def __init__(
        self,
        heap: TrackedObjects,
        objects: dict[int, Any],
        extra: dict[int, list[Any]],
        terminal_ids: Collection[int],
        limit: SearchLimit,
    ) -> None:
        self.heap = heap
        self.objects = objects
        self.children: dict[int, list[int]] = {}
        self.extra = extra
        self.limit = limit
        self._terminal_ids = terminal_ids

    def add_referrers(self, start_ids: list[int] | None = None) -> None:
        """Add the direct and indirect referrers of some objects, by default of all objects in the graph."""
        objects, children = self.objects, self.children
        frontier = list(objects) if start_ids is None else start_ids
        while frontier and not self.limit.reached():
            if len(objects) > _MAX_OBJECTS:
                self.limit.complete = False
                return
            next_frontier = []
            for child_id, parents in zip(frontier, self.heap.parents(frontier), strict=True):
                child = objects[child_id]
                is_dict, is_class = type(child) is dict, is_instance(child, type)
                for parent in (*parents, *self.extra.get(child_id, ())):
                    if type(parent) is Root:
                        continue
                    if is_dict and any(child is namespace for namespace in global_namespaces(parent)):
                        continue  # functions do not own the namespace in which they are defined
                    if is_class and not (is_instance(parent, dict) or is_exactly(parent, (list, types.CellType))):
                        continue  # classes are named by variables, not by instances or subclasses
                    parent_id = id(parent)
                    if parent_id not in objects:
                        objects[parent_id] = parent
                        if parent_id not in self._terminal_ids:
                            next_frontier.append(parent_id)
                    children.setdefault(parent_id, []).append(child_id)
            frontier = next_frontier

    def add_frame(self, frame: types.FrameType) -> bool:
        """Add a running frame if the graph contains one of its local variables, and return whether it was added."""
        variables = dict.fromkeys(key for key, _ in reference_labels(frame, "object", ()) if key in self.objects)
        if variables:
            self.objects[id(frame)] = frame
            self.children[id(frame)] = list(dict.fromkeys([*self.children.get(id(frame), ()), *variables]))
        return bool(variables)

    def alive_ids(self, ids: Collection[int], own_references: Mapping[int, int]) -> set[int]:
        """Return those of the ids whose objects are not part of unreachable cycles.

        This is the algorithm of the garbage collector. An object is kept alive from outside if its reference count
        exceeds the number of references from the objects with these ids and from the search. The search refers to each
        object once in the list of tracked objects, once in this graph, and as often as ``own_references`` states.
        """
        inner_references = Counter(child_id for object_id in ids for child_id in self.children.get(object_id, ()))
        alive = set()
        base_count = _search_reference_count()
        for object_id in ids:
            obj = self.objects[object_id]
            count = sys.getrefcount(obj)
            # all C++ owners of an object share a single Python reference, which the collector does not know
            extra_inside = [id(referrer) in ids for referrer in self.extra.get(object_id, ())]
            uncounted = sum(extra_inside) - bool(extra_inside)
            inner = inner_references[object_id] - uncounted
            if not all(extra_inside) or count - base_count - own_references.get(object_id, 0) > inner:
                alive.add(object_id)
        pending = list(alive)
        while pending:
            new = {child_id for child_id in self.children.get(pending.pop(), ()) if child_id in ids} - alive
            alive |= new
            pending += new
        return alive


def _search_reference_count() -> int:
    """Return the reference count that `alive_ids` reads for an object to which only the search refers."""
    heap_objects: list[Any] = [object()]
    graph_objects = {0: heap_objects[0]}
    obj = graph_objects[0]
    return sys.getrefcount(obj)
