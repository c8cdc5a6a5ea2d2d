"""Analysis of a request that no free block could serve, and of the blocks in use that prevented it."""

from __future__ import annotations

import copy
from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.serialization import Serializable
from ipygpumem.snapshot.model.cells import block_key
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.queries.groups import label_rows
from ipygpumem.snapshot.replay.blockers.advice import SuggestedChange, changes
from ipygpumem.snapshot.replay.blockers.blocks_to_free import BlocksToFree, SimulatedSegment, smallest_set
from ipygpumem.snapshot.replay.run import ReplayRun, run
from ipygpumem.snapshot.replay.settings import SMALL

if TYPE_CHECKING:
    from ipygpumem.snapshot.replay.recording import Recording
    from ipygpumem.snapshot.snapshot_data import SnapshotData


@dataclass(frozen=True, slots=True)
class BlockingLine(Serializable):
    """Line of code whose blocks are in partly used segments. Sizes are in bytes.

    Attributes:
        label: Label of the line of code, as in `Group`.
        exclusive_segments: Total size of the segments in which only blocks of this line are in use.
        free: Free memory in all segments that contain blocks of this line.
        bytes: Total size of the blocks.
        count: Number of blocks.
        variables: Names of variables that hold some of the blocks, if the file contains them.
    """

    label: str
    exclusive_segments: int
    free: int
    bytes: int
    count: int
    variables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BlockedRequestAnalysis(Serializable):
    """Blocks in use and free memory, in bytes, before a request that failed or was served from a new segment.

    Attributes:
        event: Event of the request.
        size: Rounded size of the request.
        capacity: Limit on reserved memory within which the request failed in a replay; None if the values are those of
            the recording.
        reserved: Reserved memory after the request; None if it failed.
        empty: Free memory in segments of default pools without blocks in use, which PyTorch can free.
        other_stream: Free memory of other streams in partly used segments.
        private: Free memory in segments of other pools (private ones or, for a request in a private pool, also default
            ones), and in unused segments of private pools.
        other_size: Free memory in partly used segments of the pool for requests of other sizes.
        partly_used: Free memory in partly used segments of the pool that serves the request.
        segments: Number of the segments to which ``partly_used`` refers.
        largest: Size of the largest free block in these segments.
        uncertain: Maximum amount of ``partly_used`` that may have been in use, because blocks from before the
            recording may be larger than in the replay.
        lines: Lines of code whose blocks are in the segments to which ``partly_used`` refers, in descending order of
            ``exclusive_segments`` and then of ``free``.
        smallest: Smallest set of blocks to free; None if the request fits or no such set was found.
        changes: Changes to the program with which the request would have succeeded, or with which the peak of reserved
            memory would have been lower.
    """

    event: int
    size: int
    capacity: int | None
    reserved: int | None
    empty: int
    other_stream: int
    private: int
    other_size: int
    partly_used: int
    segments: int
    largest: int
    uncertain: int
    lines: tuple[BlockingLine, ...]
    smallest: BlocksToFree | None
    changes: tuple[SuggestedChange, ...]


def analyze_blocked_request(
    snapshot: SnapshotData, recording: Recording, event: int, capacity: int | None = None
) -> BlockedRequestAnalysis:
    """Analyze why a request was not served from existing segments.

    ``event`` is the event of the out-of-memory error or of the allocation. ``capacity`` is the limit on reserved memory
    in bytes within which the request fails; None for the memory that was available.
    """
    is_known, curve = True, recording.timeline.reserved
    options: dict[str, Any] = {"recorded": True}
    if capacity is not None:
        recording = copy.copy(recording)
        recording.limit = capacity, capacity
        recording.by_fraction = recording.settings.collection_threshold > 0
        options = {"limit": capacity, "by_fraction": recording.by_fraction}
    if recording.trace.action[event] == Action.OOM:
        serving, rounded = recording.failed_requests(recording.settings)[event]
        is_known = not recording.may_be_private(event)
    else:
        (row,) = np.flatnonzero(recording.allocations.start == event)
        rounded = int(recording.settings.round(recording.allocations.size[[row]])[0])
        serving = int(recording.pool_of[row]) + (rounded <= SMALL)
    failed = capacity is not None or recording.trace.action[event] == Action.OOM
    result = run(recording, recording.settings, **options, end=event + failed)
    segments = _segments(result, result.end - 1)
    target = recording.pools[serving]
    sums = dict.fromkeys(("empty", "other_stream", "private", "other_size", "partly_used"), 0)
    partly_used: list[SimulatedSegment] = []
    for segment in segments:
        pool = recording.pools[segment.pool]
        free = sum(segment.free)
        if not segment.rows:
            sums["private" if pool.private else "empty"] += free
        elif segment.pool == serving:
            sums["partly_used"] += free
            partly_used += [segment] if free else []
        elif pool.id != target.id:
            sums["private"] += free
        elif pool.stream != target.stream:
            sums["other_stream"] += free
        else:
            sums["other_size"] += free
    used_segments = [
        segment
        for segment in segments
        if segment.rows and (segment.pool == serving or not recording.pools[segment.pool].private)
    ]
    lines, rows_of = _lines(snapshot, recording, result, partly_used)
    return BlockedRequestAnalysis(
        event=event,
        size=rounded,
        capacity=capacity,
        reserved=None if failed or curve is None else int(curve.bytes[event + 1]),
        **sums,
        segments=len(partly_used),
        largest=max((size for segment in partly_used for size in segment.free), default=0),
        uncertain=SMALL
        * len(result.uncertain_rows.intersection(row for segment in partly_used for row in segment.rows)),
        lines=lines,
        smallest=smallest_set(result, used_segments, serving, rounded, options, failed=failed) if is_known else None,
        changes=changes(recording, event, [(line.label, rows_of[line.label]) for line in lines], failed=failed)
        if is_known
        else (),
    )


def _segments(result: ReplayRun, event: int) -> list[SimulatedSegment]:
    allocator, allocations = result.allocator, result.recording.allocations
    segments = [(address, size, -1) for address, size in allocator.segments.items()]
    table = [SimulatedSegment(*segment, [], []) for segment in sorted([*segments, *allocator.mapped_ranges()])]
    starts = [segment.address for segment in table]
    for pool in range(len(allocator.pools)):
        for address, size in allocator.free_blocks(pool):
            segment = table[bisect_right(starts, address) - 1]
            segment.pool = pool
            segment.free.append(size)
    small = result.recording.settings.round(allocations.size) <= SMALL
    for row in allocations.live(event).tolist():
        if row in result.completed:
            continue
        segment = table[bisect_right(starts, result.addresses[row]) - 1]
        segment.pool = int(result.recording.pool_of[row] + small[row])
        segment.rows.append(row)
    return table


def _lines(
    snapshot: SnapshotData, recording: Recording, result: ReplayRun, partly_used: list[SimulatedSegment]
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
        free, lines_of_segment = sum(segment.free), set(present)
        for number in lines_of_segment:
            table[number, 1] += free
            table[number, 0] += segment.size if len(lines_of_segment) == 1 else 0
    names_by_block, addresses = snapshot.own.variables, recording.allocations.address
    lines = []
    for label, (exclusive_segments, free, nbytes, count) in zip(labels, table.tolist(), strict=True):
        keys = (block_key(recording.device, int(addresses[row])) for row in rows_of[label])
        names = dict.fromkeys(names_by_block.get(key, "") for key in keys)
        lines.append(
            BlockingLine(label, exclusive_segments, free, nbytes, count, tuple(name for name in names if name))
        )
    return tuple(sorted(lines, key=lambda line: (-line.exclusive_segments, -line.free, line.label))), rows_of
