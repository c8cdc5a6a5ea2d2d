"""Sizes of the blocks of all allocations. A file contains these sizes only for the blocks in use at the end.

PyTorch allocates a block at the start of a free block, which ends at the next block in use or at the end of the
segment. In the large pool, a remainder of up to 1 MiB is not split off. The size of a block therefore follows from the
recorded addresses. Recordings with blocks or settings to which this does not apply are replayed instead, which takes
much longer.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.snapshot.model.columns import distinct
from ipygpumem.snapshot.model.timeline import BEFORE
from ipygpumem.snapshot.replay.missing_data import missing_data
from ipygpumem.snapshot.replay.recording import ReplayError
from ipygpumem.snapshot.replay.settings import SMALL, AllocatorSettings
from ipygpumem.snapshot.replay.verification import ReplayVerification, cached_verification, expected_seconds

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.segment_history import AllocatorState
    from ipygpumem.snapshot.model.timeline import Ints
    from ipygpumem.snapshot.snapshot_data import SnapshotData

_MAX_SECONDS = 10.0
"""Expected duration in seconds above which a replay that only makes a result more accurate is omitted."""
_MAX_ADDRESSES = 1000  # maximum number of addresses that are considered for the end of one block
_MAX_MEAN_ADDRESSES = 64  # maximum mean number of these addresses; in recordings of real programs, it is at most 11
_MIN_STEPS = 1 << 18  # number of addresses that are considered in any case


def with_block_sizes(snapshot: SnapshotData, state: AllocatorState) -> tuple[AllocatorState, bool]:
    """Return a tuple ``(state, known)``: the state with the size of each block, and whether these sizes are known.

    If they are unknown, the state is returned unchanged.
    """
    sizes = block_sizes(snapshot, state.device, _MAX_SECONDS)
    if sizes is None or np.isin(state.blocks["row"], uncertain_rows(snapshot, state.device)).any():
        return state, False
    blocks = state.blocks.copy()
    blocks["rounded"] = sizes[blocks["row"]]
    return replace(state, blocks=blocks), True


def block_sizes(snapshot: SnapshotData, device: int, seconds: float) -> Ints | None:
    """Return the size in bytes of the block of each allocation of a device, or None if the sizes are unknown.

    The sizes are unknown if they do not follow from the addresses, and a replay is impossible, does not reproduce the
    recording, or is expected to take more than ``seconds`` seconds. If ``seconds`` is 0, there is no replay. The blocks
    in `uncertain_rows` may be up to 1 MiB larger. The result is computed once.
    """
    if (device, seconds) not in snapshot.block_sizes:
        snapshot.block_sizes[device, seconds] = _block_sizes(snapshot, device, seconds)
    return snapshot.block_sizes[device, seconds]


def uncertain_rows(snapshot: SnapshotData, device: int) -> Ints:
    """Return the rows of the allocations whose blocks may be up to 1 MiB larger than in `block_sizes`."""
    verification = snapshot.verifications.get(device)
    rows = verification.run.uncertain_rows if isinstance(verification, ReplayVerification) else set()
    return np.asarray(sorted(rows), np.int64)


def _block_sizes(snapshot: SnapshotData, device: int, seconds: float) -> Ints | None:
    if not seconds:
        return _sizes_from_addresses(snapshot, device)
    sizes = block_sizes(snapshot, device, 0)  # the summary, the page and other results differ in ``seconds``
    if sizes is not None:
        return sizes
    if expected_seconds(snapshot.timeline(device)) > seconds:
        return None
    try:
        verification = cached_verification(snapshot, device)
    except ReplayError:
        return None
    return None if verification.difference else np.asarray(verification.run.sizes, np.int64)


def _sizes_from_addresses(snapshot: SnapshotData, device: int) -> Ints | None:
    """Return the sizes of all blocks; None if they do not follow from the addresses or contradict the file."""
    timeline, settings = snapshot.timeline(device), AllocatorSettings.from_snapshot(snapshot.settings)
    allocations, rounded = timeline.allocations, settings.round(timeline.allocations.size)
    has_block = allocations.block >= 0
    large = rounded > SMALL
    has_private_pools = any(pool != (0, 0) for pool in snapshot.pools)
    unknown = large & (allocations.start == BEFORE) & ~has_block
    if settings.expandable or settings.max_split_size is not None or has_private_pools or unknown.any():
        return None
    if missing_data(snapshot, timeline):
        return None
    sizes = rounded.copy()
    sizes[has_block] = snapshot.blocks.size[allocations.block[has_block]]
    rows = np.flatnonzero(large)
    rows = rows[np.lexsort((allocations.start[rows], allocations.address[rows]))]
    address, start, end = (column[rows] for column in (allocations.address, allocations.start, allocations.end))
    bases = distinct(address)
    base = np.searchsorted(bases, address)
    factor = len(timeline.trace) + 2
    keys = base * factor + start + 1
    free_end = snapshot.history(device).segment_ends(rows)  # end of the free block in which each block was allocated
    highest = np.minimum(free_end, address + rounded[rows] + SMALL + 1)
    searching = np.flatnonzero(start != BEFORE)
    steps = max(_MAX_MEAN_ADDRESSES * len(searching), _MIN_STEPS)
    for _ in range(_MAX_ADDRESSES):
        steps -= len(searching)
        if not len(searching) or steps < 0:
            break
        base[searching] += 1
        place = np.minimum(base[searching], len(bases) - 1)
        near = (base[searching] < len(bases)) & (bases[place] < highest[searching])
        searching, place = searching[near], place[near]
        index = np.searchsorted(keys, place * factor + start[searching] + 1, side="right") - 1
        in_use = (address[index] == bases[place]) & (end[index] > start[searching])
        free_end[searching[in_use]] = bases[place[in_use]]
        searching = searching[~in_use]
    if len(searching):
        return None
    remainder = free_end - address - rounded[rows]
    has_start = start != BEFORE
    if (remainder[has_start] < 0).any():  # also if the segment is unknown, because its end is then 0
        return None
    computed = rounded[rows] + np.where(remainder <= SMALL, remainder, 0)
    if (computed != sizes[rows])[has_start & has_block[rows]].any() or (sizes != rounded)[has_block & ~large].any():
        return None
    sizes[rows[has_start]] = computed[has_start]
    return sizes
