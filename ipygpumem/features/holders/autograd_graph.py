"""The autograd graphs that tensors keep alive: their nodes, and what these saved for the backward pass.

A hook that packed a saved tensor may keep it itself: a checkpoint keeps its arguments in autograd's own wrappers.
"""

from __future__ import annotations

import gc
import time
import types
from typing import TYPE_CHECKING, Any

from ipygpumem.core.interpreter import is_exactly, is_instance
from ipygpumem.sources.storages import is_saved_tensor

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from ipygpumem.features.holders.naming import NamedObject
    from ipygpumem.sources.storages import TorchTypes

__all__ = ["AutogradGraph", "graph_holders"]

_MAX_NODES = 300_000
"""A loop that accumulates a loss with its graph may have created millions."""
_MAX_HOOK_OBJECTS = 500
"""Objects behind one hook that are searched for wrappers: a checkpoint has a dozen."""
_MAX_HOOK_DEPTH = 7
"""A function, its closure, a cell, an object, its dict, a list, a wrapper."""
_MAX_GRAPH_HOLDERS = 4


class AutogradGraph:
    """The nodes above some tensors.

    Attributes:
        nodes: The nodes by id, kept alive because the collector does not know them and ids are reused.
        saved: What the nodes keep besides each other: tensors, or what a hook made of them, and the hooks.
        hook_objects: Objects behind hooks that keep autograd's wrappers, by id.
        edges: Ids of (child, parent): what each tensor, node or object keeps.
        unreadable: Whether some saved tensors cannot be read in this version of PyTorch.
        complete: Whether all nodes were visited.
    """

    def __init__(self, tensor_types: TorchTypes, tensors: Iterable[Any], deadline: float) -> None:
        self._types = tensor_types
        self._searched_ids: set[int] = set()
        self.nodes: dict[int, Any] = {}
        self.saved: dict[int, Any] = {}
        self.hook_objects: dict[int, Any] = {}
        self.edges: list[tuple[int, int]] = []
        self.unreadable = False
        self.complete = True
        pending: list[Any] = []
        for tensor in tensors:
            node = tensor_types.grad_fn(tensor)
            if node is not None:
                self.edges.append((id(node), id(tensor)))
                self._add_nodes([node], pending)
        while pending:
            if len(self.nodes) > _MAX_NODES or time.perf_counter() > deadline:
                self.complete = False
                return
            node = pending.pop()
            hidden_nodes = self._read_saved(node)
            next_nodes = tensor_types.next_nodes(node)
            self.edges += [(id(next_node), id(node)) for next_node in next_nodes]
            self._add_nodes([*next_nodes, *hidden_nodes], pending)

    def _add_nodes(self, nodes: list[Any], pending: list[Any]) -> None:
        for node in nodes:
            if id(node) not in self.nodes:
                self.nodes[id(node)] = node
                pending.append(node)

    def _read_saved(self, node: Any) -> list[Any]:
        """Record what a node saved; return nodes that are reachable only through its hooks."""
        saved, unreadable = self._types.saved(node)
        self.unreadable |= unreadable
        hidden_nodes = []
        for obj in saved:
            self.saved[id(obj)] = obj
            self.edges.append((id(obj), id(node)))
            if is_exactly(obj, (types.FunctionType, types.MethodType)) and id(obj) not in self._searched_ids:
                hidden_nodes += self._search_hook(obj)
        return hidden_nodes

    def _search_hook(self, hook: Any) -> list[Any]:
        """Find the wrappers and nodes that a hook keeps: the collector does not see the tensors inside a wrapper."""
        nodes, level = [], [hook]
        seen = {id(hook)}
        for _ in range(_MAX_HOOK_DEPTH):
            next_level: list[Any] = []
            for obj in level:
                self._searched_ids.add(id(obj))
                for part in (obj.__closure__,) if type(obj) is types.FunctionType else gc.get_referents(obj):
                    is_new = id(part) not in seen
                    if is_saved_tensor(part):
                        self._unpack(part, obj)
                    elif is_new and hasattr(type(part), "_raw_saved_tensors"):
                        nodes.append(part)
                    elif is_new and len(seen) < _MAX_HOOK_OBJECTS and gc.is_tracked(part) and self._may_lead_on(part):
                        next_level.append(part)
                    seen.add(id(part))
            level = next_level
        return nodes

    def _unpack(self, wrapper: Any, referrer: Any) -> None:
        parts, readable = self._types.saved_parts(wrapper)
        self.unreadable |= not readable
        for part in parts:
            if part is not None:
                self.saved[id(part)] = part
                self.hook_objects[id(referrer)] = referrer
                self.edges.append((id(part), id(referrer)))

    def _may_lead_on(self, obj: Any) -> bool:
        cls = type(obj)
        return not is_instance(obj, type) and cls is not types.ModuleType and self._types.role(cls) is None


def graph_holders(
    named: Mapping[int, NamedObject],
    children: Mapping[int, list[int]],
    node_ids: Collection[int],
    tensor_ids: Collection[int],
) -> dict[int, dict[str, None]]:
    """For each object that only autograd graphs keep alive: the holders of tensors with such a graph, at most four."""
    holders: dict[int, dict[str, None]] = {}
    pending: list[tuple[int, str]] = []
    for object_id in {*node_ids, *tensor_ids}:
        if object_id in named and not named[object_id].graph:
            holder, is_node = named[object_id].holder, object_id in node_ids
            pending += [(child, holder) for child in children.get(object_id, ()) if is_node or child in node_ids]
    while pending:
        object_id, holder = pending.pop()
        if object_id not in named or not named[object_id].graph:
            continue
        own_holders = holders.setdefault(object_id, {})
        if holder not in own_holders and len(own_holders) < _MAX_GRAPH_HOLDERS:
            own_holders[holder] = None
            pending += [(child_id, holder) for child_id in children.get(object_id, ())]
    return holders
