"""Assign names to objects by following references from the roots to the tensors, starting with preferred places."""

from __future__ import annotations

import functools
import heapq
import itertools
import types
from collections.abc import Collection, Sequence
from typing import Any

from ipygpumem.features.holders.labels import (
    ReferenceLabel,
    fallback_label,
    intermediate_ids,
    label_rank,
    reference_labels,
    type_label,
)
from ipygpumem.features.holders.model import PLACES, Place
from ipygpumem.features.holders.reference_graph import ObjectName, ReferrerGraph, SearchRoot
from ipygpumem.features.holders.targets import SearchTargets

_PLACE_BITS = {place: 1 << i for i, place in enumerate(PLACES)}
_LAST_RESORT_STEPS = 50
"""Depth added by a last-resort reference, such as one from an optimizer, so that parameters are named after modules."""
_SHARED_ROOT_DEPTH = 5
_MAX_NAME_PARTS = 12
_ELLIPSIS = "..."
_MAX_OTHER_NAMES = 4
_MAX_NAME_ATTEMPTS = 40  # maximum number of paths followed to find the names of one storage
_CLOCK_INTERVAL = 256  # number of objects visited between two checks of the time limit

_Queue = list[tuple[int, int, int]]


class ObjectNames:
    """Names of the objects in a referrer graph. If the time limit is reached, some objects have no name.

    Attributes:
        named: Name of each object, by the id of the object.
        place_bits: Bit mask of the places from which each object is reachable, by the id of the object.
        root_ids: The ids of roots whose referrers are ignored.
    """

    def __init__(self, referrers: ReferrerGraph, targets: SearchTargets) -> None:
        self._referrers = referrers
        self._targets = targets
        self._node_ids = targets.graph.nodes.keys()
        self._order = itertools.count()
        self._graph_edges: list[tuple[int, int]] = []
        self._skipped: set[int] = set()
        self._texts: dict[int, str] = {}
        self._prefixes: dict[int, tuple[str | None, bool]] = {}
        self._names_by_id: dict[int, list[str]] = {}
        self._references: dict[int, list[tuple[int | None, ReferenceLabel]]] = {}
        self.named: dict[int, ObjectName] = {}
        self.place_bits: dict[int, int] = {}
        self.root_ids: set[int] = set()

    def name_from_roots(self, roots: Sequence[SearchRoot]) -> None:
        self.root_ids = {id(root.value) for root in roots if root.terminal}
        sorted_roots = sorted(roots, key=lambda root: PLACES.index(root.place))
        for _, group in itertools.groupby(sorted_roots, lambda root: root.place):
            queue: _Queue = []
            for root in group:
                self._add_root(root, queue)
            self._visit(queue)
        self._follow_graphs()

    def name_unreached(self, ids: Collection[int], holder: str, place: Place) -> None:
        inner = {child_id for key in ids for child_id in self._referrers.children.get(key, ()) if child_id != key}
        objects = self._referrers.objects
        # objects without referrers first, then objects in cycles
        for object_id in sorted(ids, key=lambda key: (key in inner, label_rank(objects[key]))):
            self._mark(object_id, place)
            if object_id not in self.named and object_id not in self._skipped:
                queue: _Queue = []
                label = ReferenceLabel(f"<{type_label(objects[object_id])}>")
                self._name(object_id, ObjectName(None, label, holder, place), queue)
                self._visit(queue)
        self._follow_graphs()

    def places(self, ids: Sequence[int]) -> tuple[Place, ...]:
        bits = self.place_bits.get(ids[0], 0)
        for object_id in ids[1:]:
            bits |= self.place_bits.get(object_id, 0)
        return _places(bits)

    def _add_root(self, root: SearchRoot, queue: _Queue) -> None:
        root_id = id(root.value)
        if root_id not in self._referrers.objects:
            return
        if root.style != "names":
            holder = "" if root.style == "items" else root.label
            depth = 0 if root.terminal and not root.last_resort else _SHARED_ROOT_DEPTH
            label = ReferenceLabel(root.label, root.style)
            self._mark(root_id, root.place)
            self._name(root_id, ObjectName(None, label, holder, root.place, depth=depth), queue)
            return
        depth = 2 if root.place == "output" else 1  # Out[3] before _3
        child_ids = set(self._referrers.children.get(root_id, ()))
        for child_id, label in reference_labels(root.value, "names", ()):
            if child_id in child_ids and (root.names is None or root.names(label.text)):
                text = f"{root.label}{label.text}"
                object_name = ObjectName(None, ReferenceLabel(text, label.style), text, root.place, depth=depth)
                self._mark(child_id, root.place)
                self._name(child_id, object_name, queue)

    def _mark(self, object_id: int, place: Place) -> None:
        self.place_bits[object_id] = self.place_bits.get(object_id, 0) | _PLACE_BITS[place]

    def _visit(self, queue: _Queue) -> None:
        for count in itertools.count():
            if not queue or (count % _CLOCK_INTERVAL == 0 and self._referrers.limit.reached()):
                return
            _, _, object_id = heapq.heappop(queue)
            child_ids = dict.fromkeys(self._referrers.children.get(object_id, ()))
            if object_id in self._node_ids:
                object_name = self.named[object_id]
                for child_id in child_ids:
                    self._name(child_id, _child_name(object_name, object_id, ReferenceLabel(""), graph=True), queue)
            elif child_ids:
                self._name_children(object_id, child_ids, queue)

    def _name_children(self, object_id: int, child_ids: dict[int, None], queue: _Queue) -> None:
        objects, target_ids = self._referrers.objects, self._targets.by_id
        obj, object_name = objects[object_id], self.named[object_id]
        skipped = intermediate_ids(obj, [objects[child_id] for child_id in child_ids])
        self._skipped |= skipped
        if skipped:
            child_ids = {child_id: None for child_id in child_ids if child_id not in skipped}
        is_target = object_id in target_ids
        # each local variable in a traceback or a thread is a separate holder
        is_frame = type(obj) is types.FrameType and object_name.place in {"traceback", "thread"}
        labeled: set[int] = set()
        for child_id, label in reference_labels(obj, object_name.label.style, target_ids, child_ids):
            if child_id in child_ids or (label.indirect and child_id in objects):
                labeled.add(child_id)
                holder = f"{self.name(object_id)}{label.text}" if is_frame else ""
                last_resort = label.last_resort or object_id in self._targets.optimizer_ids
                self._name(child_id, _child_name(object_name, object_id, label, holder, is_last=last_resort), queue)
        for child_id in [child_id for child_id in child_ids if child_id not in labeled]:
            if is_target and child_id in self._node_ids:
                self._graph_edges.append((object_id, child_id))  # graphs are followed after all other references
            else:
                text = self._tensor_reference(child_id, obj) if is_target else fallback_label(obj)
                self._name(child_id, _child_name(object_name, object_id, ReferenceLabel(text)), queue)

    def _tensor_reference(self, child_id: int, tensor: Any) -> str:
        if any(referrer is tensor for referrer in self._referrers.extra.get(child_id, ())):
            return ".grad" if child_id in self._targets.gradient_ids else ""
        return fallback_label(tensor)

    def _follow_graphs(self) -> None:
        while self._graph_edges:
            edges, self._graph_edges = self._graph_edges, []
            queue: _Queue = []
            for tensor_id, node_id in edges:
                object_name = self.named[tensor_id]
                self._name(node_id, _child_name(object_name, tensor_id, ReferenceLabel(""), graph=True), queue)
            self._visit(queue)
        self._spread_places()

    def _name(self, object_id: int, new: ObjectName, queue: _Queue) -> None:
        if object_id in self.root_ids and new.parent_id is not None:
            return
        old = self.named.get(object_id)
        references, reference = self._all_references(object_id) if old else [], (new.parent_id, new.label)
        if 0 < len(references) <= _MAX_OTHER_NAMES and reference not in references:
            self._references[object_id] = [*references, reference]
        if old is None or (new.depth < old.depth and new.place == old.place and new.graph == old.graph):
            self.named[object_id] = new
            self._texts.clear()
            if object_id in self._referrers.children:
                heapq.heappush(queue, (new.depth, next(self._order), object_id))

    def _all_references(self, object_id: int) -> list[tuple[int | None, ReferenceLabel]]:
        object_name = self.named[object_id]
        return self._references.get(object_id) or [(object_name.parent_id, object_name.label)]

    def _spread_places(self) -> None:
        place_bits, children = self.place_bits, self._referrers.children
        pending = list(place_bits)
        while pending:
            object_id = pending.pop()
            bits = place_bits[object_id]
            for child_id in children.get(object_id, ()):
                old_bits = place_bits.get(child_id, 0)
                if old_bits | bits != old_bits and child_id not in self.root_ids:
                    place_bits[child_id] = old_bits | bits
                    pending.append(child_id)

    def name(self, object_id: int) -> str:
        """Return the preferred name of an object, or of a tensor whose autograd graph alone keeps the object alive."""
        parts: list[str] = []
        current: int | None = None if object_id in self._texts else object_id
        while current is not None:
            object_name, obj = self.named[current], self._referrers.objects[current]
            if type(obj) is types.FrameType:
                qualified = str(getattr(obj.f_code, "co_qualname", obj.f_code.co_name))
                parts.append(f"{object_name.holder}: {qualified.rpartition('<locals>.')[2]}()")
                break
            if not object_name.graph:
                parts.append(self._label_text(object_name.label))
                if len(parts) > _MAX_NAME_PARTS:
                    parts = [*parts[:4], _ELLIPSIS, object_name.holder]
                    break
            current = object_name.parent_id
        return self._texts.setdefault(object_id, "".join(reversed(parts)))

    def _label_text(self, label: ReferenceLabel) -> str:
        if label.key_id is None:
            return label.text
        named_key = self.named.get(label.key_id)
        if named_key is None or named_key.label.key_id is not None:
            return "[...]"
        return f"[{self.name(label.key_id)}]"

    def storage_names(self, ids: Sequence[int]) -> tuple[str, tuple[str, ...]]:
        if len(ids) == 1 and ids[0] not in self._referrers.children and ids[0] not in self._references:
            object_name = self.named[ids[0]]  # the usual case: a tensor to which only one object refers
            if object_name.parent_id is None or object_name.graph:
                return self.name(ids[0]), ()
            if object_name.parent_id not in self._prefixes:
                self._prefixes[object_name.parent_id] = self.prefix(object_name.parent_id)
            prefix, is_only_name = self._prefixes[object_name.parent_id]
            if is_only_name:
                return self.name(ids[0]) if prefix is None else prefix + self._label_text(object_name.label), ()
        return self.name(ids[0]), self._other_names(ids)

    def prefix(self, object_id: int) -> tuple[str | None, bool]:
        """Return ``(name, is_only_name)`` for an object. The name is None if it is too long as a prefix of names."""
        ancestor_id: int | None = object_id  # None after the loop if no name with this prefix is shortened
        for _ in range(_MAX_NAME_PARTS - 1):
            ancestor_id = None if ancestor_id is None else self.named[ancestor_id].parent_id
        return self.name(object_id) if ancestor_id is None else None, len(self._parent_names(object_id)) == 1

    def _other_names(self, ids: Sequence[int]) -> tuple[str, ...]:
        names: dict[str, str] = {}
        graph = self.named[ids[0]].graph
        attempts_left = [_MAX_NAME_ATTEMPTS]
        for object_id in ids:
            if object_id in self.named and self.named[object_id].graph is graph and len(names) <= _MAX_OTHER_NAMES:
                prefix = f"{self.named[object_id].holder}{_ELLIPSIS}"
                for name in self._names(object_id, (), attempts_left):
                    # shortened names that start with the same holder count as one name
                    names.setdefault(prefix if name.startswith(prefix) else name, name)
        return tuple(names.values())[1 : _MAX_OTHER_NAMES + 1]

    def _names(self, object_id: int, path: tuple[int, ...], attempts_left: list[int]) -> list[str]:
        attempts_left[0] -= 1
        first, is_frame = self.name(object_id), type(self._referrers.objects[object_id]) is types.FrameType
        if is_frame or len(path) >= _MAX_NAME_PARTS or self.named[object_id].graph:
            return [first]
        names = {first: None}
        for parent_id, label in self._all_references(object_id):
            if len(names) > _MAX_OTHER_NAMES or attempts_left[0] < 0:
                break
            if parent_id is None:
                names[label.text] = None
            elif parent_id in self.named and parent_id not in path and not self.named[parent_id].graph:
                if object_id in self._referrers.children:
                    parent_names = self._names(parent_id, (*path, object_id), attempts_left)
                else:  # no path passes through the object
                    parent_names = self._parent_names(parent_id)
                names.update({name + self._label_text(label): None for name in parent_names})
        return list(names)

    def _parent_names(self, object_id: int) -> list[str]:
        names = self._names_by_id.get(object_id) or self._names(object_id, (), [_MAX_NAME_ATTEMPTS])
        return self._names_by_id.setdefault(object_id, names)


@functools.cache
def _places(bits: int) -> tuple[Place, ...]:
    return tuple(place for place in PLACES if bits & _PLACE_BITS[place])


def _child_name(
    named: ObjectName,
    own_id: int,
    label: ReferenceLabel,
    holder: str = "",
    *,
    graph: bool = False,
    is_last: bool = False,
) -> ObjectName:
    # a module's own dicts and the objects in them have the same depth as the module
    inside_module = label.style in {"module", "members"} or named.label.style == "members"
    steps = _LAST_RESORT_STEPS if is_last else 0 if inside_module else 1
    holder = holder or named.holder or f"{named.label.text}{label.text}"
    return ObjectName(own_id, label, holder, named.place, named.graph or graph, named.depth + steps)
