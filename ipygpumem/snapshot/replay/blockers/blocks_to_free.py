"""Search for the smallest set of blocks in use that would have made room for a request if they had been freed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.serialization import Serializable
from ipygpumem.core.units import MIB
from ipygpumem.snapshot.replay.allocator import SimulatedOutOfMemoryError
from ipygpumem.snapshot.replay.blockers.pages_to_unmap import blocks_to_unmap
from ipygpumem.snapshot.replay.run import ReplayRun, run
from ipygpumem.snapshot.replay.settings import SMALL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_UNIT = 2 * MIB
"""Unit in which sizes of segments are counted."""
_MAX_UNITS = 1 << 16
"""Largest amount of memory, in units, for which the segments with the fewest bytes in use are selected (128 GiB)."""
_MAX_CHOICES = 1 << 28
"""Largest product of the amount of memory, in units, and the number of segments (a search of 1 s with 32 MiB)."""


@dataclass(frozen=True, slots=True)
class BlocksToFree(Serializable):
    """Set of blocks in use that, as a replay shows, would have made room for a request if they had been freed.

    Usually, no set has a smaller total size. There may be a smaller set if a file has very many segments or pages of
    expandable segments, or if a replay serves the request at another address than the search assumes.

    Attributes:
        bytes: Total size of the blocks in bytes.
        rows: Rows of the blocks in the allocations of the timeline.
        segments: Number of segments that contain the blocks.
        contiguous: Whether the memory of the blocks and the free memory between them form one range in which the
            request would fit. False only for failed requests: PyTorch could then free or unmap the memory of the blocks
            and use the physical memory for the request.
    """

    bytes: int
    rows: tuple[int, ...]
    segments: int
    contiguous: bool


@dataclass(slots=True)
class SimulatedSegment:
    """Segment, or mapped range of an expandable segment, of the simulated allocator.

    Attributes:
        free: Sizes in bytes of the free blocks.
        rows: Rows of the blocks in use.
    """

    address: int
    size: int
    pool: int
    free: list[int]
    rows: list[int]


def smallest_set(
    result: ReplayRun,
    segments: Sequence[SimulatedSegment],
    serving: int,
    rounded: int,
    options: Mapping[str, Any],
    *,
    failed: bool,
) -> BlocksToFree | None:
    """Return the smallest set of blocks to free, or None if no set is found.

    Args:
        result: Replay up to the request.
        segments: Segments with blocks in use, except those of private pools that do not serve the request.
        serving: Index of the pool that serves the request.
        rounded: Rounded size of the request in bytes.
        options: Options of `run` with which the recording was replayed.
        failed: Whether the request failed.
    """
    recording, limit = result.recording, result.recording.limit[0]
    choices = [_contiguous(result, [segment for segment in segments if segment.pool == serving], rounded)]
    releasable = [segment for segment in segments if not recording.pools[segment.pool].private]
    if recording.settings.expandable and failed:
        choices += _unmapped(result, releasable, serving, rounded)
    elif not recording.settings.expandable:
        needed = result.allocator.reserved + recording.settings.segment_size(rounded) - limit
        choices.append(_whole_segments(result, releasable, needed))
    candidates = sorted(filter(None, choices), key=lambda choice: choice.bytes)
    if candidates and not candidates[0].rows:  # a free block fits, but a retry does not search the free blocks again
        return None
    return next((choice for choice in candidates if _serves(result, choice, serving, rounded, options)), None)


def _unmapped(
    result: ReplayRun, segments: Sequence[SimulatedSegment], serving: int, rounded: int
) -> Iterator[BlocksToFree]:
    """Yield sets of blocks in expandable segments. If the blocks of a set were free, enough memory could be unmapped.

    The second set allows for one additional page, because the allocator may serve the request at another address.
    """
    recording, allocator = result.recording, result.allocator
    expandable = [segment for segment in segments if allocator.is_mapped(segment.address)]
    rows = [row for segment in expandable for row in segment.rows]
    unmapped = sum(size for start, size, pool in allocator.mapped_ranges() if not allocator.pools[pool].private)
    limit, page = recording.limit[0] - (allocator.reserved - unmapped), allocator.page_size(serving)
    request: tuple[int, int] | None = (serving, rounded)
    if recording.by_fraction:
        limit, request = limit - recording.settings.segment_size(rounded), None
    elif all(segment.pool != serving for segment in expandable):
        limit, request = limit - -(-rounded // page) * page, None
    for excess in (0, page):
        rows_to_free = blocks_to_unmap(result, rows, limit - excess, request)
        if rows_to_free:
            freed_rows = set(rows_to_free)
            count = sum(not freed_rows.isdisjoint(segment.rows) for segment in expandable)
            yield BlocksToFree(
                sum(result.sizes[row] for row in rows_to_free), tuple(rows_to_free), count, contiguous=False
            )


def _serves(result: ReplayRun, choice: BlocksToFree, serving: int, rounded: int, options: Mapping[str, Any]) -> bool:
    recording = result.recording
    options = {**options, "by_fraction": recording.by_fraction, "end": result.end}
    again = run(recording, recording.settings, **options)
    pools = recording.pool_of + (recording.settings.round(recording.allocations.size) <= SMALL)
    for row in choice.rows:
        again.allocator.free(int(pools[row]), again.addresses[row], again.sizes[row])
        again.completed[row] = again.end
    if choice.contiguous:
        return again.allocator.fits(serving, rounded)
    again.allocator.limit = recording.limit[0]
    following = recording.operations[np.searchsorted(recording.events, again.end) :][:1].tolist()
    try:
        again.allocator.allocate(serving, rounded, max([0, *following]))
    except SimulatedOutOfMemoryError:
        return False
    return True


def _contiguous(result: ReplayRun, segments: Sequence[SimulatedSegment], rounded: int) -> BlocksToFree | None:
    """Return the blocks in the range of addresses that can hold a request and has the fewest bytes in use.

    The result is None if no segment is large enough. ``rounded`` is the size of the request in bytes.
    """
    best: tuple[int, list[int]] | None = None
    for segment in segments:
        rows = sorted(segment.rows, key=lambda row: result.addresses[row])
        starts = [result.addresses[row] for row in rows] + [segment.address + segment.size]
        ends = [segment.address] + [result.addresses[row] + result.sizes[row] for row in rows]
        last = used_bytes = 0
        for first, begin in enumerate(ends):  # the range begins after a block that is not freed
            while last < len(rows) and starts[last] - begin < rounded:
                used_bytes += result.sizes[rows[last]]
                last += 1
            if starts[last] - begin >= rounded and (best is None or used_bytes < best[0]):
                best = used_bytes, rows[first:last]
            if first < len(rows):
                used_bytes -= result.sizes[rows[first]] if first < last else 0
                last = max(last, first + 1)
    return None if best is None else BlocksToFree(best[0], tuple(best[1]), 1, contiguous=True)


def _whole_segments(result: ReplayRun, segments: Sequence[SimulatedSegment], needed: int) -> BlocksToFree | None:
    """Select segments of ``needed`` bytes or more in total with the fewest bytes in use, and return their blocks.

    The result is None if no segments are needed, if all segments together are too small, or if the search would take
    too long.
    """
    units = -(-needed // _UNIT)
    largest = min(_MAX_UNITS, sum(segment.size for segment in segments) // _UNIT, _MAX_CHOICES // max(len(segments), 1))
    if not 0 < units <= largest:
        return None
    unreachable = np.iinfo(np.int64).max // 2
    least = np.full(units + 1, unreachable, np.int64)  # bytes in use for each number of units
    least[0] = 0
    taken = np.zeros((len(segments), units // 8 + 1), np.uint8)  # one bit for each number of units
    for number, segment in enumerate(segments):
        size = segment.size // _UNIT
        used_bytes = sum(result.sizes[row] for row in segment.rows)
        before = least[np.maximum(np.arange(units + 1) - size, 0)] + used_bytes
        taken[number] = np.packbits(before < least, bitorder="little")
        least = np.minimum(before, least)
    if least[units] >= unreachable:
        return None
    rows: list[int] = []
    count, units_left = 0, units
    for number in range(len(segments) - 1, -1, -1):
        if taken[number, units_left // 8] >> (units_left % 8) & 1:
            rows += segments[number].rows
            count += 1
            units_left = max(units_left - segments[number].size // _UNIT, 0)
    return BlocksToFree(int(least[units]), tuple(sorted(rows)), count, contiguous=False)
