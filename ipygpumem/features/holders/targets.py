"""The tensors and storages whose holders are searched for: their locations, kinds and autograd graphs.

Some tensors have no storage because they wrap other tensors (DTensor, torchao's tensors, user-defined subclasses). The
inner tensors inherit the kind of the wrapper, so that the kind of the storage of a wrapped parameter is ``parameter``.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import chain
from types import FunctionType, MethodType, ModuleType
from typing import Any

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.introspection import instance_dict, is_exactly, is_instance, mro, slot_values
from ipygpumem.features.holders.list_elements import ListElements
from ipygpumem.features.holders.model import KINDS, Kind
from ipygpumem.features.holders.tracked_objects import COST, SearchLimit
from ipygpumem.sources.storages import StorageInspector, StorageLocation, contents, flattened_names, is_saved_tensor

_MAX_WRAPPERS = 5
"""Maximum nesting depth of wrappers. A distributed parameter may be quantized and wrapped in a user-defined class."""
_OWNED: tuple[tuple[str, str, int, Kind], ...] = (
    ("module", "_parameters", 1, "parameter"),
    ("module", "_buffers", 1, "buffer"),
    ("optimizer", "state", 3, "optimizer state"),
    ("optimizer", "param_groups", 3, "parameter"),
)
"""Attributes with tensors: role of the class, name, nesting depth of the containers, and kind of the tensors."""
_MAX_SHARE = 0.6  # share of the time limit after which no tensors are added
_CLOCK_INTERVAL = 64  # number of tensors added between two checks of the time limit
_MAX_NODES = 300_000
"""Maximum number of nodes of autograd graphs. A loop that accumulates a loss with its graph can create millions."""
_MAX_HOOK_OBJECTS = 500
"""Maximum number of objects examined for each hook. Activation checkpointing requires about a dozen."""
_MAX_HOOK_DEPTH = 7
"""Maximum length of a path from a hook to a saved tensor, for example through a closure, a dict and a list."""


@dataclass(slots=True)
class SearchTarget:
    """A tensor (``is_tensor``) or storage to search for, the locations of its memory, and the tensors it wraps."""

    obj: Any
    locations: list[StorageLocation]
    is_tensor: bool
    wrapped: list[Any]


class SearchTargets:
    """The tensors and storages whose holders are searched for.

    Attributes:
        by_id: The targets by the id of the tensor or storage.
        computed_ids: The ids of tensors that an autograd node computed.
        kinds: Kinds of the storages of modules, optimizers, gradients and wrappers, by device and address.
        extra: Referrers whose references are in C++ and unknown to the garbage collector, by the id of the referent.
        references: Weak reference to each storage, or None if ``keeps_addresses`` is false, by location.
    """

    def __init__(self, types: StorageInspector, is_wanted: Callable[[str], bool], limit: SearchLimit) -> None:
        self._types = types
        self._limit = limit
        self._by_role: dict[str, list[Any]] = {}
        self._is_wanted = is_wanted
        self._without_memory: dict[int, Any] = {}
        self._read_ids: set[int] = set()
        self._roles: dict[int, Kind] = {}
        self.by_id: dict[int, SearchTarget] = {}
        self.kinds: dict[tuple[str, int], Kind] = {}
        self.extra: dict[int, list[Any]] = {}
        self.keeps_addresses = False
        self.computed_ids: set[int] = set()
        self.gradient_ids: set[int] = set()
        self.base_ids: set[int] = set()
        self.references: dict[StorageLocation, Any] = {}
        self.graph = _AutogradGraphs(types, self.extra, limit)
        self.elements: ListElements | None = None

    def add(self, by_role: dict[str, list[Any]]) -> list[Any]:
        """Add objects grouped by role. Return gradients and other objects found through references in C++ objects."""
        saved_before = len(self.graph.saved)
        tensors = list(by_role.get("tensor", ()))
        hidden, nodes = list[Any](), list[tuple[Any, Any]]()
        for i, tensor in enumerate(tensors):  # the loop appends the gradients
            if i % _CLOCK_INTERVAL == 0 and self._limit.reached(_MAX_SHARE):
                break
            if id(tensor) in self._read_ids:
                continue
            self._read_ids.add(id(tensor))
            self._limit.unlimited -= COST
            is_target = self._add(tensor)
            gradient, base, node = self._types.related(tensor)
            if node is not None:
                nodes.append((tensor, node))
                self.computed_ids.add(id(tensor))
            if gradient is not None:
                self._add_hidden(gradient, tensor, self.gradient_ids, hidden)
                self._set_role(gradient, "gradient")
                tensors.append(gradient)
            if is_target and base is not None and base is not tensor:
                self._add_hidden(base, tensor, self.base_ids, hidden)
            self._add_attributes(tensor, hidden)
        for storage in by_role.get("storage", ()):
            self._add(storage, is_tensor=False)
        for role, objects in by_role.items():
            self._by_role.setdefault(role, []).extend(objects)
        new_nodes = self.graph.add(nodes)
        saved = list(self.graph.saved.values())[saved_before:]
        for obj in (obj for obj in saved if self._types.role(type(obj)) == "tensor"):
            self._add(obj)
        # the hooks of nodes that are implemented in C++ are not read
        return [*hidden, *saved, *(node for node in new_nodes if instance_dict(node) is not None)]

    def _add(self, obj: Any, *, is_tensor: bool = True, levels: int = _MAX_WRAPPERS) -> bool:
        object_id = id(obj)
        if self.elements is not None and object_id in self.elements.containers:
            self.elements.separate(object_id)
        if object_id in self.by_id or object_id in self._without_memory or not levels:
            return object_id in self.by_id
        types, wanted_locations = self._types, []
        for storage, location in types.storages(obj) if is_tensor else ((obj, x) for x in types.storage_locations(obj)):
            if self._is_wanted(location.device):
                wanted_locations.append(location)
                if location not in self.references:
                    self.references[location] = self._types.weak_reference(storage) if self.keeps_addresses else None
        wrapped = self._wrapped_tensors(obj) if is_tensor and not wanted_locations else []
        if wrapped:
            self._without_memory[object_id] = obj  # added first, because it may wrap itself
            wrapped = [tensor for tensor in wrapped if self._add(tensor, levels=levels - 1)]
        if not (wanted_locations or wrapped):
            return False
        self.by_id[object_id] = SearchTarget(obj, wanted_locations, is_tensor, wrapped)
        if wrapped:
            self._without_memory.pop(object_id, None)
        return True

    def take_tensors(self, container: Any, items: list[Any]) -> list[Any]:
        self.elements = self.elements or ListElements(self, self._types, self._is_wanted)
        return self.elements.take_tensors(container, items)

    def add_element(self, tensor: Any, container: Any) -> None:
        self.extra.setdefault(id(tensor), []).append(container)
        self._add(tensor)

    def _add_hidden(self, tensor: Any, referrer: Any, ids: set[int], hidden: list[Any]) -> None:
        self._add(tensor)
        self.extra.setdefault(id(tensor), []).append(referrer)
        ids.add(id(tensor))
        hidden.append(tensor)

    def _add_attributes(self, tensor: Any, hidden: list[Any]) -> None:
        attributes = None if gc.get_referents(tensor) else instance_dict(tensor)
        if attributes:  # before PyTorch 2.10, gc does not traverse tensors that C++ objects refer to
            self.extra.setdefault(id(attributes), []).append(tensor)
            hidden.append(attributes)

    def _set_roles(self) -> None:
        targets = self.by_id
        for target in (targets[key] for key in targets.keys() - self._read_ids if targets[key].is_tensor):
            if self._types.related(target.obj)[2] is not None:
                self.computed_ids.add(id(target.obj))
        for target in targets.values():
            if target.wrapped and id(target.obj) in self.computed_ids:  # the tensors inside have no graph
                self._set_role(target.obj, "activation")
        for role, attribute, levels, kind in _OWNED:
            for owner in self._by_role.get(role, []):
                for tensor in contents((instance_dict(owner) or {}).get(attribute), levels):
                    self._set_role(tensor, kind)

    def _set_role(self, obj: Any, kind: Kind) -> None:
        if self.elements is not None and id(obj) in self.elements.containers:
            self.elements.separate(id(obj))
        if id(obj) in self.by_id:
            self._roles[id(obj)] = min(kind, self._roles.get(id(obj), "plain"), key=KINDS.index)

    def set_kinds(self) -> None:
        self.optimizer_ids = set(map(id, self._by_role.get("optimizer", ())))
        self._set_roles()
        for root_id, kind in self._roles.items():
            pending, seen_ids = [root_id], {root_id}
            while pending:
                target = self.by_id[pending.pop()]
                wrapped_ids = {key for key in map(id, target.wrapped) if key in self.by_id and key not in self._roles}
                wrapped_ids -= seen_ids
                seen_ids |= wrapped_ids
                pending += wrapped_ids
                for location in target.locations:
                    self.kinds[location[:2]] = min(kind, self.kinds.get(location[:2], "plain"), key=KINDS.index)

    def _wrapped_tensors(self, tensor: Any) -> list[Any]:
        if not self._types.defines_torch_dispatch(tensor):
            return []
        attributes = list(dict.items(instance_dict(tensor) or {}))
        for base in mro(type(tensor)):
            attributes += slot_values(tensor, base)
        tensors = [(name, value) for name, value in attributes if self._types.role(type(value)) == "tensor"]
        names = flattened_names(type(tensor))
        named_tensors = [value for name, value in tensors if type(name) is str and name in names]
        return named_tensors or [value for _, value in tensors]

    def own_references(self) -> Counter[int]:
        targets = self.by_id.values()
        lists = chain(*self._by_role.values(), *self.extra.values(), *(target.wrapped for target in targets))
        single = chain((target.obj for target in targets), self._without_memory.values(), self.graph.saved.values())
        return Counter(map(id, chain(lists, single)))


class _AutogradGraphs:
    """The autograd graphs of some tensors.

    Attributes:
        nodes: The nodes by id. References to the nodes prevent the reuse of their ids.
        saved: Tensors saved for the backward pass or, if hooks packed them, the packed objects and the hooks, by id.
        unreadable: Whether this version of PyTorch does not expose some of the saved tensors.
    """

    def __init__(self, types: StorageInspector, extra: dict[int, list[Any]], limit: SearchLimit) -> None:
        self._types = types
        self._extra = extra
        self._limit = limit
        self._searched_ids: set[int] = set()
        self.nodes: dict[int, Any] = {}
        self.saved: dict[int, Any] = {}
        self.unreadable = False

    def add(self, tensors_and_nodes: Iterable[tuple[Any, Any]]) -> list[Any]:
        count = len(self.nodes)
        pending: list[Any] = []
        for tensor, node in tensors_and_nodes:
            self._add_nodes([node], tensor, pending)
        while pending and not self._limit.reached():
            if len(self.nodes) > _MAX_NODES:
                self._limit.complete = False
                break
            node = pending.pop()
            self._limit.unlimited -= COST
            self._add_nodes(self._types.next_nodes(node), node, pending)
            self._add_nodes(self._read_saved(node), None, pending)
        return list(self.nodes.values())[count:]

    def _add_nodes(self, nodes: list[Any], referrer: Any, pending: list[Any]) -> None:
        for node in nodes:
            if referrer is not None:
                self._extra.setdefault(id(node), []).append(referrer)
            if id(node) not in self.nodes:
                self.nodes[id(node)] = node
                pending.append(node)

    def _read_saved(self, node: Any) -> list[Any]:
        """Add the objects saved by a node, and return the nodes to which only its hooks refer."""
        saved, unreadable = self._types.saved(node)
        self.unreadable |= unreadable
        hidden_nodes = []
        for obj in saved:
            self.saved[id(obj)] = obj
            self._extra.setdefault(id(obj), []).append(node)
            if is_exactly(obj, (FunctionType, MethodType)) and id(obj) not in self._searched_ids:
                hidden_nodes += self._search_hook(obj)
        return hidden_nodes

    def _search_hook(self, hook: Any) -> list[Any]:
        """Add the saved tensors to which a hook refers, as in checkpointing. Return the nodes to which it refers."""
        nodes, frontier, seen_ids = [], [hook], {id(hook)}
        for _ in range(_MAX_HOOK_DEPTH):
            next_frontier: list[Any] = []
            for obj in frontier:
                self._searched_ids.add(id(obj))
                for part in (obj.__closure__,) if type(obj) is FunctionType else gc.get_referents(obj):
                    if is_saved_tensor(part):
                        self._unpack(part, obj)
                    elif id(part) in seen_ids:
                        continue
                    elif hasattr(type(part), "_raw_saved_tensors"):
                        nodes.append(part)
                    elif len(seen_ids) < _MAX_HOOK_OBJECTS and gc.is_tracked(part) and self._may_lead_to_saved(part):
                        next_frontier.append(part)
                    seen_ids.add(id(part))
            frontier = next_frontier
        return nodes

    def _unpack(self, wrapper: Any, referrer: Any) -> None:
        parts, readable = self._types.saved_parts(wrapper)
        self.unreadable |= not readable
        for part in parts:
            if part is not None:
                self.saved[id(part)] = part
                self._extra.setdefault(id(part), []).append(referrer)

    def _may_lead_to_saved(self, obj: Any) -> bool:
        cls = type(obj)
        return not is_instance(obj, type) and cls is not ModuleType and self._types.role(cls) is None
