"""Pools of the allocations in expandable segments, whose events have no pool before torch 2.12."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.snapshot.model.columns import Action, distinct
from ipygpumem.snapshot.replay.address_ranges import union

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.timeline import Ints, Timeline
    from ipygpumem.snapshot.snapshot_data import SnapshotData


@dataclass(frozen=True, slots=True, eq=False)
class ExpandablePools:
    """Pools of the allocations and events of a recording with expandable segments.

    Attributes:
        allocation_pools: Index of the pool of each allocation; -1 if it is unknown.
        event_pools: Index of the pool of each event; -1 if it is unknown. Events that map or unmap memory of an unknown
            pool have the index of the default pool.
        initial_pools: Index of the pool of each segment before the first event; -1 if it is unknown.
        inferred_count: Number of pools that the file does not contain, because they were deleted before the end. Their
            indices follow those of the other pools.
    """

    allocation_pools: Ints
    event_pools: NDArray[Any]
    initial_pools: NDArray[Any]
    inferred_count: int = 0


def expandable_pools(
    snapshot: SnapshotData, timeline: Timeline, initial: NDArray[Any], pool_id: Ints, small: NDArray[np.bool_]
) -> ExpandablePools:
    """Return the pools of all allocations.

    All memory of an expandable segment belongs to one pool. PyTorch releases the addresses of a segment when all of its
    memory is unmapped. Another pool can then use them. A pool has one segment for each stream and size class (small or
    large), because the address range of a segment is larger than the memory of the device. A segment without a known
    pool that exists together with a segment of the default pool therefore belongs to another pool.

    Args:
        snapshot: The snapshot, which contains the pools of the segments at the end.
        timeline: The events and allocations.
        initial: Segments before the first event, as in `AllocatorState`.
        pool_id: Index of the pool of each allocation; -1 if it is unknown.
        small: Whether the small pool serves each allocation.
    """
    trace, allocations, segments = timeline.trace, timeline.allocations, snapshot.segments
    events = trace.events(Action.MAP, Action.UNMAP)
    if not len(events):
        return ExpandablePools(pool_id, trace.pool, initial["pool"])
    mapped = events[trace.action[events] == Action.MAP]
    old = initial[initial["expandable"]]
    ranges = union(np.append(trace.address[mapped], old["address"]), np.append(trace.size[mapped], old["size"]))

    def range_of(address: Ints) -> Ints:
        place = np.searchsorted(ranges[:, 0], address, side="right") - 1
        return np.where(address < np.append(ranges[:, 1], 0)[place], place, -1)

    # events after which a range contains no mapped memory, as keys that are ordered by range and event
    place = range_of(trace.address[events])
    order = np.lexsort((events, place))
    place, ordered = place[order], events[order]
    change = np.where(trace.action[ordered] == Action.MAP, trace.size[ordered], -trace.size[ordered])
    size = np.zeros(len(ranges) + 1, np.int64)
    np.add.at(size, range_of(old["address"]), old["size"])
    total = np.cumsum(change)
    first = np.flatnonzero(np.diff(place, prepend=-2))
    before = np.repeat((total - change)[first], np.diff(np.append(first, len(place))))
    factor = len(trace) + 2
    released = (place * factor + ordered + 1)[total - before + size[place] == 0]

    def segment_of(address: Ints, event: Ints) -> Ints:
        """Return the index of the expandable segment that contained each address before or at an event, or -1."""
        place = range_of(address)
        return np.where(place >= 0, np.searchsorted(released, place * factor + event + 1) + place, -1)

    at_end = np.flatnonzero((segments.device == timeline.device) & segments.expandable & (segments.pool >= 0))
    segment = segment_of(allocations.address, allocations.start.astype(np.int64))
    final = segment_of(segments.address[at_end], np.full(len(at_end), len(trace)))
    of_event = segment_of(trace.address[events], events)
    pools = np.full(len(ranges) + len(released) + 1, -1, np.int64)  # the last item is for index -1
    np.maximum.at(pools, segment, pool_id)
    np.maximum.at(pools, final, segments.pool[at_end].astype(np.int64))

    begin, end = np.full(len(pools), len(trace)), np.full(len(pools), -1)
    np.minimum.at(begin, of_event, events)
    np.maximum.at(end, of_event, events)
    initial_segment = segment_of(old["address"], np.full(len(old), -1))
    begin[initial_segment] = -1
    end[final] = len(trace)
    stream, is_large = np.zeros(len(pools), np.int64), np.zeros(len(pools), np.bool_)
    stream[initial_segment] = np.maximum(old["stream"], 0)
    stream[of_event], is_large[segment[~small]] = trace.stream[events], True
    is_used = np.bincount(segment[segment >= 0], minlength=len(pools)) > 0
    kind = 2 * np.searchsorted(distinct(stream), stream) + is_large
    default = default_pool(snapshot.pools)
    is_default = is_used & (pools == default)
    inferred = np.flatnonzero(is_used & (pools < 0) & (default >= 0))  # a file without pools has only default pools
    inferred = inferred[_overlaps(kind * factor + begin + 1, kind * factor + end + 1, inferred, is_default)]
    pools[inferred] = len(snapshot.pools) + np.arange(len(inferred))
    event_pools = _completed(trace.pool, events, np.where(pools < 0, default, pools)[of_event])
    initial_pools = _completed(initial["pool"], np.flatnonzero(initial["expandable"]), pools[initial_segment])
    allocation_pools = np.where((segment >= 0) & (pool_id < 0), pools[segment], pool_id)
    return ExpandablePools(allocation_pools, event_pools, initial_pools, len(inferred))


def _completed(pools: NDArray[Any], rows: Ints, inferred: Ints) -> Ints:
    """Return pools in which the unknown pools of some rows are replaced."""
    result = pools.astype(np.int64)
    result[rows] = np.where(result[rows] < 0, inferred, result[rows])
    return result


def default_pool(pools: Sequence[tuple[int, int]]) -> int:
    """Return the index of the default pool; -1 if the file does not contain it."""
    return next((number for number, pool in enumerate(pools) if pool == (0, 0)), -1)


def _overlaps(begin: Ints, end: Ints, rows: Ints, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return whether the interval of each row overlaps an interval in ``mask``; these do not overlap each other."""
    order = np.flatnonzero(mask)[np.argsort(begin[mask], kind="stable")]
    place = np.searchsorted(begin[order], end[rows], side="right") - 1
    return (place >= 0) & (np.append(end[order], -1)[place] >= begin[rows])
