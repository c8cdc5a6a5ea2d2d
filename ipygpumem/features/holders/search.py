"""Search for the objects that keep tensors alive.

The search first reads the objects that are reachable from the user's variables, outputs, tracebacks and running
functions. If these do not explain the allocated memory, it reads all objects that the garbage collector tracks. It
then follows references backward, from each tensor to all referrers, and forward, from the roots to the tensors, to
assign names. It runs no user code, triggers no garbage collection and makes no CUDA calls.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.introspection import frame_locals, is_library_file, pause_gc, running_frames
from ipygpumem.features.holders.model import PLACES, NamedStorage, new_named_storage, new_storage
from ipygpumem.features.holders.name_assignment import ObjectNames
from ipygpumem.features.holders.reference_graph import ReferrerGraph, SearchRoot, add_class_referrers
from ipygpumem.features.holders.targets import SearchTargets
from ipygpumem.features.holders.tracked_objects import SearchLimit, TrackedObjects, has_frozen_objects
from ipygpumem.sources.storages import StorageInspector, StorageLocation

NO_NAME = "no Python variable found"  # holder of objects that are alive but not reachable by any name
_MAX_EXTRA_PASSES = 4  # maximum number of passes that add referrers of classes
_MIN_UNNAMED_BYTES = 4096
"""Minimum total size in bytes of unnamed storages for an extra pass. PyTorch itself keeps some small tensors alive."""
_EXTRA_PASS_SHARE = 0.4  # share of the time limit after which no extra pass starts
_READING_SHARE = 0.5
"""Share of the time limit after which no further objects are read, because their names must also be found."""
_MAX_GRAPH_HOLDERS = 4
_MAX_UNSEARCHED_SHARE = 0.01  # share of the allocated memory above which all objects in Python's memory are searched
_UNREADABLE = (
    "this version of PyTorch does not expose all tensors saved for the backward pass. Hidden tensors are counted as not"
    " reachable from Python"
)


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search. ``unsearched``: Locations of storages whose holders were not searched; None if unknown."""

    storages: list[NamedStorage]
    references: dict[StorageLocation, Any]
    objects: int
    seconds: float
    complete: bool
    notes: list[str]
    unsearched: Collection[StorageLocation] | None


def search_holders(
    roots: Sequence[SearchRoot],
    torch: Any,
    is_wanted: Callable[[str], bool],
    *,
    limit: float = 10.0,
    threads: bool = True,
    unnamed_share: Callable[[Collection[StorageLocation]], float] | None = None,
    keeps_addresses: bool = False,
) -> SearchResult:
    """Search for the objects that keep storages alive.

    ``roots`` are the objects at which the search for names starts; if ``threads`` is true, it also starts at the local
    variables of running threads. ``is_wanted`` returns whether a device, given by its name, is searched. ``limit`` is
    the time limit in seconds; if it is reached, names may be missing, especially those in libraries.

    ``unnamed_share`` returns the share of the allocated memory that is outside the storages at the given locations. If
    this share is at most 1%, objects that are reachable only from libraries or from no root are not searched.

    If ``keeps_addresses`` is true, weak references to the storages are created, which prevent the reuse of their
    addresses.
    """
    search_limit = SearchLimit(limit)
    results: list[SearchResult] = []
    with pause_gc():
        for is_everywhere in (False, True) if unnamed_share or any(root.distant for root in roots) else (True,):
            search = _HolderSearch(torch, search_limit, is_wanted, roots, is_everywhere=is_everywhere)
            search.targets.keeps_addresses = keeps_addresses
            try:
                with search.types.without_overrides():
                    result = search.run(threads=threads)
                    is_final = is_everywhere or not result.complete
                    search_limit.unlimited = 0
                    if not is_final and unnamed_share is not None:
                        result, is_final = search.check(result, unnamed_share)
            finally:
                search.heap.release()
                del search
            results.append(result)
            if is_final:
                break
    return result if result.complete else replace(results[0], complete=False, seconds=result.seconds, unsearched=())


class _HolderSearch:
    def __init__(
        self,
        torch: Any,
        limit: SearchLimit,
        is_wanted: Callable[[str], bool],
        roots: Sequence[SearchRoot],
        *,
        is_everywhere: bool,
    ) -> None:
        self.limit = limit
        self.types = StorageInspector(torch)
        self._is_wanted = is_wanted
        self._is_everywhere = is_everywhere
        self._roots = [root for root in roots if is_everywhere or not root.distant]
        stop_ids = None if is_everywhere else {id(root.value) for root in roots if root.distant}
        self.targets = SearchTargets(self.types, is_wanted, limit)
        take_tensors = None if is_everywhere else self.targets.take_tensors
        self.heap = TrackedObjects(limit, self.types.role, stop_ids, take_tensors)

    def run(self, *, threads: bool) -> SearchResult:
        storages: list[NamedStorage] = []
        notes: list[str] = []
        self._read_objects(threads=threads)
        elements = self.targets.elements
        if elements is not None:
            elements.separate_shared()
        if self.targets.by_id or elements is not None:
            self.targets.set_kinds()
            names = self._find_names([*self._roots], threads=threads)
            if elements is not None and elements.separate_in_graphs(names):
                names = self._find_names([*self._roots], threads=threads)
            storages = self._named_storages(names)
            if elements is not None:
                storages += elements.named_storages(names, self.referrers.objects)
            notes = [_UNREADABLE] if self.targets.graph.unreadable else []
        objects, seconds = len(self.heap.objects), time.perf_counter() - self.limit.start
        unsearched = () if self._is_everywhere else None
        return SearchResult(storages, self.targets.references, objects, seconds, self.limit.complete, notes, unsearched)

    def _read_objects(self, *, threads: bool) -> None:
        if self._is_everywhere:
            untracked = [root.value for root in self._roots if not gc.is_tracked(root.value)]
            self.heap.follow(untracked)  # first, because reading an object may create its ``__dict__``
            self.targets.add(self.heap.take_by_role())
            return
        variables = [root.value for root in self._roots if root.place != "module"]
        modules = [root.value for root in self._roots if root.place == "module"]
        local_values: dict[bool, list[Any]] = {True: [], False: []}  # in frames of libraries, and of the user
        for _, frame in running_frames() if threads else ():
            local_values[is_library_file(frame.f_code.co_filename)] += (value for _, value in frame_locals(frame))
        # objects are read level by level, so a large data set in a variable does not delay the user's local variables
        for start in ([*local_values[False], *variables], local_values[True], modules):
            new_objects = start
            while new_objects and self.limit.complete:
                self.heap.follow(new_objects, _READING_SHARE)
                self.limit.extend()
                new_objects = self.targets.add(self.heap.take_by_role())

    def check(
        self, result: SearchResult, unnamed_share: Callable[[Collection[StorageLocation]], float]
    ) -> tuple[SearchResult, bool]:
        share = unnamed_share([storage.location for storage in result.storages])
        if share <= _MAX_UNSEARCHED_SHARE or has_frozen_objects():
            return result, share <= _MAX_UNSEARCHED_SHARE
        other_targets = SearchTargets(self.types, self._is_wanted, self.limit)
        referenced_storages = {location.storage for location in self.targets.references}
        by_role: dict[str, list[Any]] = {}
        known_ids = self.heap.seen_ids.union(() if (elements := self.targets.elements) is None else elements.containers)
        for obj in gc.get_referrers(*self.types.classes()):
            role = None if id(obj) in known_ids else self.types.role(type(obj))
            if role == "tensor" or (role == "storage" and getattr(obj, "_cdata", None) not in referenced_storages):
                by_role.setdefault(str(role), []).append(obj)
        other_targets.add(by_role)
        named_locations = {storage.location for storage in result.storages}
        unsearched = other_targets.references.keys() - self.targets.references.keys()
        result = replace(result, complete=self.limit.complete, unsearched=unsearched)
        is_final = not result.complete or not unsearched
        return result, is_final or share - unnamed_share(named_locations | unsearched) <= _MAX_UNSEARCHED_SHARE

    def _find_names(self, roots: list[SearchRoot], *, threads: bool) -> ObjectNames:
        targets = self.targets
        objects = {key: target.obj for key, target in targets.by_id.items()} | targets.graph.nodes
        if targets.elements is not None:
            objects |= {id(container): container for container in targets.elements.containers.values()}
        terminal_ids = {id(root.value) for root in roots if root.terminal}
        self.referrers = ReferrerGraph(self.heap, objects, targets.extra, terminal_ids, self.limit)
        self.referrers.add_referrers()
        if threads:
            threads_and_frames = ((name, frame) for name, frame in running_frames() if self.referrers.add_frame(frame))
            roots += [SearchRoot(f"thread {name}", frame, "thread") for name, frame in threads_and_frames]
        for passes_left in range(_MAX_EXTRA_PASSES, -1, -1):
            names = ObjectNames(self.referrers, targets)
            names.name_from_roots(roots)
            if not (passes_left and self.limit.complete and self._add_hidden_referrers(names)):
                break
        if self._is_everywhere:
            self._name_unreached(names)
        return names

    def _add_hidden_referrers(self, names: ObjectNames) -> bool:
        """Add referrers (such as instances) of classes that no root reaches. Return whether any were added."""
        ids = self._unreached_ids(names)
        targets = [self.targets.by_id[object_id] for object_id in ids if object_id in self.targets.by_id]
        unnamed = sum(location.size for target in targets for location in target.locations)
        unnamed += 0 if self.targets.elements is None else self.targets.elements.size(ids)
        if unnamed < _MIN_UNNAMED_BYTES or self.limit.passed(_EXTRA_PASS_SHARE):
            return False
        return add_class_referrers(ids, self.referrers)

    def _unreached_ids(self, names: ObjectNames) -> set[int]:
        """Return the ids of objects not reachable from a root, and remove unreferenced storages from the targets."""
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
        if not ids or not self.limit.complete:  # an incomplete search may have missed names
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
            if object_id in children and object_id in named and not named[object_id].graph:
                child_ids = set(children[object_id])
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
        if len(ids) > 1:
            ids = sorted(ids, key=partial(self._preference, names))
        first = names.named[ids[0]]
        kind = self.targets.kinds.get(location[:2])
        has_graph, text, largest = first.graph or not self.targets.computed_ids.isdisjoint(ids), "storage", -1
        view, is_whole = -1, False
        for object_id in ids:
            target = by_id[object_id]
            if target.is_tensor:
                description, nbytes = self.types.describe(target.obj)
                if (nbytes or 0) > largest:
                    text, largest = description, nbytes or 0
                if object_id not in base_ids:  # a base kept alive only by its views cannot be accessed by user code
                    if nbytes is None or nbytes >= location.size:
                        is_whole = True
                    elif nbytes > view:
                        view = nbytes
        if kind is None:
            kind = "activation" if has_graph else "plain"
        (name, other_names), places = names.storage_names(ids), names.places(ids)
        part = None if is_whole or view < 0 else view
        nbytes = location.rounded_size
        size_and_name = location.device, nbytes, kind, name, other_names, places
        info = new_storage(*size_and_name, first.graph, text, "", part, True, location.address)
        graph_holders: tuple[str, ...] = ()
        if first.graph:
            graph_holders = tuple(dict.fromkeys(chain(*(holders.get(object_id, ()) for object_id in ids))))
        named_storage: NamedStorage = new_named_storage((location, info, first.holder, first.place, graph_holders))
        return named_storage

    def _preference(self, names: ObjectNames, object_id: int) -> tuple[Any, ...]:
        named = names.named[object_id]
        is_tensor = self.targets.by_id[object_id].is_tensor
        return named.graph, PLACES.index(named.place), named.depth, not is_tensor, names.name(object_id)
