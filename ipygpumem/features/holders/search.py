"""The walk of the holders: from every tensor up to whoever keeps it, and from the roots down again to give it a name.

Upwards the whole heap is searched, so that nothing that Python's collector sees is missed; downwards only what lies on
a way to a tensor is looked at and named. Nothing of the user's is called, nothing collected, no device asked.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from ipygpumem.core.garbage_collection import collector_paused
from ipygpumem.features.holders.autograd_graph import AutogradGraph
from ipygpumem.features.holders.frames import locals_of, running
from ipygpumem.features.holders.heap import Heap
from ipygpumem.features.holders.naming import RANK, Named, Names, Roles, Root
from ipygpumem.features.holders.referrers import Ways
from ipygpumem.features.holders.targets import Targets
from ipygpumem.features.holders.unreachable import alive, outermost
from ipygpumem.features.holders.untracked import through_arrays, through_classes
from ipygpumem.sources.storages import TorchTypes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipygpumem.features.holders.model import Kind, Place
    from ipygpumem.sources.storages import StorageLocation

__all__ = ["NO_NAME", "Reach", "Root", "Walk", "walk"]

NO_NAME = "no name in Python"
_LOOKS = 4
"""Second looks: an array in a class in an array is as far as anybody goes."""
_WORTH = 4096
"""Bytes that are worth one: PyTorch itself has some numbers that nobody names."""
_SPARE = 0.4
"""Part of the time after which there is none for a second look, and half of what that may take it to."""
_UNREADABLE = "what autograd saved cannot be read on this torch: it stands under what no Python object was found for"


@dataclass(frozen=True, slots=True)
class Reach:
    """One storage and its names, as `ipygpumem.features.holders.model.Storage` has them; ``row`` is the holder's name.

    ``keepers``: of what a graph keeps, every row with a tensor that has such a graph.
    """

    memory: StorageLocation
    kind: Kind
    name: str
    row: str
    place: Place
    also: tuple[str, ...]
    places: tuple[Place, ...]
    graph: bool
    tensor: str
    view: int | None
    keepers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Walk:
    """What one walk found: storages, objects looked at, seconds; ``notes`` are sentences for the reader."""

    reached: list[Reach]
    objects: int
    seconds: float
    complete: bool
    notes: tuple[str, ...]


def walk(
    roots: Sequence[Root], torch: Any, wanted: Callable[[str], bool], *, limit: float = 10.0, threads: bool = True
) -> Walk:
    """Find who holds the memory.

    Args:
        roots: Where names begin, in any order.
        torch: The module.
        wanted: Which devices, by name.
        limit: Seconds after which it stops, and says so.
        threads: Whether the frames of running threads are looked into, too.
    """
    with collector_paused():
        walker = _Walker(torch, wanted, limit)
        try:
            return walker.run(list(roots), threads=threads)
        finally:
            walker.heap.release()


class _Walker:
    def __init__(self, torch: Any, wanted: Callable[[str], bool], limit: float) -> None:
        self.start = time.perf_counter()
        self.deadline = self.start + limit
        self.types = TorchTypes(torch)
        self.wanted = wanted
        self.heap = Heap(self.deadline, _frozen_seeds)
        self.targets: Targets
        self.complete = True
        self.looked = False
        self.notes: list[str] = []

    def run(self, roots: list[Root], *, threads: bool) -> Walk:
        with self.types.without_overrides():
            found = self.heap.by_role(self.types.role)
            reached = []
            if found.get("tensor") or found.get("storage"):
                self.heap.connect()  # first: a look at an object can give it a dict that it did not have
                reached = self._search(found, roots, threads=threads)
        complete = self.complete and self.heap.complete
        seconds = time.perf_counter() - self.start
        return Walk(reached, len(self.heap.objects), seconds, complete, tuple(self.notes))

    def _search(self, found: dict[str, list[Any]], roots: list[Root], *, threads: bool) -> list[Reach]:
        tensors, optimizers = found.get("tensor", []), found.get("optimizer", [])
        self.targets = targets = Targets(self.types, self.wanted, found)
        graph = self._graph(tensors)
        if not targets.things:
            return []
        ways = Ways({key: target.thing for key, target in targets.things.items()}, targets.extra)
        ways.things.update(graph.nodes)
        terminals = {id(root.thing) for root in roots if root.stops}
        ways.search(self.heap, terminals, self.deadline)
        if threads:
            roots += self._running(ways)
        roles = Roles(targets.things.keys(), targets.gradients, graph.nodes.keys(), {id(one) for one in optimizers})
        names = self._named(ways, roles, roots)
        for _ in range(_LOOKS):
            fresh = self._look_again(ways, self._unnamed(ways, names, graph), roots) if self.complete else []
            if not fresh:
                break
            ways.search(self.heap, terminals, self.deadline, fresh)
            names = self._named(ways, roles, roots)
        self._lost(ways, names, graph, found)
        return self._reached(names)

    def _named(self, ways: Ways, roles: Roles, roots: list[Root]) -> Names:
        names = Names(ways, roles, self.deadline)
        names.descend(roots)
        self.complete = self.complete and self.heap.complete and ways.complete and names.complete
        return names

    def _look_again(self, ways: Ways, lost: set[int], roots: list[Root]) -> list[int]:
        """Who may hold them all the same, by id."""
        targets = [self.targets.things[key] for key in lost if key in self.targets.things]
        if (
            sum(one.size for target in targets for one in target.memory) < _WORTH
            or time.perf_counter() > self.start + (self.deadline - self.start) * _SPARE
        ):
            return []
        fresh = through_classes(lost, ways, self.heap)
        if fresh or self.looked:
            return fresh
        self.looked = True
        return through_arrays(
            lost,
            ways,
            self.heap,
            self.start + (self.deadline - self.start) * 2 * _SPARE,
            [root.thing for root in roots],
        )

    def _graph(self, tensors: list[Any]) -> AutogradGraph:
        graph = AutogradGraph(self.types, tensors, self.deadline)
        things = {id(one): one for one in tensors} | graph.keepers
        for key, thing in graph.saved.items():
            if self.types.role(type(thing)) == "tensor":
                self.targets.add(thing, tensor=True)
                things[key] = thing
        for child, parent in graph.edges:
            self.targets.extra.setdefault(child, []).append(graph.nodes.get(parent) or things[parent])
        if graph.unread:
            self.notes.append(_UNREADABLE)
        self.complete = self.complete and graph.complete
        return graph

    @staticmethod
    def _running(ways: Ways) -> list[Root]:
        """Frames of running threads that hold something; not our own."""
        return [Root(f"thread {thread}", frame, "thread") for thread, frame in running() if ways.hang(frame)]

    def _unnamed(self, ways: Ways, names: Names, graph: AutogradGraph) -> set[int]:
        """What no root reaches, by id."""
        told = names.masks.keys() | names.stops | graph.nodes.keys()
        lost = ways.things.keys() - told
        # a storage's Python object lives as long as the storage once somebody has looked: it is not what keeps it
        targets = self.targets
        things = targets.things
        bare = {key for key in lost if key in things and not things[key].tensor and key not in targets.extra}
        above = self.heap.parents(targets.bases)
        targets.bases = {key for key, some in zip(targets.bases, above, strict=True) if not some}
        bare = {key for key, some in zip(bare, self.heap.parents(bare), strict=True) if not some}
        for key in bare:
            del things[key]
        return lost - bare

    def _lost(self, ways: Ways, names: Names, graph: AutogradGraph, found: dict[str, list[Any]]) -> None:
        lost = self._unnamed(ways, names, graph)
        if lost and self.complete:  # else the others may have a name that was not come to
            living = alive(lost, ways, self._held(found, graph))
            names.adopt(outermost([key for key in lost if key in living], ways), NO_NAME, "elsewhere")
            rest = [key for key in lost if key not in living]
            names.adopt(outermost(rest, ways), "unreachable cycles", "garbage")

    def _held(self, found: dict[str, list[Any]], graph: AutogradGraph) -> Counter[int]:
        """How often each object is in our own lists, besides those that hold all."""
        lists = (*found.values(), graph.saved.values(), graph.keepers.values())
        return self.targets.held() + Counter(map(id, chain(*lists)))

    # the result

    def _reached(self, names: Names) -> list[Reach]:
        groups: dict[StorageLocation, list[int]] = {}
        for key, target in self.targets.things.items():
            for memory in target.memory if key in names.named else ():
                groups.setdefault(memory, []).append(key)
        return [self._reach(memory, keys, names) for memory, keys in groups.items()]

    def _reach(self, memory: StorageLocation, keys: list[int], names: Names) -> Reach:
        things, bases = self.targets.things, self.targets.bases

        def order(key: int) -> tuple[Any, ...]:
            one = names.named[key]
            return one.graph, RANK[one.place], one.depth, not things[key].tensor

        keys = sorted(keys, key=order)
        first: Named = names.named[keys[0]]
        of_tensors = [key for key in keys if things[key].tensor]
        tensors = [things[key].thing for key in of_tensors]
        told = [self.types.describe(tensor) for tensor in tensors]
        # a tensor that only its own views keep shows nobody more than they do
        spans = [span for key, (_, span) in zip(of_tensors, told, strict=True) if key not in bases] or [None]
        view = max((span or 0 for span in spans), default=0)
        kind = self.targets.kinds.get((memory.device, memory.address))
        if kind is None:
            made = first.graph or any(self.types.grad_fn(tensor) is not None for tensor in tensors)
            kind = "activation" if made else "plain"
        return Reach(
            memory,
            kind,
            names.text(keys[0]),
            first.row,
            first.place,
            names.also(keys),
            names.places(keys),
            first.graph,
            max(told, key=lambda one: one[1] or 0)[0] if told else "storage",
            view if spans and None not in spans and view < memory.size else None,
            names.keepers(keys) if first.graph else (),
        )


def _frozen_seeds() -> list[Any]:
    """Where objects may be that no other tells of: modules, and the locals of running code."""
    return [sys.modules, *(value for _, frame in running() for _, value in locals_of(frame))]
