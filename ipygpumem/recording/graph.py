"""The autograd graph above tensors: which nodes a result keeps, and what they saved for backward."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.probes.storages import Types

__all__ = ["AutogradGraph"]

_MOST = 300_000
"""Nodes of one walk: a loop that never let go of its graph may have millions."""


class AutogradGraph:
    """The nodes above some tensors.

    Attributes:
        nodes: Every node by its id, kept alive as long as this is, and so are their wrappers' ids.
        saved: What they hold besides each other: tensors, or what a hook made of them.
        edges: (child, parent) ids: what each tensor or node keeps.
        unread: Whether some saved tensors cannot be read on this torch.
        complete: Whether all nodes were seen.
    """

    def __init__(self, types: Types, tensors: Iterable[Any], deadline: float) -> None:
        self.nodes: dict[int, Any] = {}
        self.saved: dict[int, Any] = {}
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
            self._read(types, node)
            for following in types.following(node):
                self.edges.append((id(following), id(node)))
                if id(following) not in self.nodes:
                    self.nodes[id(following)] = following
                    frontier.append(following)

    def _read(self, types: Types, node: Any) -> None:
        saved, unread = types.saved(node)
        self.unread |= unread
        for one in saved:
            self.saved[id(one)] = one
            self.edges.append((id(one), id(node)))
