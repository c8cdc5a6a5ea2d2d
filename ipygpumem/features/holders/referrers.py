"""Find the objects from which tensors are reachable, and determine which of them are in unreachable cycles."""

from __future__ import annotations

import sys
import types
from collections import Counter
from typing import TYPE_CHECKING, Any

from ipygpumem.core.introspection import is_exactly, is_instance
from ipygpumem.features.holders.labels import global_namespaces, reference_labels
from ipygpumem.features.holders.roots import Root

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ipygpumem.features.holders.tracked_objects import SearchLimit, TrackedObjects

_MAX_OBJECTS = 400_000
_MAX_CLASS_REFERRERS = 50
"""Maximum number of referrers added for each class, because a class may have millions of instances."""


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


def add_class_referrers(ids: Collection[int], referrers: ReferrerGraph) -> bool:
    """Add referrers of the classes with these ids: instances, subclasses and tuples. Return whether any were added."""
    class_ids = [object_id for object_id in ids if is_instance(referrers.objects[object_id], type)]
    new_ids, is_any_added = [], False
    for class_id, parents in zip(class_ids, referrers.heap.parents(class_ids), strict=True):
        cls = referrers.objects[class_id]
        chosen = [obj for obj in parents if obj is not cls and (type(obj) is cls or is_instance(obj, type))]
        chosen += [obj for obj in parents if type(obj) is tuple and not _belongs_to_class(obj, referrers.heap)]
        for obj in chosen[:_MAX_CLASS_REFERRERS]:
            if id(obj) not in referrers.objects:
                referrers.objects[id(obj)] = obj
                new_ids.append(id(obj))
            children = referrers.children.setdefault(id(obj), [])
            if class_id not in children:
                children.append(class_id)
                is_any_added = True
    referrers.add_referrers(new_ids)
    return is_any_added


def _belongs_to_class(bases: tuple[Any, ...], heap: TrackedObjects) -> bool:
    """Return whether a tuple is the ``__bases__`` or ``__mro__`` of a class."""
    (parents,) = heap.parents([id(bases)])
    return any(is_instance(parent, type) for parent in parents)
