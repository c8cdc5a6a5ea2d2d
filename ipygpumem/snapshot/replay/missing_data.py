"""Checks for data that a recording does not contain, and inference of missing sizes from other data."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.model.segment_history import find_range
from ipygpumem.snapshot.replay.settings import SMALL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.columns import Trace
    from ipygpumem.snapshot.model.timeline import Ints, Timeline
    from ipygpumem.snapshot.replay.recording import Recording
    from ipygpumem.snapshot.replay.settings import AllocatorSettings
    from ipygpumem.snapshot.snapshot_data import SnapshotData


def missing_data(snapshot: SnapshotData, timeline: Timeline) -> str:
    gaps, trace, native = timeline.gaps, timeline.trace, snapshot.settings.get("backend", "native") == "native"
    missing = gaps.frees_without_allocation + gaps.missing_frees + gaps.only_in_events + gaps.only_in_segments
    problems = (
        (timeline.reserved is None, "the file does not contain the segments"),
        (not (trace.action == Action.ALLOC).any(), "the recording contains no allocations"),
        (not native, "the recording was not made with PyTorch's native allocator"),
        (gaps.ended_by_request, "the recording does not contain completed frees (skip_actions)"),
        (missing > 0, f"{missing:,} allocations or frees are missing from the recording"),
        (timeline.reserved_peak is None, "the events contradict the segments"),
    )
    return next((text for exists, text in problems if exists), "")


def releases_show_causes(recording: Recording) -> NDArray[np.bool_]:
    """Return for each event whether its stack, if the event freed a segment, is that of the call that freed it.

    Depending on the options of the recording, ``torch.cuda.empty_cache`` has no stack. PyTorch then writes the stack
    with which the segment was allocated.
    """
    trace, allocations, leaf = recording.trace, recording.allocations, recording.snapshot.stacks.leaf
    rows = np.flatnonzero((allocations.free_requested >= 0) & (allocations.free_requested < len(trace)))
    stacks = trace.stack[allocations.free_requested[rows]]
    free_stacks = stacks[(stacks >= 0) & (stacks != allocations.stack[rows])]
    if (leaf[free_stacks] >= 0).any():  # frees have their own stacks
        return np.ones(len(trace), np.bool_)
    events = trace.events(Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.MAP, Action.UNMAP)
    events = events[np.argsort(trace.address[events], kind="stable")]
    previous = np.roll(events, 1)
    is_allocated = np.isin(trace.action[previous], (Action.SEGMENT_ALLOC, Action.MAP))
    is_allocated &= trace.address[previous] == trace.address[events]
    result = np.zeros(len(trace), np.bool_)
    result[events] = is_allocated & (trace.stack[previous] != trace.stack[events])
    return result


def smallest_requests(trace: Trace, settings: AllocatorSettings) -> Ints:
    """Return ``trace.size`` with the smallest possible requested size of each out-of-memory error.

    A file contains only the rounded sizes of these requests. The rounding depends on ``settings``, the settings of the
    recording. Without ``roundup_power2_divisions``, the rounded sizes are returned.
    """
    if max(settings.divisions) <= 1:
        return trace.size
    events = trace.events(Action.OOM)
    rounded = settings.round(trace.size[events])
    low, high = np.ones(len(events), np.int64), np.maximum(trace.size[events], 1)
    while (low < high).any():
        middle = low + (high - low) // 2
        is_enough = settings.round(middle) >= rounded
        low, high = np.where(is_enough, low, np.minimum(middle + 1, high)), np.where(is_enough, middle, high)
    sizes = trace.size.copy()
    sizes[events] = low
    return sizes


def with_smallest_requests(recording: Recording) -> Recording:
    result = copy.copy(recording)
    result.trace = replace(recording.trace, size=smallest_requests(recording.trace, recording.settings))
    return result


def depends_on_requested_size(recording: Recording, settings: AllocatorSettings) -> bool:
    """Return whether the size to which ``settings`` round the last request that failed is unknown."""
    event = recording.last_failed
    if event is None or settings.divisions == recording.settings.divisions:
        return False
    smallest = smallest_requests(recording.trace, recording.settings)[event]
    low, high = settings.round(np.array([smallest, recording.trace.size[event]])).tolist()
    return bool(low < high)


def completes_free(trace: Trace, event: int) -> bool:
    """Return whether an event completes a free that waited for another stream."""
    if event < 0 or trace.action[event] != Action.FREE_COMPLETED:
        return False
    is_requested = event > 0 and trace.action[event - 1] == Action.FREE_REQUESTED
    same_block = trace.address[event - 1] == trace.address[event] and trace.stack[event - 1] == trace.stack[event]
    return not (is_requested and same_block)


def after_completed_frees(trace: Trace, first: int, event: int) -> int:
    """Return the first event from ``event`` on that does not complete a cross-stream free with the stack of ``first``.

    Returns ``event`` if the following event has another stack.
    """
    after = event
    while after < len(trace) and trace.stack[after] == trace.stack[first] and completes_free(trace, after):
        after += 1
    return after if after < len(trace) and trace.stack[after] == trace.stack[first] else event


def pending_frees(recording: Recording) -> tuple[Ints, Ints, Ints]:
    """Return the rows of the allocations whose free waited for another stream.

    The second and third array contain the events in which these frees were requested and completed.
    """
    allocations, requested = recording.allocations, recording.allocations.free_requested
    rows = np.flatnonzero((requested < len(recording.trace)) & (allocations.end != requested + 1))
    return rows, requested[rows], allocations.end[rows]


def older_memory(recording: Recording) -> int:
    """Return the memory in bytes that was reserved before the first event, in segments with or without blocks in use.

    Other settings would have led to other segments and other addresses of the blocks in them. Therefore, each result of
    replays with other settings or limits is an estimate if this memory is not 0.
    """
    return int(recording.initial.segments["size"].sum())


def largest_sizes(sizes: Ints, uncertain: Ints) -> Ints:
    """Return the largest possible sizes of all blocks in bytes.

    ``sizes`` contains the smallest possible sizes, and ``uncertain`` the rows in `ReplayRun.uncertain_rows`.
    """
    result = sizes.copy()
    result[uncertain] += SMALL * (sizes[uncertain] > 0)
    return result


def initial_sizes(recording: Recording) -> tuple[NDArray[Any], list[int]]:
    """Return the sizes in bytes of the blocks before the first event, ordered as in ``initial.blocks``.

    For a block that was freed later, a file contains the requested size but not the true size. In the large pool, a
    block includes a remainder of up to 1 MiB, because such remainders are not split off. Therefore, if the next block
    starts within 1 MiB of the end of the requested size, the block is assumed to end there. The same applies to the
    first higher address at which memory was allocated while the block existed. If neither address is that close, the
    rounded requested size is assumed; the second result contains the indices of these blocks. Blocks in expandable
    segments have no such remainder, and blocks of at least ``max_split_size`` extend to the next block.
    """
    segments, blocks, allocations = recording.initial.segments, recording.initial.blocks, recording.allocations
    owner = find_range(segments, blocks["address"])
    unknown = blocks["rounded"] <= 0
    rounded = recording.settings.round(blocks["requested"])
    sizes = np.where(unknown, rounded, blocks["rounded"])
    segment_end = (segments["address"] + segments["size"])[owner]
    next_address = np.minimum(np.append(blocks["address"][1:], np.iinfo(np.int64).max), segment_end)
    has_remainder = unknown & (rounded > SMALL) & ~segments["expandable"][owner]
    if recording.settings.max_split_size is not None:  # blocks of this size or more are not split
        is_whole = has_remainder & (rounded >= recording.settings.max_split_size)
        sizes[is_whole] = (next_address - blocks["address"])[is_whole]
        has_remainder &= ~is_whole
    recorded_rows = np.flatnonzero(allocations.start >= 0)
    by_address = recorded_rows[np.argsort(allocations.address[recorded_rows], kind="stable")]
    addresses = allocations.address[by_address]
    uncertain = []
    for block in np.flatnonzero(has_remainder).tolist():
        end = int(blocks["address"][block] + sizes[block])
        if next_address[block] - end > SMALL:
            first, last = np.searchsorted(addresses, [end, end + SMALL + 1])
            until = allocations.end[blocks["row"][block]]
            while first < last and allocations.start[by_address[first]] > until:
                first += 1
            if first < last:
                end = int(addresses[first])
            else:
                uncertain.append(block)
        else:
            end = int(next_address[block])
        sizes[block] = end - blocks["address"][block]
    return sizes, uncertain
