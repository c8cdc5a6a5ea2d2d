"""State of the simulated allocator before the first event and after a given event, and addresses of new segments."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.core.units import GIB, MIB
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.model.segment_history import BLOCK, SEGMENT, AllocatorState, find_range
from ipygpumem.snapshot.model.timeline import BEFORE
from ipygpumem.snapshot.replay.expandable_pools import default_pool
from ipygpumem.snapshot.replay.missing_data import initial_sizes
from ipygpumem.snapshot.replay.recording import ADDRESS_LIMIT
from ipygpumem.snapshot.replay.settings import SMALL

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.snapshot.replay.allocator import SimulatedAllocator
    from ipygpumem.snapshot.replay.recording import Recording
    from ipygpumem.snapshot.replay.run import ReplayRun

_HIGHEST = 1 << 51
"""Upper limit of simulated addresses."""
UNKNOWN_TOTAL = 140 * GIB
"""Total memory in bytes that is assumed for a device of unknown size. It determines the size of address ranges."""


def add_initial_state(result: ReplayRun) -> None:
    recording, allocator = result.recording, result.allocator
    segments, blocks = recording.initial.segments, recording.initial.blocks
    block_sizes, uncertain = initial_sizes(recording)
    result.uncertain_rows.update(blocks["row"][uncertain].tolist())
    sizes, starts = block_sizes.tolist(), blocks["address"].tolist()
    for row, address, size in zip(blocks["row"].tolist(), starts, sizes, strict=True):
        result.addresses[row], result.sizes[row] = address, size
    owner = find_range(segments, blocks["address"])
    blocks_of = np.searchsorted(owner, np.arange(len(segments) + 1)).tolist()
    ranges: dict[int, list[tuple[int, int]]] = {}
    range_starts: dict[int, int] = {}
    free: list[tuple[int, int, int]] = []
    for number, segment in enumerate(segments):
        address, size, small = (int(segment[name]) for name in ("address", "size", "small"))
        inside = range(blocks_of[number], blocks_of[number + 1])
        pool = int(recording.segment_pools[number]) + small
        if segment["expandable"]:
            ranges.setdefault(pool, []).append((address, size))
            start = int(recording.initial_starts[number])
            range_starts[pool] = min(start, range_starts.get(pool, start))
        else:
            allocator.add_segment(address, size)
        position = address
        for block in inside:
            free.append((pool, position, starts[block] - position))
            position = starts[block] + sizes[block]
        free.append((pool, position, address + size - position))
    first = sorted(range_starts.values())
    for pool, mapped in ranges.items():
        start = range_starts[pool]
        longest = start + (recording.total or UNKNOWN_TOTAL) * 9 // 8 // MIB * MIB
        following = bisect_right(first, start)
        end = min([longest, *first[following : following + 1]])
        allocator.add_range(pool, start, max(end, sum(mapped[-1])), mapped)
    allocator.work.count(50 * (len(segments) + len(blocks)) + len(free) ** 2 / 400)
    for pool, address, size in free:
        if size > 0:
            allocator.free(pool, address, size)


def fits_initially(result: ReplayRun) -> bool:
    """Return whether the segments from before the recording are within the limit, if necessary without unused segments.

    Unused segments are freed if all segments together exceed the limit. If this is not enough, ``result.failure`` is
    set.
    """
    allocator = result.allocator
    if allocator.exceeds_limit(allocator.reserved):
        allocator.release_cached(0)
        allocator.events.clear()
        allocator.peak = allocator.reserved
        if allocator.raises_limit:
            allocator.limit = max(allocator.limit, allocator.reserved)
    if allocator.exceeds_limit(allocator.reserved):
        in_use = allocator.reserved - allocator.total_free()
        result.fail(BEFORE, in_use, allocator.reserved)
        return False
    return True


def address_chooser(
    recording: Recording, *, recorded: bool, descending: bool
) -> Callable[[SimulatedAllocator, int], int]:
    next_address = _HIGHEST if descending else ADDRESS_LIMIT
    compared, agrees = 0, recorded

    def choose(allocator: SimulatedAllocator, size: int) -> int:
        nonlocal next_address, compared, agrees
        events = slice(compared, len(allocator.events))
        compared = len(allocator.events)
        if agrees:  # segments that are freed together may be in another order
            simulated = sorted(event[:3] for event in allocator.events[events])
            agrees = simulated == sorted(event[:3] for event in recording.segment_events[events])
        address = _recorded_address(recording, allocator, size) if agrees else None
        if address is not None:
            return address
        next_address += -size if descending else size
        if not ADDRESS_LIMIT <= next_address <= _HIGHEST:
            raise recording.error("the requests exceed the address space of a process")
        return next_address if descending else next_address - size

    return choose


def _recorded_address(recording: Recording, allocator: SimulatedAllocator, size: int) -> int | None:
    number, events = len(allocator.events), recording.segment_events
    if number >= len(events):
        return None
    action, address, recorded_size, _ = events[number]
    if action == Action.MAP:
        return None if allocator.is_mapped(address) else address
    if action != Action.SEGMENT_ALLOC or recorded_size != size:
        return None
    return None if address in allocator.segments else address


def simulated_state(result: ReplayRun, event: int) -> AllocatorState:
    recording, allocator = result.recording, result.allocator
    allocations, trace = recording.allocations, recording.trace
    last = min(event, result.end)
    live = allocations.live(last)
    live = live[(np.asarray(result.sizes)[live] > 0) & ~np.isin(live, list(result.completed))]
    blocks = np.zeros(len(live), BLOCK)
    blocks["address"], blocks["rounded"] = np.asarray(result.addresses)[live], np.asarray(result.sizes)[live]
    blocks["requested"], blocks["row"], blocks["stack"] = allocations.size[live], live, allocations.stack[live]
    blocks["pending"] = allocations.free_requested[live] <= last
    pools = recording.pool_of[live] + (allocator.settings.round(allocations.size[live]) <= SMALL)
    free = [(address, pool) for pool in range(len(allocator.pools)) for address, _ in allocator.free_blocks(pool)]
    starts = np.concatenate([np.stack([blocks["address"], pools], axis=1), np.asarray(free, np.int64).reshape(-1, 2)])
    starts = starts[np.argsort(starts[:, 0], kind="stable")]
    rows = [(address, size, False) for address, size in allocator.segments.items()]
    rows += [(address, size, True) for address, size, _ in allocator.mapped_ranges()]
    segments = np.zeros(len(rows), SEGMENT)
    for number, (address, size, expandable) in enumerate(sorted(rows)):
        start, pool_number = starts[np.searchsorted(starts[:, 0], address, side="right") - 1].tolist()
        if start != address:  # each segment begins with a block
            raise KeyError(address)
        pool = allocator.pools[pool_number]
        pool_index = pool.id if pool.id < len(recording.snapshot.pools) else -1
        segments[number] = address, size, pool.stream, -1, pool_index, pool.small, expandable
    if event in result.served:
        requested, stack = int(trace.size[event]), int(trace.stack[event])
        block = (result.served[event][0], requested, result.served[event][1], -1, stack, False)
        blocks = np.append(blocks, np.asarray([block], BLOCK))
    blocks = blocks[np.argsort(blocks["address"], kind="stable")]
    return AllocatorState(recording.device, event, segments, blocks)


def with_recorded_segments(state: AllocatorState, recording: Recording) -> AllocatorState:
    """Return ``state`` with the segments that were recorded right after its event.

    The replay changes all segments of a request at once, so only the recorded segments show the order of the changes.
    """
    segments = recording.snapshot.history(state.device).at(state.event).segments.copy()
    simulated = state.segments
    place = np.searchsorted(simulated["address"], segments["address"])
    same = np.append(simulated["address"], -1)[place] == segments["address"]
    for name in ("stack", "pool", "small"):  # before PyTorch 2.12, pools are not recorded
        segments[name][same] = simulated[name][place[same]]
    if not recording.has_private_pools:
        segments["pool"] = default_pool(recording.snapshot.pools)
    return replace(state, segments=segments)
