"""The objects that lead to the tensors: found by following references upwards, from each object to its referrers."""

from __future__ import annotations

import sys
import time
import types
from typing import TYPE_CHECKING, Any

from ipygpumem.core.interpreter import is_exactly, is_instance, type_name
from ipygpumem.features.holders.labels import global_namespaces, reference_labels
from ipygpumem.features.holders.roots import Root

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ipygpumem.features.holders.heap import Heap

__all__ = ["ReferrerGraph", "held_from_outside", "outermost_first"]

_MAX_OBJECTS = 400_000
_DEFINED_IN_NAMESPACE = (types.FunctionType, types.FrameType)
_LAZY = (types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType)
_CONTAINERS = (dict, list, tuple, types.CellType, types.TracebackType)


class ReferrerGraph:
    """Objects from which a target can be reached, and the references between them.

    Attributes:
        objects: The objects by id, kept alive as long as the graph.
        children: For each id the ids of the objects that it refers to, one for each reference.
        extra: Referrers that the collector does not know, by the id of the referent: a tensor keeps its gradient and
            its base, and a node of an autograd graph its saved tensors, from C++.
        complete: Whether all referrers were found.
    """

    def __init__(self, targets: Mapping[int, Any], extra: dict[int, list[Any]]) -> None:
        self.objects: dict[int, Any] = dict(targets)
        self.children: dict[int, list[int]] = {}
        self.extra = extra
        self.complete = True

    def add_referrers(
        self, heap: Heap, terminal_ids: Collection[int], deadline: float, start_ids: list[int] | None = None
    ) -> None:
        """Add everything that leads to some objects.

        Args:
            heap: Where the referrers are looked up.
            terminal_ids: Objects whose own referrers do not matter.
            deadline: When to stop, in seconds of `time.perf_counter`.
            start_ids: The objects to start from; None for all that are here.
        """
        objects, children = self.objects, self.children
        frontier = list(objects) if start_ids is None else start_ids
        while frontier:
            if len(objects) > _MAX_OBJECTS or time.perf_counter() > deadline:
                self.complete = False
                return
            next_frontier = []
            for child_id, parents in zip(frontier, heap.parents(frontier), strict=True):
                child = objects[child_id]
                is_dict, is_class = type(child) is dict, is_instance(child, type)
                for parent in (*parents, *self.extra.get(child_id, ())):
                    if type(parent) is Root:
                        continue
                    if is_dict and is_exactly(parent, _DEFINED_IN_NAMESPACE) and _is_global_namespace(child, parent):
                        continue  # a namespace is not kept by the functions defined in it
                    if is_class and not _may_name_class(parent):
                        continue  # a class is kept by what names it, not by its instances and subclasses
                    parent_id = id(parent)
                    if parent_id not in objects:
                        objects[parent_id] = parent
                        if parent_id not in terminal_ids:
                            next_frontier.append(parent_id)
                    children.setdefault(parent_id, []).append(child_id)
            frontier = next_frontier

    def add_frame(self, frame: types.FrameType) -> bool:
        """Add a running frame, whose variables the collector does not know; False if none of them leads to a target."""
        variables = dict.fromkeys(key for key, _ in reference_labels(frame, "object", ()) if key in self.objects)
        if variables:
            self.objects[id(frame)] = frame
            self.children[id(frame)] = list(dict.fromkeys([*self.children.get(id(frame), ()), *variables]))
        return bool(variables)


def _is_global_namespace(namespace: dict[Any, Any], obj: Any) -> bool:
    return any(namespace is candidate for candidate in global_namespaces(obj))


def _may_name_class(parent: Any) -> bool:
    return is_instance(parent, dict) or is_exactly(parent, (list, types.CellType))


def held_from_outside(ids: Collection[int], referrers: ReferrerGraph, own_references: Mapping[int, int]) -> set[int]:
    """Those of some objects that something outside of them keeps alive. The others are unreachable cycles.

    This is the collector's own computation, without a collection: an object is held from outside if it has more
    references than the other objects account for. Everything that such an object refers to is held, too.

    Args:
        ids: Objects that no root leads to.
        referrers: The references between them.
        own_references: This package's references to each object, besides those of the heap and of ``referrers``.
    """
    inner_references: dict[int, int] = {}
    for object_id in ids:
        for child_id in referrers.children.get(object_id, ()):
            inner_references[child_id] = inner_references.get(child_id, 0) + 1
    held = set()
    base_count = _reference_count_of_unheld()
    for object_id in ids:
        obj = referrers.objects[object_id]
        count = sys.getrefcount(obj)
        # C++ objects hold a single reference, which the collector does not know, however many of them share the object
        extra_inside = [id(referrer) in ids for referrer in referrers.extra.get(object_id, ())]
        uncounted = sum(extra_inside) - bool(extra_inside)
        inner = inner_references.get(object_id, 0) - uncounted
        if not all(extra_inside) or count - base_count - own_references.get(object_id, 0) > inner:
            held.add(object_id)
    frontier = list(held)
    while frontier:
        for child_id in referrers.children.get(frontier.pop(), ()):
            if child_id in ids and child_id not in held:
                held.add(child_id)
                frontier.append(child_id)
    return held


def _reference_count_of_unheld() -> int:
    """The reference count that the loop above sees of an object which only the heap and the referrer graph have."""
    heap_objects: list[Any] = [object()]
    graph_objects = {0: heap_objects[0]}
    obj = graph_objects[0]
    return sys.getrefcount(obj)


def outermost_first(ids: Collection[int], referrers: ReferrerGraph) -> list[tuple[int, str]]:
    """Ids and labels of some objects: those that no other refers to first, then the rest, as cycles have no first."""
    inner = {child_id for key in ids for child_id in referrers.children.get(key, ()) if child_id != key}
    objects = referrers.objects
    ordered = sorted(ids, key=lambda key: (key in inner, _label_rank(objects[key])))
    return [(key, f"<{_description(objects[key])}>") for key in ordered]


def _label_rank(obj: Any) -> int:
    """A function's frame tells more than another object, and that more than a container."""
    return 0 if type(obj) is types.FrameType else 2 if is_exactly(obj, _CONTAINERS) else 1


def _description(obj: Any) -> str:
    class_name = str(type_name(type(obj)))
    return f"{class_name} {obj.__name__}()" if is_exactly(obj, (*_LAZY, types.FunctionType)) else class_name
