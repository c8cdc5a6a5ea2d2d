"""Search for the objects that keep tensors alive.

The search first follows references backward, from each tensor to all referrers that the garbage collector knows. It
then follows references forward, from the roots to the tensors, to assign names. It runs no user code, triggers no
garbage collection and makes no CUDA calls.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from ipygpumem.core.introspection import gc_paused, running_frames
from ipygpumem.features.holders.model import PLACES, Storage
from ipygpumem.features.holders.object_names import ObjectNames
from ipygpumem.features.holders.referrers import ReferrerGraph, SearchLimit, TrackedObjects
from ipygpumem.features.holders.roots import Root
from ipygpumem.features.holders.targets import SearchTargets
from ipygpumem.features.holders.untracked import add_array_referrers, add_class_referrers
from ipygpumem.sources.storages import TorchInspector

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ipygpumem.features.holders.model import Place
    from ipygpumem.sources.storages import StorageLocation

NO_NAME = "no Python variable found"
"""Holder of objects that are alive but not reachable by any name."""
_MAX_EXTRA_PASSES = 4
"""Maximum number of extra passes that add referrers. A NumPy array in a class in a NumPy array requires three."""
_MIN_UNNAMED_BYTES = 4096
"""Minimum total size in bytes of unnamed storages for an extra pass. PyTorch itself keeps some small tensors alive."""
_EXTRA_PASS_SHARE = 0.4
"""Share of the time limit after which no extra pass starts. The search for NumPy arrays stops at twice this share."""
_MAX_GRAPH_HOLDERS = 4
_UNREADABLE = (
    "this version of PyTorch does not expose all tensors saved for the backward pass. Hidden tensors are counted as not"
    " reachable from Python"
)


@dataclass(frozen=True, slots=True)
class NamedStorage:
    """A storage that was found by a search.

    Attributes:
        info: Names and kind of the storage. ``info.amount`` is the size of the storage, not of the allocator's block.
        holder: Name of the holder.
        graph_holders: Some holders of the autograd graphs if only these keep the storage alive; otherwise empty.
    """

    location: StorageLocation
    info: Storage
    holder: str
    place: Place
    graph_holders: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search, with a weak reference to each storage, by location. See `Holders` for other attributes."""

    storages: list[NamedStorage]
    references: dict[StorageLocation, Any]
    objects: int
    seconds: float
    complete: bool
    notes: list[str]


def search_holders(
    roots: Sequence[Root],
    torch: Any,
    is_wanted: Callable[[str], bool],
    *,
    limit: float = 10.0,
    threads: bool = True,
) -> SearchResult:
    """Search for the objects that keep storages on the selected devices alive, for at most ``limit`` seconds.

    The search for names starts at the roots and, unless ``threads`` is False, at the variables of running threads.
    """
    with gc_paused():
        search = _HolderSearch(torch, limit)
        try:
            with search.types.without_overrides():
                return search.run(list(roots), is_wanted, threads=threads)
        finally:
            search.heap.release()


class _HolderSearch:
    def __init__(self, torch: Any, seconds: float) -> None:
        self.limit = SearchLimit(seconds)
        self.types = TorchInspector(torch)
        self.heap = TrackedObjects(self.limit)
        self.arrays_searched = False

    def run(self, roots: list[Root], is_wanted: Callable[[str], bool], *, threads: bool) -> SearchResult:
        storages: list[NamedStorage] = []
        references: dict[StorageLocation, Any] = {}
        notes: list[str] = []
        by_role = self.heap.by_role(self.types.role)
        if by_role.get("tensor") or by_role.get("storage"):
            self.heap.connect()  # first, because reading an object may create its ``__dict__``
            self.targets = SearchTargets(self.types, is_wanted, by_role, self.limit)
            references = self.targets.references
            notes = [_UNREADABLE] if self.targets.graph.unreadable else []
            if self.targets.by_id:
                storages = self._named_storages(self._find_names(roots, threads=threads))
        objects, seconds = len(self.heap.objects), time.perf_counter() - self.limit.start
        return SearchResult(storages, references, objects, seconds, self.limit.complete, notes)

    def _find_names(self, roots: list[Root], *, threads: bool) -> ObjectNames:
        targets = self.targets
        objects = {key: target.obj for key, target in targets.by_id.items()} | targets.graph.nodes
        terminal_ids = {id(root.value) for root in roots if root.terminal}
        self.referrers = ReferrerGraph(self.heap, objects, targets.extra, terminal_ids, self.limit)
        self.referrers.add_referrers()
        if threads:
            threads_and_frames = ((name, frame) for name, frame in running_frames() if self.referrers.add_frame(frame))
            roots += [Root(f"thread {name}", frame, "thread") for name, frame in threads_and_frames]
        for passes_left in range(_MAX_EXTRA_PASSES, -1, -1):
            names = ObjectNames(self.referrers, targets)
            names.name_from_roots(roots)
            added = self._add_hidden_referrers(names, roots) if passes_left and self.limit.complete else []
            if not added:
                break
            self.referrers.add_referrers(added)
        self._name_unreached(names)
        return names

    def _add_hidden_referrers(self, names: ObjectNames, roots: list[Root]) -> list[int]:
        """Add NumPy arrays, untracked containers and instances that refer to unnamed objects. Return the added ids."""
        ids = self._unreached_ids(names)
        targets = [self.targets.by_id[object_id] for object_id in ids if object_id in self.targets.by_id]
        unnamed = sum(location.size for target in targets for location in target.locations)
        if unnamed < _MIN_UNNAMED_BYTES or self.limit.passed(_EXTRA_PASS_SHARE):
            return []
        added = add_class_referrers(ids, self.referrers)
        if added or self.arrays_searched:
            return added
        self.arrays_searched = True
        return add_array_referrers(ids, self.referrers, 2 * _EXTRA_PASS_SHARE, [root.value for root in roots])

    def _unreached_ids(self, names: ObjectNames) -> set[int]:
        """Return the ids of objects that are not reachable from any root. Storages without referrers are omitted."""
        targets, by_id = self.targets, self.targets.by_id
        reached = names.place_bits.keys() | names.root_ids | targets.graph.nodes.keys()
        unreached = self.referrers.objects.keys() - reached
        # the Python object of a storage, once created, lives as long as the storage and keeps nothing alive
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
        if not ids or not self.limit.complete:  # an incomplete search may have missed their names
            return
        alive = self.referrers.alive_ids(ids, self.targets.own_references())
        names.name_unreached(alive, NO_NAME, "elsewhere")
        names.name_unreached(ids - alive, "unreachable cycles", "garbage")

    def _named_storages(self, names: ObjectNames) -> list[NamedStorage]:
        groups: dict[StorageLocation, list[int]] = {}
        for object_id, target in self.targets.by_id.items():
            for location in target.locations if object_id in names.named else ():
                groups.setdefault(location, []).append(object_id)
        holders: dict[int, dict[str, None]] = {}
        if any(names.named[ids[0]].graph for ids in groups.values()):
            holders = self._graph_holders(names)
        return [self._named_storage(location, ids, names, holders) for location, ids in groups.items()]

    def _graph_holders(self, names: ObjectNames) -> dict[int, dict[str, None]]:
        named, children, node_ids = names.named, self.referrers.children, self.targets.graph.nodes.keys()
        holders: dict[int, dict[str, None]] = {}
        pending: list[tuple[int, str]] = []
        for object_id in node_ids | self.targets.by_id.keys():
            if object_id in named and not named[object_id].graph:
                child_ids = set(children.get(object_id, ()))
                reached_ids = child_ids if object_id in node_ids else child_ids & node_ids
                pending += [(child_id, named[object_id].holder) for child_id in reached_ids]
        while pending:
            object_id, holder = pending.pop()
            if object_id in named and named[object_id].graph:
                own_holders = holders.setdefault(object_id, {})
                if holder not in own_holders and len(own_holders) < _MAX_GRAPH_HOLDERS:
                    own_holders[holder] = None
                    pending += [(child_id, holder) for child_id in children.get(object_id, ())]
        return holders

    def _named_storage(
        self, location: StorageLocation, ids: list[int], names: ObjectNames, holders: dict[int, dict[str, None]]
    ) -> NamedStorage:
        by_id, base_ids = self.targets.by_id, self.targets.base_ids

        def preference(object_id: int) -> tuple[Any, ...]:
            named = names.named[object_id]
            return named.graph, PLACES.index(named.place), named.depth, not by_id[object_id].is_tensor

        ids = sorted(ids, key=preference)
        first = names.named[ids[0]]
        tensor_ids = [object_id for object_id in ids if by_id[object_id].is_tensor]
        tensors = [by_id[object_id].obj for object_id in tensor_ids]
        described = [self.types.describe(tensor) for tensor in tensors]
        # a base kept alive only by its views does not count, because user code cannot access it
        sizes = [nbytes for key, (_, nbytes) in zip(tensor_ids, described, strict=True) if key not in base_ids]
        visible = max((nbytes or 0 for nbytes in sizes), default=0)
        kind = self.targets.kinds.get((location.device, location.address))
        if kind is None:
            has_graph = first.graph or any(self.types.grad_fn(tensor) is not None for tensor in tensors)
            kind = "activation" if has_graph else "plain"
        info = Storage(
            device=location.device,
            amount=location.size,
            kind=kind,
            name=names.name(ids[0]),
            also=names.other_names(ids),
            places=names.places(ids),
            graph=first.graph,
            tensor=max(described, key=lambda description: description[1] or 0)[0] if described else "storage",
            view=visible if sizes and None not in sizes and visible < location.size else None,
        )
        graph_holders = chain(*(holders.get(object_id, ()) for object_id in ids)) if first.graph else ()
        return NamedStorage(location, info, first.holder, first.place, tuple(dict.fromkeys(graph_holders)))
