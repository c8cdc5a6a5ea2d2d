"""Conversion of a recording to a sequence of requests to the allocator, and its state before the first request."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.core.errors import SnapshotError
from ipygpumem.snapshot.model.columns import Action, distinct
from ipygpumem.snapshot.model.segment_history import find_range
from ipygpumem.snapshot.replay.expandable_pools import default_pool, expandable_pools
from ipygpumem.snapshot.replay.free_blocks import BlockPool
from ipygpumem.snapshot.replay.memory_limit import (
    ReleaseCauses,
    available_memory,
    is_limited_by_fraction,
    is_retry,
    limit_of_retries,
    may_be_retry,
    program_limit,
)
from ipygpumem.snapshot.replay.missing_data import (
    after_completed_frees,
    missing_data,
    smallest_requests,
)
from ipygpumem.snapshot.replay.settings import SMALL, AllocatorSettings
from ipygpumem.snapshot.replay.work_limit import WorkLimit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.segment_history import AllocatorState
    from ipygpumem.snapshot.model.timeline import Ints
    from ipygpumem.snapshot.snapshot_data import SnapshotData

_SEGMENT_EVENTS = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.MAP, Action.UNMAP)
RELEASES = (Action.SEGMENT_FREE, Action.UNMAP)
ADDRESS_LIMIT = 1 << 48
"""Lowest simulated address, which is higher than any address of a process."""


class ReplayError(SnapshotError):
    """Raised if a recording cannot be replayed."""


@dataclass(frozen=True, slots=True, eq=False)
class ReleasedSegments:
    """Segments that were freed together.

    Attributes:
        first: Event in which the first segment was freed.
        count: Number of events in which segments were freed.
        request: Next event, or the event in which the allocator served the request for which it freed the segments.
        retry: Whether the allocator freed the segments in order to serve a request. Otherwise, the program called
            ``torch.cuda.empty_cache`` or deleted a ``MemPool``.
        private: Indices of the private pools to which segments belonged. The recording shows which private
            pools had segments freed, but not which private pools were no longer in use.
        only_private: Whether no segment belonged to the default pool, as when a ``MemPool`` is deleted.
    """

    first: int
    count: int
    request: int
    retry: bool
    private: frozenset[int] = frozenset()
    only_private: bool = False


class Recording:
    """Recording of one device as a sequence of requests to the allocator.

    Attributes:
        timeline, trace, allocations: Timeline, events and allocations of the device.
        operations: Requests in order, as int32. The index of a row in ``allocations`` represents its allocation, the
            bitwise complement of the index its free, and ``len(allocations) + i`` the item ``special[i]``.
        events: Event of each operation, as int32.
        special: `ReleasedSegments` objects and events of out-of-memory errors, ordered by event.
        settings: Settings with which the recording was made.
        pool_of: For each allocation, the index of the pool for large requests. The next pool is for small requests.
        pools: All pools. Pools of large and small requests alternate.
        segment_pools: For each segment before the first event, the index of its pool for large requests.
        initial: Segments and blocks before the first event.
        initial_starts: Result of `segment_starts` for the segments before the first event.
        total: Total memory of the device in bytes; 0 if it is unknown.
        limit: Lower and upper bound on the memory that was available to PyTorch when the last request failed or, if
            none failed, on the limit on reserved memory. The bounds are equal if the limit is known. The upper bound is
            None if the recording does not show any.
        by_fraction: Whether ``set_per_process_memory_fraction``, not the memory of the device, limited the memory.
        last_failed: Event of the last out-of-memory error; None if there is none.
        problem: Reason why the recording cannot be replayed; empty if it can be. If there is a reason, only the
            attributes that describe the device and the file are set.
    """

    def __init__(self, snapshot: SnapshotData, device: int) -> None:
        self.device = device
        self.snapshot = snapshot
        self.timeline = timeline = snapshot.timeline(device)
        self.trace = timeline.trace
        self.allocations = timeline.allocations
        self.settings = AllocatorSettings.from_snapshot(snapshot.settings)
        self.total = snapshot.own.device_totals.get(device, 0)
        self.problem = missing_data(snapshot, timeline)
        if self.problem:
            return
        self.initial: AllocatorState = snapshot.history(device).at(-1)
        self.last_failed: int | None = max(self.trace.events(Action.OOM).tolist(), default=None)
        self.special: list[ReleasedSegments | int] = []
        if (find_range(self.initial.segments, self.initial.blocks["address"]) < 0).any():
            self.problem = "the file does not contain the segments of all blocks"
            return
        if not self._has_possible_addresses():
            self.problem = "the recording contains addresses or sizes that no process can have"
            return
        events = sum(len(timeline.trace) for timeline in snapshot.timelines)
        self.work_limit = WorkLimit(len(self.trace) + len(self.initial.blocks), len(self.trace) / events)
        self.pools, self.pool_of = self._assign_pools()
        self.initial_starts = self.segment_starts(self.initial)
        self.limit = available_memory(snapshot, timeline, self.settings)
        self.by_fraction = is_limited_by_fraction(snapshot, timeline, self.settings)
        self.operations, self.events = self._list_operations()
        if self.limit[1] is None:
            self.limit = self.limit[0], limit_of_retries(self)

    def _has_possible_addresses(self) -> bool:
        trace, events, segments = self.trace, self.trace.events(*_SEGMENT_EVENTS), self.initial.segments
        columns = (
            (self.allocations.address, self.allocations.size),
            (trace.address[events], trace.size[events]),
            (segments["address"], segments["size"]),
        )
        return all((address <= ADDRESS_LIMIT - size).all() for address, size in columns)

    def error(self, problem: str) -> ReplayError:
        return ReplayError(f"{self.snapshot.name}: device {self.device} cannot be replayed: {problem}")

    def _assign_pools(self) -> tuple[list[BlockPool], Ints]:
        allocations, trace, snapshot = self.allocations, self.trace, self.snapshot
        rows = np.arange(len(allocations))
        is_recorded = allocations.start >= 0
        start = np.maximum(allocations.start, 0)
        initial = self.initial.segments
        segment = find_range(initial, allocations.address)
        stream = np.where(is_recorded, trace.stream[start], np.append(initial["stream"], 0)[segment])
        pool_id = snapshot.history(self.device).pools(rows)
        pool_id = np.where(is_recorded & (trace.pool[start] >= 0), trace.pool[start], pool_id)
        completed = expandable_pools(snapshot, self.timeline, initial, pool_id, self.settings)
        initial["small"] = completed.initial_small
        self._pool_of_event, self._segment_numbers = completed.event_pools, completed.segments
        self._default = default = default_pool(snapshot.pools)
        private = set(range(len(snapshot.pools) + completed.inferred_count)) - {default}
        pool_id = np.where(completed.allocation_pools < 0, default, completed.allocation_pools)
        failed_requests = trace.events(Action.OOM)
        streams = np.concatenate([stream, initial["stream"], trace.stream[failed_requests]])
        ids = np.concatenate([pool_id, completed.initial_pools, trace.pool[failed_requests]])
        ids[ids < 0] = default
        handles = distinct(streams)
        keys = ids * len(handles) + np.searchsorted(handles, streams)
        pairs = distinct(keys)
        inverse = np.searchsorted(pairs, keys)
        old = (snapshot.own.torch_version or (2, 5)) < (2, 5)
        pools = [
            BlockPool(pair[0], int(handles[pair[1]]), small, pair[0] in private, not (old and pair[0] in private))
            for pair in (divmod(key, len(handles)) for key in pairs.tolist())
            for small in (False, True)
        ]
        self.segment_pools, failed_pools = np.split(inverse[len(rows) :] * 2, [len(initial)])
        self._failed_pools = failed_pools
        return pools, inverse[: len(rows)] * 2

    def segment_starts(self, state: AllocatorState) -> Ints:
        """Return the lowest known address of the segment to which each of ``state.segments`` belongs.

        Expandable segments can begin with memory that is not mapped in ``state``.
        """
        address: Ints = state.segments["address"]
        if self._segment_numbers is None:
            return address
        numbers = self._segment_numbers.numbers(address, np.full(len(address), state.event))
        starts = self._segment_numbers.starts[numbers]
        return np.where(state.segments["expandable"] & (numbers >= 0), starts, address)

    def _list_operations(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        trace, allocations = self.trace, self.allocations
        count, rows = len(trace), len(allocations)
        operation, is_selected = np.zeros(count, np.int32), np.zeros(count, np.bool_)
        recorded_rows = np.flatnonzero(allocations.start >= 0)
        operation[allocations.start[recorded_rows]] = recorded_rows
        ended = np.flatnonzero((allocations.end >= 0) & (allocations.end < count))
        operation[allocations.end[ended]] = ~ended
        is_selected[allocations.start[recorded_rows]] = is_selected[allocations.end[ended]] = True
        for item in self._releases():
            event = item if isinstance(item, int) else item.first
            operation[event] = rows + len(self.special)
            is_selected[event] = True
            self.special.append(item)
        return operation[is_selected], np.flatnonzero(is_selected).astype(np.int32)

    def _releases(self) -> list[ReleasedSegments | int]:
        trace = self.trace
        events = trace.events(*RELEASES)
        frees_some = self.settings.max_split_size is not None or self.settings.collection_threshold > 0
        starts = np.flatnonzero(np.diff(events, prepend=-2) != 1)
        ends = np.append(starts[1:], len(events))[: len(starts)]
        releases: list[ReleasedSegments | int] = trace.events(Action.OOM).tolist()
        later_event = later_request = -1
        for first, end in zip(reversed(starts.tolist()), reversed(ends.tolist()), strict=True):
            event, request = int(events[first]), int(events[end - 1]) + 1
            if frees_some:  # a retry completes cross-stream frees after the allocator has freed some of the segments
                request = after_completed_frees(trace, event, request)
                request = later_request if request == later_event else request
            later_event, later_request = event, request
            retry = is_retry(self, event, request)
            pools = self._pools_of(events[first:end])
            private = frozenset(pools - {self._default})
            releases.append(
                ReleasedSegments(event, end - first, request, retry, private, bool(private) and private == pools)
            )
        return sorted(releases, key=lambda item: item if isinstance(item, int) else item.first)

    def _pools_of(self, events: Ints) -> set[int]:
        trace, pools = self.trace, self._pool_of_event[events]
        if not self.has_private_pools:
            return {self._default}
        unknown = events[pools < 0]  # before PyTorch 2.12
        rows, addresses = self._rows_by_address
        place = np.searchsorted(addresses, trace.address[unknown] + trace.size[unknown]) - 1
        is_inside = (place >= 0) & (addresses[place] >= trace.address[unknown])
        by_address = {self.pools[number].id for number in self.pool_of[rows[place[is_inside]]].tolist()}
        return set(pools[pools >= 0].tolist()) | by_address | (set() if is_inside.all() else {self._default})

    @cached_property
    def _rows_by_address(self) -> tuple[Ints, Ints]:
        rows = np.argsort(self.allocations.address, kind="stable")
        return rows, self.allocations.address[rows]

    @cached_property
    def program_limit(self) -> int | None:
        return program_limit(self.snapshot, self.timeline, self.settings)

    def effective(self, settings: AllocatorSettings) -> AllocatorSettings:
        largest_segment = int(self.initial.segments["size"].max(initial=0))
        failed = self.trace.events(Action.OOM)
        smallest = smallest_requests(self.trace, self.settings)
        requested = np.concatenate([self.allocations.size, self.trace.size[failed], smallest[failed]])
        return settings.without_ineffective(requested, largest_segment)

    def failed_requests(self, settings: AllocatorSettings) -> dict[int, tuple[int, int]]:
        """Return the pool index and the size, rounded by ``settings``, of each request that failed, by event."""
        events = self.trace.events(Action.OOM)
        rounded = settings.round(self.trace.size[events])
        pools = (self._failed_pools + (rounded <= SMALL)).tolist()
        return dict(zip(events.tolist(), zip(pools, rounded.tolist(), strict=True), strict=True))

    def may_be_private(self, event: int) -> bool:
        """Return whether a failed request may belong to a private pool. Files before PyTorch 2.12 omit the pool."""
        return bool(self.trace.pool[event] < 0) and self.has_private_pools

    @cached_property
    def has_private_pools(self) -> bool:
        return any(pool.private for pool in self.pools)

    @cached_property
    def reached_limit(self) -> bool:
        """Whether a request failed, or segments were freed in order to serve a request."""
        return any(isinstance(item, int) or item.retry for item in self.special)

    @cached_property
    def has_uncertain_retries(self) -> bool:
        """Whether it is unknown for some freed segments whether the program or the allocator freed them."""
        return any(
            not self.release_causes.are_shown(item.first, item.first + item.count)
            if item.retry
            else may_be_retry(self, item.first, item.request)
            for item in self.special
            if not isinstance(item, int)
        )

    @cached_property
    def release_causes(self) -> ReleaseCauses:
        return ReleaseCauses(self)

    @cached_property
    def segment_events(self) -> list[tuple[int, int, int, int]]:
        trace, events = self.trace, self.trace.events(*_SEGMENT_EVENTS)
        columns = (trace.action[events], trace.address[events], trace.size[events], events)
        return list(zip(*(column.tolist() for column in columns), strict=True))

    @cached_property
    def following(self) -> NDArray[np.int32]:
        """For each event, the first event from this event on that is not a segment event."""
        events = self.trace.events(*_SEGMENT_EVENTS)
        ends = events[np.diff(events, append=-2) != 1]
        following = np.arange(len(self.trace), dtype=np.int32)
        following[events] = ends[np.searchsorted(ends, events)] + 1
        return following
