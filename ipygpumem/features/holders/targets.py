"""The tensors and storages of a search, with their memory, their use in modules, and their autograd graphs.

Some tensors have no memory because they wrap others (DTensor, torchao's tensors, user-defined subclasses). The wrapped
tensors inherit their role, so the storage of a wrapped parameter is a parameter.
The hook that packs a saved tensor may keep it alive: checkpointing keeps arguments in autograd's saved tensors.
"""

from __future__ import annotations

import gc
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from types import FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from ipygpumem.core.introspection import instance_dict, is_exactly, is_instance, mro, slot_values, type_dict
from ipygpumem.features.holders.model import KINDS, Kind
from ipygpumem.sources.storages import is_saved_tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ipygpumem.features.holders.referrers import SearchLimit
    from ipygpumem.sources.storages import StorageLocation, TorchTypes

_MAX_WRAPPERS = 5
"""Maximum nesting depth: a distributed parameter may be quantized, and wrapped in a user-defined class."""
_OWNED: tuple[tuple[str, str, int, Kind], ...] = (
    ("module", "_parameters", 1, "parameter"),
    ("module", "_buffers", 1, "buffer"),
    ("optimizer", "state", 3, "optimizer state"),
    ("optimizer", "param_groups", 3, "parameter"),
)
"""Role of the owner, its attribute, the nesting depth of the containers, and the kind of the tensors in them."""
_NAME_ATTRIBUTES = ("tensor_data_names", "optional_tensor_data_names")
"""Attributes in which torchao's classes name wrapped tensors, as their ``__tensor_flatten__`` is generated."""
_MAX_NODES = 300_000
"""A loop that accumulates a loss with its graph can create millions of nodes."""
_MAX_HOOK_OBJECTS = 500
"""Number of objects to search per hook: checkpointing needs about a dozen."""
_MAX_HOOK_DEPTH = 7
"""A path may contain a function, its closure, a cell, an object, its dict, a list, and a saved tensor."""


@dataclass(slots=True)
class Target:
    """A tensor with its memory and the tensors it wraps, or a storage that Python code refers to directly."""

    obj: Any
    memory: list[StorageLocation]
    is_tensor: bool
    wrapped: list[Any]


class Targets:
    """The targets of one search.

    Attributes:
        by_id: The targets by the id of the tensor or storage.
        kinds: The use of each storage of a module or an optimizer, by device and address.
        extra: Referrers unknown to the collector, by the id of the referent.
        base_ids: Ids of the bases of views.
        references: A weak reference to each storage by its location, which prevents reuse of the address.
    """

    def __init__(
        self, types: TorchTypes, is_wanted: Callable[[str], bool], by_role: dict[str, list[Any]], limit: SearchLimit
    ) -> None:
        tensors = by_role.get("tensor", [])
        self._types = types
        self._by_role = by_role
        self._is_wanted = is_wanted
        self._without_memory: dict[int, Any] = {}
        self._roles: dict[int, Kind] = {}
        self.by_id: dict[int, Target] = {}
        self.kinds: dict[tuple[str, int], Kind] = {}
        self.extra: dict[int, list[Any]] = {}
        self.gradient_ids: set[int] = set()
        self.base_ids: set[int] = set()
        self.optimizer_ids = set(map(id, by_role.get("optimizer", [])))
        self.references: dict[StorageLocation, Any] = {}
        for tensor in tensors:
            self._add(tensor)
        for storage in by_role.get("storage", []):
            self._add(storage, is_tensor=False)
        self._add_gradients(tensors)
        self._add_bases()
        self._set_roles()
        self._set_kinds()
        self.graph = _AutogradGraph(types, tensors, self.extra, limit)
        for obj in self.graph.saved.values():
            if types.role(type(obj)) == "tensor":
                self._add(obj)

    def _add(self, obj: Any, *, is_tensor: bool = True, levels: int = _MAX_WRAPPERS) -> bool:
        """Add a tensor or storage if it uses memory on the wanted devices, and return whether it does."""
        object_id = id(obj)
        if object_id in self.by_id or object_id in self._without_memory or not levels:
            return object_id in self.by_id
        locations = [] if is_tensor else [(obj, location) for location in self._types.storage_locations(obj)]
        memory = []
        for storage, location in self._types.storages(obj) if is_tensor else locations:
            if self._is_wanted(location.device):
                memory.append(location)
                if location not in self.references:
                    self.references[location] = self._types.weak_reference(storage)
        wrapped = self._wrapped_tensors(obj) if is_tensor and not memory else []
        if wrapped:
            self._without_memory[object_id] = obj  # added first, because it may wrap itself
            wrapped = [tensor for tensor in wrapped if self._add(tensor, levels=levels - 1)]
        if memory or wrapped:
            self.by_id[object_id] = Target(obj, memory, is_tensor, wrapped)
            self._without_memory.pop(object_id, None)
        return object_id in self.by_id

    def _add_gradients(self, tensors: list[Any]) -> None:
        for tensor in tensors:
            gradient = self._types.gradient(tensor)
            if gradient is not None:
                self._add(gradient)
                self._set_role(gradient, "gradient")
                self.extra.setdefault(id(gradient), []).append(tensor)
                self.gradient_ids.add(id(gradient))

    def _add_bases(self) -> None:
        """Add the bases of views, which are kept alive through C++ references that the collector does not know."""
        for object_id, target in list(self.by_id.items()):
            base = self._types.base(target.obj) if target.is_tensor else None
            if base is not None and id(base) != object_id:
                self._add(base)
                self.base_ids.add(id(base))
                self.extra.setdefault(id(base), []).append(target.obj)

    def _set_roles(self) -> None:
        for target in self.by_id.values():
            if target.wrapped and self._types.grad_fn(target.obj) is not None:  # the tensors inside have no graph
                self._set_role(target.obj, "activation")
        for role, attribute, levels, kind in _OWNED:
            for owner in self._by_role.get(role, []):
                for tensor in _contents((instance_dict(owner) or {}).get(attribute), levels):
                    self._set_role(tensor, kind)

    def _set_role(self, obj: Any, kind: Kind) -> None:
        """Record the kind of a target; if there are several, the first in `KINDS`."""
        if id(obj) in self.by_id:
            self._roles[id(obj)] = min(kind, self._roles.get(id(obj), "plain"), key=KINDS.index)

    def _set_kinds(self) -> None:
        """Assign the kind of each tensor to its storage, and that of a wrapper to wrapped tensors without a kind."""
        for root_id, kind in self._roles.items():
            pending, seen_ids = [root_id], {root_id}
            while pending:
                target = self.by_id[pending.pop()]
                wrapped_ids = self.by_id.keys() & map(id, target.wrapped)
                wrapped_ids -= self._roles.keys() | seen_ids
                seen_ids |= wrapped_ids
                pending += wrapped_ids
                for memory in target.memory:
                    location = (memory.device, memory.address)
                    self.kinds[location] = min(kind, self.kinds.get(location, "plain"), key=KINDS.index)

    def _wrapped_tensors(self, tensor: Any) -> list[Any]:
        """Return the tensors in the attributes of a tensor without storage.

        Classes that support torch.compile list them in ``__tensor_flatten__``. In other classes, use all attributes.
        """
        if not self._types.dispatches(tensor):
            return []
        attributes = list(dict.items(instance_dict(tensor) or {}))
        for base in mro(type(tensor)):
            attributes += slot_values(tensor, base)
        tensors = [(name, value) for name, value in attributes if self._types.role(type(value)) == "tensor"]
        names = _flattened_names(type(tensor))
        named = [value for name, value in tensors if type(name) is str and name in names]
        return named or [value for _, value in tensors]

    def own_references(self) -> Counter[int]:
        """Count the references to each object in the lists of this instance, by id."""
        targets = self.by_id.values()
        lists = chain(*self._by_role.values(), *self.extra.values(), *(target.wrapped for target in targets))
        single = chain((target.obj for target in targets), self._without_memory.values(), self.graph.saved.values())
        return Counter(map(id, chain(lists, single)))


def _flattened_names(cls: type) -> set[str]:
    """Return the possible names of wrapped tensors: the string constants in ``__tensor_flatten__``."""
    names: set[str] = set()
    for namespace in map(type_dict, mro(cls)):
        flatten = namespace.get("__tensor_flatten__")
        constants = flatten.__code__.co_consts if type(flatten) is FunctionType else ()
        names.update(_strings((constants, *(namespace.get(attribute) for attribute in _NAME_ATTRIBUTES))))
    return names


def _strings(value: Any) -> list[str]:
    if type(value) is str:
        return [value]
    return [text for part in value for text in _strings(part)] if is_exactly(value, (tuple, list)) else []


def _contents(container: Any, levels: int) -> list[Any]:
    """Return the values in nested dicts, lists and tuples."""
    base: Any = next((base for base in (dict, list, tuple) if is_instance(container, base)), None)
    if base is None:
        return [container]
    values = list(dict.values(container) if base is dict else base.__iter__(container))
    return [item for value in values for item in _contents(value, levels - 1)] if levels else []


class _AutogradGraph:
    """The autograd graphs of some tensors. The nodes are kept alive here so that their ids are not reused.

    ``saved`` contains the saved tensors, the objects into which hooks packed them, and the hooks, by id. ``unreadable``
    is True if this version of PyTorch does not expose some of the saved tensors.
    """

    def __init__(
        self, types: TorchTypes, tensors: Iterable[Any], extra: dict[int, list[Any]], limit: SearchLimit
    ) -> None:
        self._types = types
        self._extra = extra
        self._searched_ids: set[int] = set()
        self.nodes: dict[int, Any] = {}
        self.saved: dict[int, Any] = {}
        self.unreadable = False
        pending: list[Any] = []
        for tensor in tensors:
            node = types.grad_fn(tensor)
            if node is not None:
                self._add_nodes([node], tensor, pending)
        while pending and not limit.reached():
            if len(self.nodes) > _MAX_NODES:
                limit.complete = False
                return
            node = pending.pop()
            self._add_nodes(types.next_nodes(node), node, pending)
            self._add_nodes(self._read_saved(node), None, pending)

    def _add_nodes(self, nodes: list[Any], referrer: Any, pending: list[Any]) -> None:
        for node in nodes:
            if referrer is not None:
                self._extra.setdefault(id(node), []).append(referrer)
            if id(node) not in self.nodes:
                self.nodes[id(node)] = node
                pending.append(node)

    def _read_saved(self, node: Any) -> list[Any]:
        """Record the objects saved by a node, and return nodes that are reachable only through its hooks."""
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
        """Record the saved tensors that a hook refers to, hidden from the collector, and return its graph nodes."""
        nodes, frontier = [], [hook]
        seen_ids = {id(hook)}
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
                    elif len(seen_ids) < _MAX_HOOK_OBJECTS and gc.is_tracked(part) and self._may_lead_on(part):
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

    def _may_lead_on(self, obj: Any) -> bool:
        cls = type(obj)
        return not is_instance(obj, type) and cls is not ModuleType and self._types.role(cls) is None
