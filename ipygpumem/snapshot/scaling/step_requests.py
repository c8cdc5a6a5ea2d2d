"""Requests of a recorded step to the allocator, and the state from which the step starts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.units import size as size_text
from ipygpumem.snapshot.model.segment_history import AllocatorState, find_range
from ipygpumem.snapshot.model.timeline import BEFORE, Ints
from ipygpumem.snapshot.replay.block_sizes import with_block_sizes
from ipygpumem.snapshot.replay.free_blocks import BlockPool
from ipygpumem.snapshot.replay.recording import Recording, ReleasedSegments
from ipygpumem.snapshot.replay.verification import cached_verification
from ipygpumem.snapshot.scaling.results import PredictionFailedError
from ipygpumem.snapshot.scaling.retained_blocks import RetainedBlocks
from ipygpumem.snapshot.scaling.step import BACKWARD, StepRecording
from ipygpumem.snapshot.snapshot_data import SnapshotData

_DEFAULT_POOL = -1


@dataclass(frozen=True, slots=True, eq=False)
class InitialState:
    """State of a device's memory from which a step starts.

    Attributes:
        snapshot, recording: Snapshot and recording that contain the state.
        state: Segments and blocks, with the true sizes of the blocks if `with_block_sizes` can determine them.
    """

    snapshot: SnapshotData
    recording: Recording
    state: AllocatorState

    @classmethod
    def at(cls, snapshot: SnapshotData, device: int, event: int) -> InitialState:
        """Return the state after an event, or before the first event if ``event`` is -1.

        Raises:
            ReplayError: The recording cannot be replayed.
        """
        recording = cached_verification(snapshot, device).recording
        state, _ = with_block_sizes(snapshot, snapshot.history(device).at(event))
        return cls(snapshot, recording, state)


class CreatedBlocks(NamedTuple):
    """Blocks that the first run of a step creates and all later runs use, such as the state of an optimizer.

    Attributes:
        blocks: Indices of the blocks, in the order in which they are created.
        boundaries: For each block, the number of events of the step before its creation, in ascending order.
        temporaries: For each block, the allocation of the step that the first run does not make, because it creates the
            block instead; -1 if there is none. A temporary gradient, for example, is needed only if a gradient exists.
    """

    blocks: Ints = np.zeros(0, np.int64)
    boundaries: Ints = np.zeros(0, np.int64)
    temporaries: Ints = np.zeros(0, np.int64)


class StepRequests:
    """Requests of a step that starts from a given state. Events are numbered from 0.

    Allocations are also numbered: first those of the step, then the blocks of the state.

    Args:
        step: Recording of the step.
        state: State from which the step starts.
        retained: Blocks of the state that previous runs have created and not freed; None if they are unknown.

    Attributes:
        repeated: Whether the step runs several times at the same size, from a state without ``retained`` and
            ``created`` blocks.
        created: Blocks of the state that the first of these runs creates.
        releases_once: Whether only the first of these runs releases PyTorch's cache, as cuDNN's search for the fastest
            algorithms does.
        recording: Recording that contains the step.
        count: Number of allocations of the step.
        operations: Requests in order, as in `Recording`.
        start: Event that makes each allocation of the step.
        end: Event that frees each allocation of the step; the number of events if the allocation is not freed.
        block_ends: Event that frees each block of the state; the number of events if the block is not freed.
        events: Event in the recording for each of ``operations``.
        pool_of: For each allocation and block, the index of its pool for large requests, as in `Recording`.
        resized: Mask of the blocks of the state whose sizes change with the size of the step.
        pools: All pools, as in `Recording`.
        segment_pools: For each segment of the state, the index of its pool for large requests.
    """

    def __init__(self, step: StepRecording, state: InitialState, retained: RetainedBlocks | None = None) -> None:
        self.step = step
        self.state = state
        blocks = len(state.state.blocks)
        self.retained = retained or RetainedBlocks(np.full(blocks, -1, np.int64), np.zeros(blocks, np.int64), {})
        self.repeated = False
        self.created = CreatedBlocks()
        self.releases_once = False
        self.resized: NDArray[np.bool_] = np.zeros(blocks, np.bool_)
        self.count = len(step.rows)
        self.recording = cached_verification(step.snapshot, step.device).recording
        self.pools, self.pool_of, self.segment_pools = self._assign_pools()
        self.operations, self.events = self._list_operations()
        starts = np.full(self.count, BEFORE, np.int64)
        ends = np.full(len(self.pool_of), len(self.operations), np.int64)
        freed = np.flatnonzero(self.operations < 0)
        ends[~self.operations[freed]] = freed
        allocated = np.flatnonzero((self.operations >= 0) & (self.operations < self.count))
        starts[self.operations[allocated]] = allocated
        self.start: Ints = starts
        self.end: Ints = ends[: self.count]
        self.block_ends: Ints = ends[self.count :]

    @property
    def base(self) -> Ints:
        """Requested bytes of the state's blocks, except ``resized``, before the first event and after each event."""
        requested = np.where(self.resized, 0, self.state.state.blocks["requested"])
        change = np.zeros(len(self.operations) + 2, np.int64)
        change[0] = int(requested.sum())
        np.subtract.at(change, self.block_ends + 1, requested)
        return np.cumsum(change)[:-1]

    @cached_property
    def backward(self) -> int:
        """Event of the first allocation in the backward pass; the number of events if there is none."""
        phases = zip(self.start.tolist(), self.step.phases, strict=False)
        return next((event for event, phase in phases if phase == BACKWARD), len(self.operations))

    def levels(self, sizes: NDArray[Any]) -> NDArray[Any]:
        """Return the requested bytes of the step's allocations before the first event and after each event.

        ``resized`` blocks are included. ``sizes`` contains one value or an array of coefficients for each allocation.
        """
        change = np.zeros((len(self.operations) + 2, *sizes.shape[1:]), sizes.dtype)
        np.add.at(change, self.start + 1, sizes)
        np.subtract.at(change, self.end + 1, sizes)
        resized = sizes[self.retained.sources[self.resized]]
        change[0] += resized.sum(axis=0)
        np.subtract.at(change, self.block_ends[self.resized] + 1, resized)
        return np.cumsum(change, axis=0)[:-1]

    def live(self, event: int) -> tuple[Ints, Ints]:
        """Return the indices of the allocations of the step and of the blocks of the state that exist after an event.

        Instead of a ``resized`` block, the index of the allocation that created it in a previous run is included.
        """
        own, older = (self.start <= event) & (self.end > event), self.block_ends > event
        resized = self.retained.sources[older & self.resized]
        return np.append(np.flatnonzero(own), resized), np.flatnonzero(older & ~self.resized)

    def position(self, event: int) -> tuple[str, str]:
        """Return the phase of the last allocation up to an event, and the last line of user code that allocated memory.

        Both are empty strings if the step has not allocated any memory.
        """
        numbers = self.operations[: event + 1]
        numbers = numbers[(numbers >= 0) & (numbers < self.count)]
        if not len(numbers):
            return "", ""
        last = self.source(int(numbers[-1]))
        return self.step.phases[last], self.step.line_before(last)

    def source(self, number: int) -> int:
        """Return the index of the allocation of the recorded step with the same line of code."""
        return number

    def _list_operations(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        recording, step = self.recording, self.step
        number_of = np.full(len(recording.allocations), -1, np.int64)
        number_of[step.rows] = np.arange(self.count)
        for row, block in self.older_allocations().items():
            number_of[row] = self.count + block
        numbers = number_of.tolist()
        operations, events = [], []
        next_number = len(self.pool_of)
        during = slice(*np.searchsorted(recording.events, [step.first + 1, step.last + 1]).tolist())
        requests = zip(recording.events[during].tolist(), recording.operations[during].tolist(), strict=True)
        for event, operation in requests:
            if operation < len(numbers):
                number = numbers[max(operation, ~operation)]
                if number < 0:
                    continue
                operations.append(number if operation >= 0 else ~number)
            else:
                item = recording.special[operation - len(numbers)]
                if not isinstance(item, ReleasedSegments):
                    raise PredictionFailedError("the recorded step ran out of memory: record it at a smaller size")
                if item.retry:
                    continue
                operations.append(next_number)  # the step calls torch.cuda.empty_cache
                next_number += 1
            events.append(event)
        return np.asarray(operations, np.int32), np.asarray(events, np.int32)

    def older_allocations(self) -> dict[int, int]:
        """Return a dict that maps the rows of allocations older than the step to the matching blocks of the state.

        Blocks match allocations with the same address and size. An allocation that the step frees, such as a gradient
        or an output of the previous step, may have another address or size in the state. It is then matched with a
        block of the same size or, in the same snapshot, of the same call stack.
        """
        allocations, blocks, step = self.recording.allocations, self.state.state.blocks, self.step
        rows = np.flatnonzero((allocations.start <= step.first) & (allocations.end > step.first)).tolist()
        freed = [row for row in rows if allocations.end[row] <= step.last]
        frames = np.append(self.state.snapshot.stacks.leaf, -1)[blocks["stack"]] >= 0
        frames &= step.snapshot is self.state.snapshot
        places = list(zip(allocations.address.tolist(), allocations.size.tolist(), strict=True))
        pairs = dict(self.retained.older)
        for candidates, own, other in (
            (rows, places, blocks[["address", "requested"]].tolist()),
            (freed, allocations.size.tolist(), blocks["requested"].tolist()),
            (freed, allocations.stack.tolist(), np.where(frames, blocks["stack"], -2).tolist()),
        ):
            paired_blocks = set(pairs.values())
            numbers = [number for number in range(len(blocks)) if number not in paired_blocks]
            pairs |= _pair([row for row in candidates if row not in pairs], own, numbers, other)
        return pairs

    def _assign_pools(self) -> tuple[list[BlockPool], Ints, Ints]:
        """Return all pools, and the pool index of each allocation, block and segment. Pools are matched by stream."""
        step, state, pools = self.step, self.state, self.recording.pools
        own = [pools[number] for number in self.recording.pool_of[step.rows].tolist()]
        private = np.flatnonzero([pool.private for pool in own])
        if len(private):
            line, total = step.lines(private[:1])[0], size_text(int(step.sizes[private].sum()))
            problem = f"the step allocates {total} in private pools (of CUDA graphs or a MemPool), first in {line}"
            raise PredictionFailedError(f"{problem}, which predictions do not support: run the step without them")
        keys = [(_DEFAULT_POOL, pool.stream) for pool in own]
        for number, stream in state.state.segments[["pool", "stream"]].tolist():
            is_private = number >= 0 and state.snapshot.pools[number] != (0, 0)
            keys.append((number if is_private else _DEFAULT_POOL, stream))
        unique = sorted(set(keys))
        indices = {key: 2 * place for place, key in enumerate(unique)}
        result = [
            BlockPool(number, stream, small, number != _DEFAULT_POOL)
            for number, stream in unique
            for small in (False, True)
        ]
        of_all = np.asarray([indices[key] for key in keys], np.int64)
        of_segments = of_all[self.count :]
        owner = find_range(state.state.segments, state.state.blocks["address"])
        return result, np.append(of_all[: self.count], of_segments[owner]), of_segments


def _pair(rows: Iterable[int], keys: list[Any], candidates: Iterable[int], candidate_keys: list[Any]) -> dict[int, int]:
    """Return a dict that maps rows to candidates with the same key. Each candidate is used at most once, in order."""
    by_key: dict[Any, list[int]] = {}
    for candidate in candidates:
        by_key.setdefault(candidate_keys[candidate], []).append(candidate)
    return {row: by_key[keys[row]].pop(0) for row in rows if by_key.get(keys[row])}
