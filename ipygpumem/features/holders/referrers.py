"""The way up: every object from which a tensor can be reached, and who among them refers to whom."""

from __future__ import annotations

import time
import types
from typing import TYPE_CHECKING, Any

from ipygpumem.features.holders.labels import global_names, is_one_of, isinstance_of, labels
from ipygpumem.features.holders.naming import Root

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ipygpumem.features.holders.heap import Heap

__all__ = ["Ways"]

_MOST = 400_000
"""Objects on the ways to tensors: those that are named one by one."""
_DEFINES = (types.FunctionType, types.FrameType)


class Ways:
    """The objects on the ways to some targets.

    Attributes:
        things: The objects by id, kept alive as long as this is.
        kids: For each id the ids that it refers to, as far as they are here, one for each reference.
        extra: References that the collector does not see: what a C object (a tensor, a node of the autograd graph)
            keeps, by the id of what is kept.
        complete: Whether the search came to its end.
    """

    def __init__(self, targets: Mapping[int, Any], extra: dict[int, list[Any]]) -> None:
        self.things: dict[int, Any] = dict(targets)
        self.kids: dict[int, list[int]] = {}
        self.extra = extra
        self.complete = True

    def search(
        self, heap: Heap, terminals: Collection[int], deadline: float, frontier: list[int] | None = None
    ) -> None:
        """Go up from the targets to whoever refers to them, and on from there; not beyond the terminals (ids).

        ``frontier``: ids of things that were put here since, to go up from those alone.
        """
        things, kids = self.things, self.kids
        frontier = list(things) if frontier is None else frontier
        while frontier:
            if len(things) > _MOST or time.perf_counter() > deadline:
                self.complete = False
                return
            following = []
            for child, found in zip(frontier, heap.parents(frontier), strict=True):
                thing = things[child]
                defines = _DEFINES if type(thing) is dict else ()
                named = isinstance_of(thing, type)
                for parent in (*found, *self.extra.get(child, ())):
                    kind = type(parent)
                    if kind is Root or (
                        defines and is_one_of(parent, defines) and any(thing is one for one in global_names(parent))
                    ):
                        continue  # a namespace is not kept by the functions that were defined there
                    if named and not _names(parent):
                        continue  # a class is kept by whoever names it, not by its instances and subclasses
                    key = id(parent)
                    if key not in things:
                        things[key] = parent
                        if key not in terminals:
                            following.append(key)
                    kids.setdefault(key, []).append(child)
            frontier = following

    def hang(self, frame: Any) -> bool:
        """Put a running frame over its locals, which no reference of the collector's tells. Whether any is here."""
        inside = dict.fromkeys(key for key, _ in labels(frame, "object", ()) if key in self.things)
        if inside:
            self.things[id(frame)] = frame
            self.kids[id(frame)] = list(dict.fromkeys([*self.kids.get(id(frame), ()), *inside]))
        return bool(inside)


def _names(parent: Any) -> bool:
    return isinstance_of(parent, dict) or is_one_of(parent, (list, types.CellType))
