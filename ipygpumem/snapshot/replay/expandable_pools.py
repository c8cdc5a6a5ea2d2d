"""Inference of the pools of allocations in expandable segments, because events before PyTorch 2.12 contain no pool."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.units import GIB
from ipygpumem.snapshot.model.address_ranges import union
from ipygpumem.snapshot.model.columns import Action, distinct
from ipygpumem.snapshot.replay.settings import SMALL, AllocatorSettings

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.columns import Trace
    from ipygpumem.snapshot.model.timeline import Ints, Timeline
    from ipygpumem.snapshot.snapshot_data import SnapshotData

_SMALLEST_TOTAL = 2 * GIB
"""Lower bound on the memory of a device whose total memory is unknown."""


class SegmentNumbers:
    """Numbers of expandable segments, by address and event.

    PyTorch releases the addresses of a segment when all of its memory is unmapped. Another segment can then use them.

    Args:
        trace: Events.
        initial: Expandable segments before the first event, as in `AllocatorState`: one row per mapped range.
        total: Total memory of the device in bytes, or a lower bound. The address range of a segment is 1/8 longer.

    Attributes:
        count: One more than the largest number.
        starts: Lowest known address of each segment.
    """

    def __init__(self, trace: Trace, initial: NDArray[Any], total: int) -> None:
        events = trace.events(Action.MAP, Action.UNMAP)
        is_map = trace.action[events] == Action.MAP
        address, nbytes = trace.address[events], trace.size[events]
        self._ranges = _address_ranges(address[is_map], nbytes[is_map], initial, total + total // 8)
        size = np.zeros(len(self._ranges) + 1, np.int64)
        np.add.at(size, self._range(initial["address"]), initial["size"])
        self._factor = len(trace) + 2
        change = np.where(is_map, nbytes, -nbytes)
        self._released = _released(self._range(address), events, size, change, self._factor)
        self.count = len(self._ranges) + len(self._released)
        self.starts: Ints = np.full(self.count + 1, np.iinfo(np.int64).max)  # the last element is for -1
        np.minimum.at(self.starts, self.numbers(address, events), address)
        np.minimum.at(self.starts, self.numbers(initial["address"], np.full(len(initial), -1)), initial["address"])

    def _range(self, address: Ints) -> Ints:
        place = np.searchsorted(self._ranges[:, 0], address, side="right") - 1
        return np.where(address < np.append(self._ranges[:, 1], 0)[place], place, -1)

    def numbers(self, address: Ints, event: Ints) -> Ints:
        """Return the number of the segment that contains each address at an event; -1 if there is none."""
        place = self._range(address)
        return np.where(place >= 0, np.searchsorted(self._released, place * self._factor + event + 1) + place, -1)


def _address_ranges(mapped: Ints, sizes: Ints, initial: NDArray[Any], length: int) -> Ints:
    """Return address ranges that each contain memory of one segment at a time: an array of starts and ends.

    PyTorch maps memory after mapped memory, or at the start of a segment. Only memory that was mapped before the first
    event can therefore be separated from memory of the same segment at lower addresses.

    ``mapped``, ``sizes``: Addresses and sizes that were mapped while recording.
    ``length``: Length in bytes of the address range of a segment.
    """
    ranges = union(np.append(mapped, initial["address"]), np.append(sizes, initial["size"]))
    is_start, is_older = (np.isin(ranges[:, 0], addresses).tolist() for addresses in (mapped, initial["address"]))
    result: list[tuple[int, int]] = []
    known_start = False  # whether the last range begins at the start of a segment
    for number, (start, end) in enumerate(ranges.tolist()):
        if result and is_older[number]:
            first, last = result[-1]
            # two segments are `length` apart: assume the alternative that needs less unmapped memory before a range
            unmapped = 0 if known_start else start - last
            if end - first + unmapped <= length:
                result[-1] = first, end
                continue
        result.append((start, end))
        known_start = is_start[number]
    return np.asarray(result, np.int64).reshape(-1, 2)


@dataclass(frozen=True, slots=True, eq=False)
class ExpandablePools:
    """Pools of the allocations and events of a recording with expandable segments.

    Indices of pools refer to ``SnapshotData.pools``.

    Attributes:
        allocation_pools: Index of the pool of each allocation; -1 if it is unknown.
        event_pools: Index of the pool of each event; -1 if it is unknown. Events that map or unmap memory of an unknown
            pool have the index of the default pool.
        initial_pools: Index of the pool of each segment before the first event; -1 if it is unknown.
        initial_small: Whether each segment before the first event belongs to a small pool.
        inferred_count: Number of pools that the file does not contain, because they were deleted before the end. Their
            indices follow those of the other pools.
        segments: Numbers of the expandable segments; None if no memory was mapped or unmapped while recording.
    """

    allocation_pools: Ints
    event_pools: NDArray[Any]
    initial_pools: NDArray[Any]
    initial_small: NDArray[np.bool_]
    inferred_count: int = 0
    segments: SegmentNumbers | None = None


def expandable_pools(
    snapshot: SnapshotData, timeline: Timeline, initial: NDArray[Any], pool_id: Ints, settings: AllocatorSettings
) -> ExpandablePools:
    """Return the pools of all allocations and events.

    All memory of an expandable segment belongs to one pool. PyTorch releases the addresses of a segment when all of its
    memory is unmapped. Another pool can then use them. A pool has one segment for each stream and size class (small or
    large), because the address range of a segment is larger than the memory of the device. A segment without a known
    pool that exists together with a segment of the default pool therefore belongs to another pool.

    Args:
        snapshot: The snapshot, which contains the pools of the segments at the end.
        timeline: Events and allocations.
        initial: Segments before the first event, as in `AllocatorState`.
        pool_id: Index of the pool of each allocation; -1 if it is unknown.
        settings: Settings with which the recording was made.
    """
    trace, allocations, segments = timeline.trace, timeline.allocations, snapshot.segments
    events = trace.events(Action.MAP, Action.UNMAP)
    if not len(events):
        return ExpandablePools(pool_id, trace.pool, initial["pool"], initial["small"] > 0)
    old = initial[initial["expandable"]]
    total = snapshot.own.device_totals.get(timeline.device) or max(timeline.reserved_peak or 0, _SMALLEST_TOTAL)
    numbered = SegmentNumbers(trace, old, total)
    segment_of = numbered.numbers

    at_end = np.flatnonzero((segments.device == timeline.device) & segments.expandable & (segments.pool >= 0))
    segment = segment_of(allocations.address, allocations.start.astype(np.int64))
    final = segment_of(segments.address[at_end], np.full(len(at_end), len(trace)))
    of_event = segment_of(trace.address[events], events)
    pools = np.full(numbered.count + 1, -1, np.int64)  # the last element is for index -1
    np.maximum.at(pools, segment, pool_id)
    np.maximum.at(pools, final, segments.pool[at_end].astype(np.int64))

    begin, end = np.full(len(pools), len(trace)), np.full(len(pools), -1)
    np.minimum.at(begin, of_event, events)
    np.maximum.at(end, of_event, events)
    initial_segment = segment_of(old["address"], np.full(len(old), -1))
    begin[initial_segment] = -1
    end[final] = len(trace)
    stream, is_small = np.zeros(len(pools), np.int64), np.zeros(len(pools), np.bool_)
    stream[initial_segment] = np.maximum(old["stream"], 0)
    stream[of_event] = trace.stream[events]
    # the allocations or, if there are none, the units in which memory is mapped show the size class
    mapped_segment, mapped_size = np.append(of_event, initial_segment), np.append(trace.size[events], old["size"])
    is_small[mapped_segment[mapped_size % settings.large_segment > 0]] = True
    is_small[final] = segments.small[at_end] > 0
    is_small[segment] = settings.round(allocations.size) <= SMALL
    exists = begin <= end
    exists[-1] = False
    kind, factor = 2 * np.searchsorted(distinct(stream), stream) + is_small, len(trace) + 2
    default = default_pool(snapshot.pools)
    is_default = exists & (pools == default)
    inferred = np.flatnonzero(exists & (pools < 0) & (default >= 0))  # a file without pools has only default pools
    inferred = inferred[_overlaps(kind * factor + begin + 1, kind * factor + end + 1, inferred, is_default)]
    pools[inferred] = len(snapshot.pools) + np.arange(len(inferred))
    event_pools = _completed(trace.pool, events, np.where(pools < 0, default, pools)[of_event])
    initial_pools = _completed(initial["pool"], np.flatnonzero(initial["expandable"]), pools[initial_segment])
    initial_small = initial["small"] > 0
    initial_small[initial["expandable"]] = is_small[initial_segment]
    allocation_pools = np.where((segment >= 0) & (pool_id < 0), pools[segment], pool_id)
    return ExpandablePools(allocation_pools, event_pools, initial_pools, initial_small, len(inferred), numbered)


def _released(place: Ints, events: Ints, size: Ints, change: Ints, factor: int) -> Ints:
    """Return the events after which a range contains no mapped memory, as keys that are ordered by range and event.

    ``place`` contains the range of each event, ``change`` the change of its size, and ``size`` the initial sizes.
    """
    order = np.lexsort((events, place))
    place, change = place[order], change[order]
    total = np.cumsum(change)
    first = np.flatnonzero(np.diff(place, prepend=-2))
    before = np.repeat((total - change)[first], np.diff(np.append(first, len(place))))
    released: Ints = (place * factor + events[order] + 1)[total - before + size[place] == 0]
    return released


def _completed(pools: NDArray[Any], rows: Ints, inferred: Ints) -> Ints:
    result = pools.astype(np.int64)
    result[rows] = np.where(result[rows] < 0, inferred, result[rows])
    return result


def default_pool(pools: Sequence[tuple[int, int]]) -> int:
    return next((number for number, pool in enumerate(pools) if pool == (0, 0)), -1)


def _overlaps(begin: Ints, end: Ints, rows: Ints, mask: NDArray[np.bool_]) -> NDArray[np.bool_]:
    order = np.flatnonzero(mask)[np.argsort(begin[mask], kind="stable")]
    place = np.searchsorted(begin[order], end[rows], side="right") - 1
    return (place >= 0) & (np.append(end[order], -1)[place] >= begin[rows])
