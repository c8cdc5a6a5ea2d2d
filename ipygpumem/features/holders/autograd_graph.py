"""The autograd graph above tensors: which nodes a result keeps, and what they saved for backward.

Where a hook packed what was saved, the hook may keep it: a checkpoint has its arguments in wrappers of autograd's own.
"""

from __future__ import annotations

import gc
import time
import types as python_types
from typing import TYPE_CHECKING, Any

from ipygpumem.features.holders.labels import is_one_of, isinstance_of
from ipygpumem.sources.storages import is_saved_tensor

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.sources.storages import TorchTypes

__all__ = ["AutogradGraph"]

_MOST = 300_000
"""Nodes of one walk: a loop that never let go of its graph may have millions."""
_BEHIND = 500
"""Objects behind one hook that are looked at for wrappers: a checkpoint has a dozen."""
_LEVELS = 7
"""How far behind: a function, its closure, a cell, an object, its dict, a list, a wrapper."""


class AutogradGraph:
    """The nodes above some tensors.

    Attributes:
        nodes: Every node by its id, kept alive as long as this is, and so are their wrappers' ids.
        saved: What they hold besides each other: tensors, or what a hook made of them, and the hook.
        keepers: What a hook keeps that has such wrappers, by id.
        edges: (child, parent) ids: what each tensor or node keeps.
        unread: Whether some saved tensors cannot be read on this torch.
        complete: Whether all nodes were seen.
    """

    def __init__(self, types: TorchTypes, tensors: Iterable[Any], deadline: float) -> None:
        self.nodes: dict[int, Any] = {}
        self.saved: dict[int, Any] = {}
        self.keepers: dict[int, Any] = {}
        self._behind: set[int] = set()
        self.edges: list[tuple[int, int]] = []
        self.unread = False
        self.complete = True
        frontier = []
        for tensor in tensors:
            node = types.grad_fn(tensor)
            if node is not None:
                self.edges.append((id(node), id(tensor)))
                if id(node) not in self.nodes:
                    self.nodes[id(node)] = node
                    frontier.append(node)
        while frontier:
            if len(self.nodes) > _MOST or time.perf_counter() > deadline:
                self.complete = False
                return
            node = frontier.pop()
            hidden = self._read(types, node)
            following = types.next_nodes(node)
            self.edges += [(id(one), id(node)) for one in following]
            for one in (*following, *hidden):
                if id(one) not in self.nodes:
                    self.nodes[id(one)] = one
                    frontier.append(one)

    def _read(self, types: TorchTypes, node: Any) -> list[Any]:
        """What a node saved; and the nodes that its hooks have beside the graph."""
        saved, unread = types.saved(node)
        self.unread |= unread
        hidden = []
        for one in saved:
            self.saved[id(one)] = one
            self.edges.append((id(one), id(node)))
            if _may_keep(one) and id(one) not in self._behind:
                hidden += self._look_behind(types, one)
        return hidden

    def _look_behind(self, types: TorchTypes, hook: Any) -> list[Any]:
        """Find the wrappers and nodes that a hook keeps: those tensors Python's collector does not see."""
        found, level = [], [hook]
        seen = {id(hook)}
        for _ in range(_LEVELS):
            below: list[Any] = []
            for thing in level:
                self._behind.add(id(thing))
                for part in gc.get_referents(thing) if type(thing) is not _FUNCTION else (thing.__closure__,):
                    if is_saved_tensor(part):
                        self._unpack(types, part, thing)
                    elif id(part) not in seen and hasattr(type(part), "_raw_saved_tensors"):
                        found.append(part)
                    elif (
                        id(part) not in seen and len(seen) < _BEHIND and gc.is_tracked(part) and _leads_on(types, part)
                    ):
                        below.append(part)
                    seen.add(id(part))
            level = below
        return found

    def _unpack(self, types: TorchTypes, wrapper: Any, keeper: Any) -> None:
        parts, known = types.saved_parts(wrapper)
        self.unread |= not known
        for one in parts:
            if one is not None:
                self.saved[id(one)] = one
                self.keepers[id(keeper)] = keeper
                self.edges.append((id(one), id(keeper)))


def _may_keep(thing: Any) -> bool:
    """Whether this is a hook: what a hook made of a tensor is looked at by the collector alone."""
    return is_one_of(thing, (_FUNCTION, python_types.MethodType))


def _leads_on(types: TorchTypes, thing: Any) -> bool:
    kind = type(thing)
    return not isinstance_of(thing, type) and kind is not python_types.ModuleType and types.role(kind) is None


_FUNCTION = python_types.FunctionType
