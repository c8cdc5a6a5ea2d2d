"""Blocks in use that keep partly used segments from being freed, and the smallest set of blocks to free."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.core.serialization import PlainData
from ipygpumem.core.units import MIB
from ipygpumem.snapshot.model.cells import block_key
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.queries.groups import label_rows
from ipygpumem.snapshot.replay.advice import SuggestedChange, changes
from ipygpumem.snapshot.replay.allocator import ReplayedOutOfMemoryError
from ipygpumem.snapshot.replay.run import ReplayRun, run
from ipygpumem.snapshot.replay.settings import SMALL

if TYPE_CHECKING:
    from ipygpumem.snapshot.replay.recording import Recording
    from ipygpumem.snapshot.snapshot_data import SnapshotData

_UNIT = 2 * MIB
"""Unit in which sizes of segments are counted."""
_MAX_UNITS = 1 << 16
"""Largest amount of memory, in units, for which the smallest set of segments is computed (128 GiB)."""
_MAX_CHOICES = 1 << 28
"""Largest product of this amount and the number of segments. It requires 1 s and 32 MiB."""


@dataclass(frozen=True, slots=True)
class BlockingLine(PlainData):
    """A line of code whose blocks are in partly used segments. Sizes are in bytes.

    Attributes:
        label: The line, as in `Group`.
        only: Total size of the segments in which only blocks of this line are in use.
        free: Free memory in all segments that contain blocks of this line.
        bytes: Total size of the blocks.
        count: Number of blocks.
        variables: Names of variables that hold some of the blocks, if the file contains them.
    """

    label: str
    only: int
    free: int
    bytes: int
    count: int
    variables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BlocksToFree(PlainData):
    """A set of blocks in use without which, as a replay shows, existing segments would have served a request.

    Attributes:
        bytes: Total size of the blocks in bytes.
        rows: Rows of the blocks in the allocations of the timeline.
        segments: Number of segments that contain the blocks.
        contiguous: Whether the request would fit into the memory of the blocks and the free memory between them.
            Otherwise, the request failed, and the blocks' segments would be empty, so that PyTorch could free them
            and allocate a new segment.
    """

    bytes: int
    rows: tuple[int, ...]
    segments: int
    contiguous: bool


@dataclass(frozen=True, slots=True)
class SegmentBlockers(PlainData):
    """Blocks in use and free memory, in bytes, before a request that failed or was served from a new segment.

    Attributes:
        size: Rounded size of the request.
        reserved: Reserved memory after the request; None if it failed.
        empty: Free memory in segments without blocks in use, which PyTorch can free.
        other_stream: Free memory of other streams in partly used segments.
        private: Free memory in partly used segments of private pools.
        other_size: Free memory in partly used segments of the pool for requests of other sizes.
        partly_used: Free memory in partly used segments of the pool that serves the request.
        segments: Number of the segments to which ``partly_used`` refers.
        largest: Size of the largest free block in these segments.
        lines: Lines of code whose blocks are in these segments, ordered by ``only`` and then by ``free``.
        smallest: Smallest set of blocks to free; None if the request fits or no such set was found.
        changes: Changes to the program with which the request would have succeeded, or with which the peak of reserved
            memory would have been lower.
    """

    event: int
    size: int
    reserved: int | None
    empty: int
    other_stream: int
    private: int
    other_size: int
    partly_used: int = field(metadata={"key": "pinned"})
    segments: int
    largest: int
    lines: tuple[BlockingLine, ...]
    smallest: BlocksToFree | None
    changes: tuple[SuggestedChange, ...]


@dataclass(slots=True)
class _Segment:
    address: int
    size: int
    pool: int
    free: list[int]
    rows: list[int]


def segment_blockers(snapshot: SnapshotData, recording: Recording, event: int) -> SegmentBlockers:
    """Return the blocks in use that kept a request from being served from existing segments.

    Args:
        snapshot: The snapshot.
        recording: A recording that is reproduced by its replay.
        event: The out-of-memory error or the allocation.
    """
    failed, curve = recording.trace.action[event] == Action.OOM, recording.timeline.reserved
    end, is_known = event + failed, True
    if failed:
        serving, rounded = recording.failed_request(event, recording.settings)
        is_known = not recording.may_be_private(event)
    else:
        (row,) = np.flatnonzero(recording.allocations.start == event)
        rounded = int(recording.settings.round(recording.allocations.size[row]))
        serving = int(recording.pool_of[row]) + (rounded <= SMALL)
    result = run(recording, recording.settings, recorded=True, end=end)
    segments = _segments(result, end - 1)
    target = recording.pools[serving]
    sums = dict.fromkeys(("empty", "other_stream", "private", "other_size", "partly_used"), 0)
    partly_used: list[_Segment] = []
    for segment in segments:
        pool = recording.pools[segment.pool]
        free = sum(segment.free)
        if not segment.rows:
            sums["empty"] += free
        elif segment.pool == serving:
            sums["partly_used"] += free
            partly_used += [segment] if free else []
        elif pool.private:
            sums["private"] += free
        elif pool.stream != target.stream:
            sums["other_stream"] += free
        else:
            sums["other_size"] += free
    used = [segment for segment in segments if segment.rows and not recording.pools[segment.pool].private]
    lines, rows_of = _lines(snapshot, recording, result, partly_used)
    return SegmentBlockers(
        event=event,
        size=rounded,
        reserved=None if failed or curve is None else int(curve.bytes[event + 1]),
        **sums,
        segments=len(partly_used),
        largest=max((size for segment in partly_used for size in segment.free), default=0),
        lines=lines,
        smallest=_smallest(result, used, serving, rounded) if is_known else None,
        changes=changes(recording, event, [(line.label, rows_of[line.label]) for line in lines]) if is_known else (),
    )


def _segments(result: ReplayRun, event: int) -> list[_Segment]:
    """Return the segments and mapped ranges after an event with their free blocks and blocks in use."""
    allocator, allocations = result.allocator, result.recording.allocations
    table = {address: _Segment(address, size, -1, [], []) for address, size in allocator.segments.items()}
    table |= {address: _Segment(address, size, pool, [], []) for address, size, pool in allocator.mapped_ranges()}
    starts = sorted(table)
    for pool in range(len(allocator.pools)):
        for address, size in allocator.free_blocks(pool):
            segment = table[starts[bisect_right(starts, address) - 1]]
            segment.pool = pool
            segment.free.append(size)
    small = result.recording.settings.round(allocations.size) <= SMALL
    for row in allocations.live(event).tolist():
        segment = table[starts[bisect_right(starts, result.addresses[row]) - 1]]
        segment.pool = int(result.recording.pool_of[row] + small[row])
        segment.rows.append(row)
    return [table[address] for address in starts]


def _lines(
    snapshot: SnapshotData, recording: Recording, result: ReplayRun, partly_used: list[_Segment]
) -> tuple[tuple[BlockingLine, ...], dict[str, list[int]]]:
    rows = [row for segment in partly_used for row in segment.rows]
    labels, label_of = label_rows(snapshot, recording.timeline, np.asarray(rows, np.int64), "line")
    numbers = iter(label_of.tolist())
    rows_of: dict[str, list[int]] = {label: [] for label in labels}
    for row, number in zip(rows, label_of.tolist(), strict=True):
        rows_of[labels[number]].append(row)
    table = np.zeros((len(labels), 4), np.int64)
    for segment in partly_used:
        present = [next(numbers) for _ in segment.rows]
        for row, number in zip(segment.rows, present, strict=True):
            table[number, 2:] += (result.sizes[row], 1)
        for number in set(present):
            table[number, 1] += sum(segment.free)
            table[number, 0] += segment.size if len(set(present)) == 1 else 0
    known, addresses = snapshot.own.variables, recording.allocations.address
    lines = []
    for label, (only, free, nbytes, count) in zip(labels, table.tolist(), strict=True):
        keys = (block_key(recording.device, int(addresses[row])) for row in rows_of[label])
        names = dict.fromkeys(known.get(key, "") for key in keys)
        lines.append(BlockingLine(label, only, free, nbytes, count, tuple(name for name in names if name)))
    return tuple(sorted(lines, key=lambda line: (-line.only, -line.free, line.label))), rows_of


def _smallest(result: ReplayRun, segments: list[_Segment], serving: int, rounded: int) -> BlocksToFree | None:
    recording, limit = result.recording, result.recording.limit[0]
    choices = [_contiguous(result, [segment for segment in segments if segment.pool == serving], rounded)]
    if not recording.settings.expandable:
        needed = result.allocator.reserved + recording.settings.segment_size(rounded) - limit
        choices.append(_whole_segments(result, segments, needed))
    confirmed = [choice for choice in choices if choice and _serves(result, choice, serving, rounded)]
    return min(confirmed, key=lambda choice: choice.bytes, default=None)


def _serves(result: ReplayRun, choice: BlocksToFree, serving: int, rounded: int) -> bool:
    recording = result.recording
    again = run(recording, recording.settings, recorded=True, end=result.end)
    pools = recording.pool_of + (recording.settings.round(recording.allocations.size) <= SMALL)
    for row in choice.rows:
        again.allocator.free(int(pools[row]), again.addresses[row], again.sizes[row])
    if choice.contiguous:
        return again.allocator.fits(serving, rounded)
    again.allocator.limit = recording.limit[0]
    try:
        again.allocator.allocate(serving, rounded, len(recording.operations))
    except ReplayedOutOfMemoryError:
        return False
    return True


def _contiguous(result: ReplayRun, segments: list[_Segment], rounded: int) -> BlocksToFree | None:
    """Return the blocks in the part of a segment that is large enough for a request and has the fewest bytes in use."""
    best: tuple[int, list[int]] | None = None
    for segment in segments:
        rows = sorted(segment.rows, key=lambda row: result.addresses[row])
        starts = [result.addresses[row] for row in rows] + [segment.address + segment.size]
        ends = [segment.address] + [result.addresses[row] + result.sizes[row] for row in rows]
        last = used = 0
        for first, begin in enumerate(ends):  # the part begins behind a block that stays
            while last < len(rows) and starts[last] - begin < rounded:
                used += result.sizes[rows[last]]
                last += 1
            if starts[last] - begin >= rounded and (best is None or used < best[0]):
                best = used, rows[first:last]
            if first < len(rows):
                used -= result.sizes[rows[first]] if first < last else 0
                last = max(last, first + 1)
    return None if best is None else BlocksToFree(best[0], tuple(best[1]), 1, contiguous=True)


def _whole_segments(result: ReplayRun, segments: list[_Segment], needed: int) -> BlocksToFree | None:
    """Return the blocks of the segments that together have the needed size and the fewest bytes in use."""
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
        used = sum(result.sizes[row] for row in segment.rows)
        before = least[np.maximum(np.arange(units + 1) - size, 0)] + used
        taken[number] = np.packbits(before < least, bitorder="little")
        least = np.minimum(before, least)
    if least[units] >= unreachable:
        return None
    rows: list[int] = []
    count, left = 0, units
    for number in range(len(segments) - 1, -1, -1):
        if taken[number, left // 8] >> (left % 8) & 1:
            rows += segments[number].rows
            count += 1
            left = max(left - segments[number].size // _UNIT, 0)
    return BlocksToFree(int(least[units]), tuple(sorted(rows)), count, contiguous=False)
