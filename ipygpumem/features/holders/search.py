"""The search for what keeps tensors alive.

It goes upwards from every tensor through everything that refers to it, so that nothing that Python's collector knows is
missed, and then downwards from the roots to give names to what was found. No code of the user runs, nothing is
collected, and no GPU is asked.
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from ipygpumem.core.interpreter import collector_paused
from ipygpumem.features.holders.autograd_graph import AutogradGraph, graph_holders
from ipygpumem.features.holders.heap import Heap
from ipygpumem.features.holders.naming import PLACE_ORDER, ObjectNames
from ipygpumem.features.holders.referrers import ReferrerGraph, held_from_outside, outermost_first
from ipygpumem.features.holders.roots import thread_roots
from ipygpumem.features.holders.targets import Targets
from ipygpumem.features.holders.untracked import add_array_referrers, add_class_referrers
from ipygpumem.sources.storages import TorchTypes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ipygpumem.features.holders.model import Kind, Place
    from ipygpumem.features.holders.roots import Root
    from ipygpumem.sources.storages import StorageLocation

__all__ = ["NO_NAME", "NamedStorage", "SearchResult", "find_storages", "search_holders"]

NO_NAME = "no name in Python"
"""The holder of objects that are alive, although no name leads to them."""
_MAX_SECOND_LOOKS = 4
"""An array in a class in an array takes three."""
_MIN_UNNAMED_BYTES = 4096
"""Unnamed bytes that are worth a second look: PyTorch itself keeps some small tensors."""
_SECOND_LOOK_SHARE = 0.4
"""Share of the time limit after which there is no second look; one may take until twice that share."""
_UNREADABLE = (
    "this version of PyTorch does not show all tensors that autograd graphs saved: the others are counted as not"
    " reachable from Python"
)


@dataclass(frozen=True, slots=True)
class NamedStorage:
    """One storage and its names; see `ipygpumem.features.holders.model.Storage`.

    Attributes:
        graph_holders: If only an autograd graph keeps it: every holder of a tensor with such a graph.
    """

    memory: StorageLocation
    kind: Kind
    name: str
    holder: str
    place: Place
    other_names: tuple[str, ...]
    places: tuple[Place, ...]
    graph: bool
    tensor: str
    view: int | None
    graph_holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The storages that were found, and how the search went.

    Attributes:
        references: A weak reference to each storage by its location, for a baseline.
        objects: Python objects examined.
        notes: Sentences for the user.
    """

    storages: list[NamedStorage]
    references: dict[StorageLocation, Any]
    objects: int
    seconds: float
    complete: bool
    notes: tuple[str, ...]


def search_holders(
    roots: Sequence[Root],
    torch: Any,
    is_wanted: Callable[[str], bool],
    *,
    limit: float = 10.0,
    threads: bool = True,
) -> SearchResult:
    """Find what keeps each storage alive.

    Args:
        roots: Where names begin, in any order.
        torch: The module ``torch``.
        is_wanted: Whether a device of this name is of interest.
        limit: Time limit in seconds.
        threads: Whether to look into the local variables of running code, too.
    """
    with _search(torch, is_wanted, limit) as search:
        return search.run(list(roots), threads=threads)


def find_storages(torch: Any, is_wanted: Callable[[str], bool], *, limit: float = 5.0) -> dict[StorageLocation, Any]:
    """A weak reference to every storage, without searching for its names."""
    with _search(torch, is_wanted, limit) as search:
        search.read_targets()
        return search.targets.references


@contextlib.contextmanager
def _search(torch: Any, is_wanted: Callable[[str], bool], limit: float) -> Iterator[_HolderSearch]:
    with collector_paused():
        search = _HolderSearch(torch, is_wanted, limit)
        try:
            with search.types.without_overrides():
                yield search
        finally:
            search.heap.release()


class _HolderSearch:
    def __init__(self, torch: Any, is_wanted: Callable[[str], bool], limit: float) -> None:
        self.start = time.perf_counter()
        self.limit = limit
        self.deadline = self.start + limit
        self.types = TorchTypes(torch)
        self.is_wanted = is_wanted
        self.heap = Heap(self.deadline)
        self.by_role = self.heap.by_role(self.types.role)
        self.complete = True
        self.arrays_searched = False
        self.notes: list[str] = []

    def run(self, roots: list[Root], *, threads: bool) -> SearchResult:
        storages: list[NamedStorage] = []
        references: dict[StorageLocation, Any] = {}
        if self.by_role.get("tensor") or self.by_role.get("storage"):
            self.heap.connect()  # first, because reading an object may create its ``__dict__``
            self.read_targets()
            references = self.targets.references
            if self.targets.by_id:
                storages = self._named_storages(self._find_names(roots, threads=threads))
        complete = self.complete and self.heap.complete
        seconds = time.perf_counter() - self.start
        return SearchResult(storages, references, len(self.heap.objects), seconds, complete, tuple(self.notes))

    def read_targets(self) -> None:
        self.targets = Targets(self.types, self.is_wanted, self.by_role)
        self.graph = self._read_graph(self.by_role.get("tensor", []))

    def _read_graph(self, tensors: list[Any]) -> AutogradGraph:
        graph = AutogradGraph(self.types, tensors, self.deadline)
        objects = {id(tensor): tensor for tensor in tensors} | graph.hook_objects
        for object_id, obj in graph.saved.items():
            if self.types.role(type(obj)) == "tensor":
                self.targets.add(obj)
                objects[object_id] = obj
        for child_id, parent_id in graph.edges:
            self.targets.extra.setdefault(child_id, []).append(graph.nodes.get(parent_id) or objects[parent_id])
        if graph.unreadable:
            self.notes.append(_UNREADABLE)
        self.complete = self.complete and graph.complete
        return graph

    def _find_names(self, roots: list[Root], *, threads: bool) -> ObjectNames:
        targets, nodes = self.targets, self.graph.nodes
        self.referrers = referrers = ReferrerGraph(
            {key: target.obj for key, target in targets.by_id.items()}, targets.extra
        )
        referrers.objects.update(nodes)
        terminal_ids = {id(root.value) for root in roots if root.terminal}
        referrers.add_referrers(self.heap, terminal_ids, self.deadline)
        if threads:
            roots += thread_roots(referrers)
        names = self._name_objects(roots)
        for _ in range(_MAX_SECOND_LOOKS):
            added = self._look_again(names, roots) if self.complete else []
            if not added:
                break
            referrers.add_referrers(self.heap, terminal_ids, self.deadline, added)
            names = self._name_objects(roots)
        self._name_unreached(names)
        return names

    def _name_objects(self, roots: list[Root]) -> ObjectNames:
        names = ObjectNames(self.referrers, self.targets, self.graph.nodes, self.deadline)
        names.name_from_roots(roots)
        self.complete = self.complete and self.heap.complete and self.referrers.complete and names.complete
        return names

    def _look_again(self, names: ObjectNames, roots: list[Root]) -> list[int]:
        """Look for further referrers of what no root leads to; returns the ids of those that were added."""
        ids = self._unreached_ids(names)
        targets = [self.targets.by_id[object_id] for object_id in ids if object_id in self.targets.by_id]
        unnamed = sum(memory.size for target in targets for memory in target.memory)
        if unnamed < _MIN_UNNAMED_BYTES or time.perf_counter() > self.start + self.limit * _SECOND_LOOK_SHARE:
            return []
        added = add_class_referrers(ids, self.referrers, self.heap)
        if added or self.arrays_searched:
            return added
        self.arrays_searched = True
        deadline = self.start + self.limit * 2 * _SECOND_LOOK_SHARE
        return add_array_referrers(ids, self.referrers, self.heap, deadline, [root.value for root in roots])

    def _unreached_ids(self, names: ObjectNames) -> set[int]:
        """The objects that no root leads to, without storages that only their tensors keep alive."""
        targets, by_id = self.targets, self.targets.by_id
        unreached = self.referrers.objects.keys() - (names.place_bits.keys() | names.root_ids | self.graph.nodes.keys())
        # once it was created, the Python object of a storage lives as long as the storage: it keeps nothing alive
        bare = {key for key in unreached if key in by_id and not by_id[key].is_tensor and key not in targets.extra}
        bare = self._without_parents(bare)
        targets.base_ids = self._without_parents(targets.base_ids)
        for object_id in bare:
            del by_id[object_id]
        return unreached - bare

    def _without_parents(self, ids: set[int]) -> set[int]:
        return {key for key, parents in zip(ids, self.heap.parents(ids), strict=True) if not parents}

    def _name_unreached(self, names: ObjectNames) -> None:
        ids = self._unreached_ids(names)
        if not ids or not self.complete:  # after an incomplete search they may have a name
            return
        held = held_from_outside(ids, self.referrers, self._own_references())
        cycles = [object_id for object_id in ids if object_id not in held]
        alive = [object_id for object_id in ids if object_id in held]
        names.name_unreached(outermost_first(alive, self.referrers), NO_NAME, "elsewhere")
        names.name_unreached(outermost_first(cycles, self.referrers), "unreachable cycles", "garbage")

    def _own_references(self) -> Counter[int]:
        """How often each object is in the lists of this search, besides the heap and the referrer graph."""
        lists = (*self.by_role.values(), self.graph.saved.values(), self.graph.hook_objects.values())
        return self.targets.own_references() + Counter(map(id, chain(*lists)))

    def _named_storages(self, names: ObjectNames) -> list[NamedStorage]:
        groups: dict[StorageLocation, list[int]] = {}
        for object_id, target in self.targets.by_id.items():
            for memory in target.memory if object_id in names.named else ():
                groups.setdefault(memory, []).append(object_id)
        holders: dict[int, dict[str, None]] = {}
        if any(names.named[ids[0]].graph for ids in groups.values()):
            holders = graph_holders(names.named, self.referrers.children, self.graph.nodes, self.targets.by_id)
        return [self._named_storage(memory, ids, names, holders) for memory, ids in groups.items()]

    def _named_storage(
        self, memory: StorageLocation, ids: list[int], names: ObjectNames, holders: dict[int, dict[str, None]]
    ) -> NamedStorage:
        by_id, base_ids = self.targets.by_id, self.targets.base_ids

        def preference(object_id: int) -> tuple[Any, ...]:
            named = names.named[object_id]
            return named.graph, PLACE_ORDER[named.place], named.depth, not by_id[object_id].is_tensor

        ids = sorted(ids, key=preference)
        first = names.named[ids[0]]
        tensor_ids = [object_id for object_id in ids if by_id[object_id].is_tensor]
        tensors = [by_id[object_id].obj for object_id in tensor_ids]
        described = [self.types.describe(tensor) for tensor in tensors]
        # a tensor that only its own views keep alive makes no more of the storage visible than they do
        sizes = [nbytes for key, (_, nbytes) in zip(tensor_ids, described, strict=True) if key not in base_ids] or [
            None
        ]
        visible = max(nbytes or 0 for nbytes in sizes)
        kind = self.targets.kinds.get((memory.device, memory.address))
        if kind is None:
            has_graph = first.graph or any(self.types.grad_fn(tensor) is not None for tensor in tensors)
            kind = "activation" if has_graph else "plain"
        return NamedStorage(
            memory,
            kind,
            names.name(ids[0]),
            first.holder,
            first.place,
            names.other_names(ids),
            names.places(ids),
            first.graph,
            max(described, key=lambda description: description[1] or 0)[0] if described else "storage",
            visible if None not in sizes and visible < memory.size else None,
            tuple(dict.fromkeys(chain(*(holders.get(object_id, ()) for object_id in ids)))) if first.graph else (),
        )
