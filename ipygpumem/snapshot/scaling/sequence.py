"""The requests of a recorded step with other sizes, in the form that the replay runs."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.units import size as size_text
from ipygpumem.snapshot.model.timeline import BEFORE, Allocations, Ints
from ipygpumem.snapshot.replay.free_blocks import Pool
from ipygpumem.snapshot.replay.recording import Recording, Release
from ipygpumem.snapshot.replay.verification import verified
from ipygpumem.snapshot.scaling.results import PredictionError
from ipygpumem.snapshot.scaling.start_state import StartState
from ipygpumem.snapshot.scaling.step import Insertion, StepRecording

_COLUMNS = ("action", "address", "size", "stream", "time", "stack", "context", "metadata", "pool")
_DEFAULT_POOL = -1


class StepSequence:
    """The requests of a step that starts from a given state. Events are numbered from 0.

    Allocations are numbered, too: first those of the step, then those of its insertions, then the blocks of the state.

    Args:
        step: The recorded step.
        state: The state from which the step starts.

    Attributes:
        inserted: Requested sizes of the allocations of insertions.
        count: Number of the allocations of the step and its insertions.
        operations: Requests in their order, as in `Recording`.
        start: Event of each of these allocations.
        end: Event that frees each of them; the number of events if it is not freed.
        base: Requested bytes of the state's blocks before the first event and after each event.
    """

    def __init__(self, step: StepRecording, state: StartState) -> None:
        self.step = step
        self.state = state
        self.inserted = np.asarray([size for item in step.insertions for size in item.sizes], np.int64)
        self.count = len(step.rows) + len(self.inserted)
        self._recording = verified(step.snapshot, step.device).recording
        self._special: list[Release | int] = []
        self._events: list[int] = []
        self.operations: list[int] = []
        self._list_operations()
        blocks, count = state.state.blocks, len(self.operations)
        starts = np.full(self.count, BEFORE, np.int64)
        ends = np.full(self.count + len(blocks), count, np.int64)
        for event, operation in enumerate(self.operations):
            if operation < 0:
                ends[~operation] = event
            elif operation < self.count:
                starts[operation] = event
        self.start: Ints = starts
        self.end: Ints = ends[: self.count]
        self._block_ends: Ints = ends[self.count :]
        change = np.zeros(count + 2, np.int64)
        change[0] = int(blocks["requested"].sum())
        np.subtract.at(change, self._block_ends + 1, blocks["requested"])
        self.base: Ints = np.cumsum(change)[:-1]
        self._pools, self._pool_of, self._segment_pools = self._assign_pools()

    def levels(self, sizes: NDArray[Any]) -> NDArray[Any]:
        """Return the requested bytes of the step's allocations before the first event and after each event.

        ``sizes`` contains one value or an array of coefficients for each allocation.
        """
        change = np.zeros((len(self.operations) + 2, *sizes.shape[1:]), sizes.dtype)
        np.add.at(change, self.start + 1, sizes)
        np.subtract.at(change, self.end + 1, sizes)
        return np.cumsum(change, axis=0)[:-1]

    def requests(self, sizes: Ints) -> Recording:
        """Return the requests with given requested sizes of the allocations of the step and its insertions."""
        blocks = self.state.state.blocks.copy()
        blocks["row"] = self.count + np.arange(len(blocks))
        unknown = np.full(self.count + len(blocks), -1, np.int64)
        ends = np.append(self.end, self._block_ends)
        scaled = copy.copy(self._recording)
        scaled.allocations = Allocations(
            address=np.append(unknown[: self.count], blocks["address"]),
            size=np.append(sizes, blocks["requested"]),
            start=np.append(self.start, unknown[self.count :]),
            free_requested=ends,
            end=ends,
            stack=unknown.astype(np.int32),
            nth=unknown,
            block=unknown,
        )
        trace = self.step.timeline.trace
        events = np.asarray(self._events, np.int64)
        scaled.trace = replace(trace, device_free={}, **{name: getattr(trace, name)[events] for name in _COLUMNS})
        scaled.operations, scaled.events = self.operations, list(range(len(self.operations)))
        scaled.special, scaled.pools = self._special, self._pools
        scaled.pool_of, scaled.segment_pools = self._pool_of, self._segment_pools
        scaled.initial = replace(self.state.state, blocks=blocks)
        scaled.settings, scaled.total = self.state.recording.settings, self.state.recording.total
        return scaled

    def blocks_at(self, event: int) -> Ints:
        """Return the indices of the state's blocks that exist after an event."""
        return np.flatnonzero(self._block_ends > event)

    def insertion_of(self, number: int) -> Insertion:
        """Return the insertion that contains an allocation."""
        end = len(self.step.rows)
        for item in self.step.insertions:
            end += len(item.sizes)
            if number < end:
                return item
        raise IndexError(number)

    def position(self, event: int) -> tuple[str, str]:
        """Return the phase of the step and the line of code at an event; empty for the time before the first event."""
        while event >= 0 and not 0 <= self.operations[event] < self.count:
            event -= 1
        if event < 0:
            return "", ""
        number = self.operations[event]
        if number < len(self.step.rows):
            return self.step.phases[number], self.step.line_before(number)
        insertion = self.insertion_of(number)
        return insertion.phase, insertion.line

    def _list_operations(self) -> None:
        recording, step = self._recording, self.step
        if len(step.out_of_memory_events()):
            raise PredictionError("a recorded step ran out of memory: record smaller sizes")
        number_of = np.full(len(recording.allocations), -1, np.int64)
        number_of[step.rows] = np.arange(len(step.rows))
        older, same = self._older_allocations()
        number_of[older] = same
        numbers = number_of.tolist()
        insertions = sorted(self._insertions())
        first, end = np.searchsorted(recording.events, [step.first + 1, step.last + 1]).tolist()
        for event, operation in zip(recording.events[first:end], recording.operations[first:end], strict=True):
            while insertions and insertions[0][0] < event:
                self._add(*insertions.pop(0)[::2])
            if operation >= len(numbers):
                item = recording.special[operation - len(numbers)]
                if isinstance(item, Release) and not item.retry:
                    number = self.count + len(self.state.state.blocks) + len(self._special)
                    self._special.append(Release(len(self.operations), 1, retry=False))
                    self._add(event, number)
            elif numbers[max(operation, ~operation)] >= 0:
                number = numbers[max(operation, ~operation)]
                self._add(event, number if operation >= 0 else ~number)
        for event, _, operation in insertions:
            self._add(event, operation)

    def _add(self, event: int, operation: int) -> None:
        self._events.append(event)
        self.operations.append(operation)

    def _insertions(self) -> list[tuple[int, int, int]]:
        """Return event, position and operation of all requests of insertions."""
        result: list[tuple[int, int, int]] = []
        offset = len(self.step.rows)
        for item in self.step.insertions:
            for operation in item.operations:
                number = operation + offset if operation >= 0 else ~(~operation + offset)
                result.append((max(item.event, 0), len(result), number))
            offset += len(item.sizes)
        return result

    def _older_allocations(self) -> tuple[Ints, Ints]:
        """Return rows of allocations that are older than the recorded step, and the same blocks of the state.

        An allocation that the step frees, such as a gradient of the previous step, may have another address in the
        state. It corresponds to a block of the same size that does not exist before the recorded step.
        """
        allocations, blocks, step = self._recording.allocations, self.state.state.blocks, self.step
        older = np.flatnonzero((allocations.start <= step.first) & (allocations.end > step.first))
        addresses, sizes = allocations.address[older], allocations.size[older]
        _, rows, same = np.intersect1d(addresses, blocks["address"], assume_unique=True, return_indices=True)
        equal = sizes[rows] == blocks["requested"][same]
        rows, same = rows[equal], same[equal]
        moved = np.setdiff1d(np.flatnonzero(allocations.end[older] <= step.last), rows)
        new = np.setdiff1d(np.arange(len(blocks)), same)
        moved = moved[np.argsort(sizes[moved], kind="stable")]
        new = new[np.argsort(blocks["requested"][new], kind="stable")]
        first = np.searchsorted(blocks["requested"][new], sizes[moved])
        place = first + np.arange(len(moved)) - np.searchsorted(sizes[moved], sizes[moved])
        found = place < np.searchsorted(blocks["requested"][new], sizes[moved], side="right")
        rows, same = np.append(rows, moved[found]), np.append(same, new[place[found]])
        return older[rows], self.count + same

    def _assign_pools(self) -> tuple[list[Pool], Ints, Ints]:
        """Return all pools, and the index of the pool of each allocation and of each segment of the state."""
        own, state = self._recording, self.state
        step_pools = [own.pools[number] for number in own.pool_of[self.step.rows].tolist()]
        private = [row for row, pool in enumerate(step_pools) if pool.private]
        if private:
            line = self.step.lines(np.asarray(private[:1]))[0]
            total = size_text(int(self.step.sizes[private].sum()))
            raise PredictionError(
                f"{total} are allocated in private pools, as of CUDA graphs, at {line}: such steps cannot be predicted"
            )
        streams = [pool.stream for pool in step_pools]
        trace = self.step.timeline.trace
        for item in self.step.insertions:
            streams += [int(trace.stream[max(item.event, 0)])] * len(item.sizes)
        segments = state.state.segments
        keys = [(_DEFAULT_POOL, stream) for stream in streams]
        private_ids = [pool != (0, 0) for pool in state.snapshot.pools]
        for segment in segments:
            number = int(segment["pool"])
            is_private = number >= 0 and private_ids[number]
            keys.append((number if is_private else _DEFAULT_POOL, int(segment["stream"])))
        index = {key: place for place, key in enumerate(sorted(set(keys)))}
        pools = [
            Pool(number, stream, small, number != _DEFAULT_POOL)
            for number, stream in sorted(index)
            for small in (False, True)
        ]
        numbers = np.asarray([2 * index[key] for key in keys], np.int64)
        of_segment = numbers[self.count :]
        of_block = of_segment[state.segment_of_blocks()]
        return pools, np.append(numbers[: self.count], of_block), of_segment
