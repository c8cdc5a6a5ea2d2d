"""Fragmentation of segments and analysis of out-of-memory errors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.serialization import Serializable
from ipygpumem.core.units import many, size
from ipygpumem.snapshot.model.columns import distinct
from ipygpumem.snapshot.model.segment_history import AllocatorState, find_range
from ipygpumem.snapshot.model.timeline import Ints
from ipygpumem.snapshot.replay.settings import SMALL, AllocatorSettings
from ipygpumem.snapshot.snapshot_data import SnapshotData

_DEFAULT_POOL = (0, 0)


@dataclass(frozen=True, slots=True)
class AllocationFit:
    """Result of checking whether an allocation fits into the free memory of the segments. Sizes are in bytes.

    Attributes:
        requested, rounded: Size of the allocation before and after rounding by the allocator.
        small: Whether the allocation is served from the small pool, which is for sizes up to 1 MiB.
        block: Size of the smallest free block that PyTorch can use; None if there is no such block. Blocks that
            ``max_split_size_mb`` excludes cannot be used. For a failed allocation in a private pool, only blocks in
            private pools are considered; if its pool is unknown, all blocks; otherwise, blocks in the default pool.
        segment: Size of the new segment that PyTorch allocates if there is no such block.
    """

    requested: int
    rounded: int
    small: bool
    block: int | None
    segment: int


@dataclass(frozen=True, slots=True)
class Fragmentation(Serializable):
    """Free memory inside the segments after an event. All sizes are in bytes.

    The sum of ``empty``, ``partly`` and ``private`` is ``free``.

    Attributes:
        device, event: Device index and event index.
        reserved, requested: Total size of the segments, and total requested size of the blocks in use.
        free, largest: Total size of the free blocks, and size of the largest free block.
        pieces: Number of free blocks.
        empty: Free memory in segments of the default pool without blocks in use, which ``torch.cuda.empty_cache`` would
            release.
        partly: Free memory in partly used segments of the default pool, which only PyTorch can reuse.
        private: Free memory in private pools of CUDA graphs and of ``torch.cuda.MemPool``.
        derived: Whether the sizes of blocks in use are estimated as multiples of 512 bytes, because neither the file
            nor the recorded addresses determine them, and a replay does not reproduce the recording. Free sizes are
            then upper bounds, because a block may include a remainder of up to 1 MiB that was not split off.
        fit: Whether and where an allocation of a given size fits; None if no size was given.
    """

    device: int
    event: int
    reserved: int
    requested: int
    free: int
    largest: int
    pieces: int
    empty: int
    partly: int
    private: int
    derived: bool
    fit: AllocationFit | None = None


def fragmentation(
    snapshot: SnapshotData,
    state: AllocatorState,
    need: int | None = None,
    stream: int | None = None,
    *,
    replayed: bool = False,
    private_request: bool | None = False,
) -> Fragmentation:
    """Measure the free memory in segments, and check whether ``need`` bytes fit (on ``stream``, if given).

    ``private_request``: Whether the request belongs to a private pool; None if it is unknown.
    """
    timeline, settings = snapshot.timeline(state.device), AllocatorSettings.from_snapshot(snapshot.settings)
    at_end = state.event == len(timeline.trace) - 1
    exact = at_end and not timeline.gaps.only_in_segments and not timeline.gaps.only_in_events
    length, owner = (
        _recorded_free_blocks(snapshot, state) if exact else _derived_free_blocks(settings, state, replayed=replayed)
    )
    is_used = np.isin(owner, find_range(state.segments, state.blocks["address"]))
    pools = distinct(state.segments["pool"][owner]).tolist()
    private_pools = [number for number in pools if number >= 0 and snapshot.pools[number] != _DEFAULT_POOL]
    private = np.isin(state.segments["pool"][owner], private_pools)
    usable = np.ones(len(length), np.bool_)
    if private_request is not None:
        usable = private == private_request
    return Fragmentation(
        device=state.device,
        event=state.event,
        reserved=state.reserved,
        requested=state.requested,
        free=int(length.sum()),
        largest=int(length.max(initial=0)),
        pieces=len(length),
        empty=int(length[~private & ~is_used].sum()),
        partly=int(length[~private & is_used].sum()),
        private=int(length[private].sum()),
        derived=not exact and not replayed,
        fit=None if need is None else _fit(settings, need, stream, length[usable], state.segments[owner[usable]]),
    )


def _fit(
    settings: AllocatorSettings, need: int, stream: int | None, length: Ints, segments: NDArray[Any]
) -> AllocationFit:
    rounded = int(settings.round(np.array([need]))[0])
    small = rounded <= SMALL
    suitable = (length >= rounded) & ((segments["small"] == small) | (segments["small"] < 0))
    if stream is not None:
        suitable &= segments["stream"] == stream
    block = int(length[suitable].min()) if suitable.any() else None
    if block is not None and settings.max_split_size is not None:
        slack = settings.large_segment if settings.non_split_rounding is None else settings.non_split_rounding
        is_whole = rounded >= settings.max_split_size  # such a request does not split a block
        highest = rounded + slack if is_whole else settings.max_split_size
        block = None if block >= highest else block
    return AllocationFit(need, rounded, small, block, settings.segment_size(rounded))


def _recorded_free_blocks(snapshot: SnapshotData, state: AllocatorState) -> tuple[Ints, Ints]:
    blocks = snapshot.blocks
    free = np.flatnonzero((blocks.device == state.device) & ~blocks.active)
    owner = find_range(state.segments, blocks.address[free])
    return blocks.size[free][owner >= 0], owner[owner >= 0]


def _derived_free_blocks(settings: AllocatorSettings, state: AllocatorState, *, replayed: bool) -> tuple[Ints, Ints]:
    """Return the size and the segment row of each free range between blocks, and at the ends of segments.

    The sizes of the blocks are those of a replay if ``replayed`` is true, and are otherwise estimated.
    """
    segments, blocks = state.segments, state.blocks
    owner = find_range(segments, blocks["address"])
    blocks, owner = blocks[owner >= 0], owner[owner >= 0]
    rounded = blocks["rounded"] if replayed else settings.round(blocks["requested"])
    rows = np.arange(len(segments))
    # add an empty block at the start and end of each segment, so that the memory between any two blocks is free
    segment = np.concatenate([owner, rows, rows])
    begin = np.concatenate([blocks["address"], segments["address"], segments["address"] + segments["size"]])
    end = np.concatenate([blocks["address"] + rounded, segments["address"], segments["address"] + segments["size"]])
    order = np.lexsort((end, begin, segment))
    segment, begin, end = segment[order], begin[order], end[order]
    gap = np.where(segment[1:] == segment[:-1], begin[1:] - end[:-1], 0)
    free = np.flatnonzero(gap > 0)
    return gap[free], segment[free]


@dataclass(frozen=True, slots=True)
class OomAnalysis(Serializable):
    """Analysis of a failed allocation.

    Attributes:
        device, event: Device index and event index.
        time_us: Timestamp in microseconds since the Unix epoch; None if unknown.
        asked: Size of the request in bytes, which PyTorch records after rounding it.
        device_free: Free device memory in bytes when the allocation failed; None if not recorded.
        memory: Free memory inside the segments when the allocation failed.
        reason: Sentences that explain why the allocation failed.
    """

    device: int
    event: int
    time_us: int | None
    asked: int
    device_free: int | None
    memory: Fragmentation
    reason: tuple[str, ...]


def explain_oom(snapshot: SnapshotData, state: AllocatorState, *, replayed: bool = False) -> OomAnalysis:
    """Analyze an out-of-memory error. ``state`` is the state right after its event."""
    trace = snapshot.timeline(state.device).trace
    event = state.event
    requested = int(trace.size[event])
    pool = int(trace.pool[event])
    private = None if pool < 0 else snapshot.pools[pool] != _DEFAULT_POOL
    memory = fragmentation(
        snapshot, state, requested, int(trace.stream[event]), replayed=replayed, private_request=private
    )
    device_free = trace.device_free.get(event)
    reason = _reason(AllocatorSettings.from_snapshot(snapshot.settings), memory, requested, device_free)
    return OomAnalysis(state.device, event, trace.time_of(event), requested, device_free, memory, reason)


def _reason(
    settings: AllocatorSettings, memory: Fragmentation, requested: int, device_free: int | None
) -> tuple[str, ...]:
    segment = settings.segment_size(int(settings.round(np.array([requested]))[0]))
    blocks, free, largest = many(memory.pieces, "block"), size(memory.free), size(memory.largest)
    sentences = [f"{size(requested)} was requested."]
    if memory.largest < requested:
        sentences.append(f"PyTorch had {free} free in {blocks}, the largest {largest}: none was large enough.")
    elif memory.fit is not None and memory.fit.block is None:
        pool = "large" if memory.fit.small else "small"
        explanation = f"belonged to another stream, to the {pool} pool or to another memory pool"
        if settings.max_split_size is not None:
            explanation += ", or was not used because of max_split_size_mb"
        sentences.append(f"The largest free block, {largest}, {explanation}.")
    else:
        sentences.append(f"PyTorch had free blocks of up to {largest}, which may belong to another memory pool.")
    if device_free is not None and device_free < segment:
        sentences.append(
            f"A new segment of {size(segment)} was needed, but only {size(device_free)} of device memory was free."
        )
    elif device_free is not None:
        sentences.append(
            f"A new segment of {size(segment)} was needed. {size(device_free)} of device memory was free, but "
            "the limit set with torch.cuda.set_per_process_memory_fraction may have prevented the allocation."
        )
    if memory.partly:
        advice = "." if settings.expandable else "; expandable_segments:True often avoids this: see ipygpumem whatif."
        where = "of free memory is in partly used segments, which only PyTorch can reuse"
        sentences.append(f"{size(memory.partly)} {where}{advice}")
    return tuple(sentences)
