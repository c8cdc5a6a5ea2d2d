"""Replays of one or several consecutive runs of a step.

A training run can need more reserved memory than its first step. The state that an optimizer creates in its first
update, and tensors that are kept until the next run, are allocated in cached memory. This splits cached blocks, so that
later runs need additional segments.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ipygpumem.snapshot.model.columns import EventValues
from ipygpumem.snapshot.model.segment_history import find_range
from ipygpumem.snapshot.model.timeline import BEFORE, Allocations, Ints
from ipygpumem.snapshot.replay.recording import Recording, ReleasedSegments
from ipygpumem.snapshot.replay.run import ReplayRun, run
from ipygpumem.snapshot.replay.settings import AllocatorSettings
from ipygpumem.snapshot.scaling.results import DOES_NOT_FIT, FITS, FITS_AFTER_RELEASE
from ipygpumem.snapshot.scaling.step_requests import StepRequests

_COMPLETE_RUNS = 3
"""Maximum number of runs that are replayed with all kept tensors at their start."""
_COLUMNS = ("action", "address", "size", "stream", "time", "stack", "context", "metadata", "pool")


def replay_outcome(result: ReplayRun) -> str:
    """Return whether all requests were served within the limit, as a value of `Prediction.outcome`."""
    if result.failure is not None:
        return DOES_NOT_FIT
    return FITS_AFTER_RELEASE if result.allocator.retries else FITS


class ConsecutiveRuns:
    """Requests of one run of a step or, if `StepRequests.repeated` is true, of several consecutive runs.

    The first of several runs starts without blocks that previous runs would have created. Runs are numbered
    from 0. Allocation ``i`` of run ``k`` has the number ``k * requests.count + i``. The numbers of the blocks of the
    state follow those of all allocations.
    """

    def __init__(self, requests: StepRequests) -> None:
        self._requests = requests
        sources, ages, _ = requests.retained
        self._removed = np.zeros(len(sources), np.bool_)  # mask of the blocks that do not exist before the first run
        self._last_run = self._complete_run = 0  # the latter is the first run at whose start all kept tensors exist
        if requests.repeated:
            self._removed = sources >= 0
            differs = len(requests.created.blocks) > 0 or requests.releases_once
            self._complete_run = max(int(ages[self._removed].max(initial=0)), int(differs))
            self._last_run = self._complete_run + _COMPLETE_RUNS - 1
            self._removed[requests.created.blocks] = True
        self._first_block = (self._last_run + 1) * requests.count
        self._release = self._first_block + len(sources)  # represents each release of the cache
        self._operations, self._places, self._run_ends = self._join_runs()
        self._recording = self._make_recording()

    def _join_runs(self) -> tuple[Ints, Ints, list[int]]:
        """Return the requests of all runs, their indices in the requests of the step, and the index after each run."""
        requests, count = self._requests, self._requests.count
        is_free = requests.operations < 0
        numbers = np.where(is_free, ~requests.operations, requests.operations).astype(np.int64)
        is_own = numbers < count
        is_kept = np.zeros(count, np.bool_)
        is_kept[numbers[is_own & ~is_free]] = True
        is_kept[numbers[is_own & is_free]] = False
        # tensors that no run frees, such as the items of a growing list, are freed after each run except the last
        sources = requests.retained.sources
        growing = is_kept.copy()
        growing[sources[(sources >= 0) & (requests.block_ends < len(numbers))]] = False
        operations, places, ends = [], [], []
        for number in range(self._last_run + 1):
            new = self._numbers(number, is_kept)[np.minimum(numbers, len(requests.pool_of))]
            place = np.flatnonzero(new >= 0)
            new = np.where(is_free, ~new, new)[place]
            if number == 0:
                created, boundaries, _ = requests.created
                positions = np.searchsorted(place, boundaries)
                new = np.insert(new, positions, self._first_block + created)
                place = np.insert(place, positions, np.minimum(boundaries, len(numbers) - 1))
            if number < self._last_run:
                freed = ~(number * count + np.flatnonzero(growing))
                new, place = np.append(new, freed), np.append(place, np.full(len(freed), len(numbers) - 1))
            operations.append(new)
            places.append(place)
            ends.append(len(new))
        return np.concatenate(operations), np.concatenate(places), np.cumsum(ends).tolist()

    def _numbers(self, run_number: int, is_kept: NDArray[np.bool_]) -> Ints:
        """Return the numbers that the allocations of the step and the blocks have in a run; -1 if they do not exist.

        A block that an earlier run has created has the number of the allocation in that run. ``is_kept`` is a mask of
        the allocations that exist at the end of a run.
        """
        requests, (sources, ages, _) = self._requests, self._requests.retained
        own, blocks = run_number * requests.count + np.arange(requests.count), np.full(len(sources), -1, np.int64)
        if run_number == 0:
            blocks[~self._removed] = self._first_block + np.flatnonzero(~self._removed)
            temporaries = requests.created.temporaries
            own[temporaries[temporaries >= 0]] = -1
        retained_blocks = np.flatnonzero((sources >= 0) & self._removed & (ages <= run_number))
        retained_blocks = retained_blocks[is_kept[sources[retained_blocks]]]
        blocks[retained_blocks] = (run_number - ages[retained_blocks]) * requests.count + sources[retained_blocks]
        release = self._release if run_number == 0 or not requests.releases_once else -1
        return np.concatenate([own, blocks, [release]])

    def with_sizes(self, sizes: Ints) -> Recording:
        """Return a recording of the requests with the given sizes of the allocations of the step."""
        result, older = copy.copy(self._recording), self._recording.allocations.size[self._first_block :]
        all_sizes = np.append(np.tile(sizes, self._last_run + 1), older)
        result.allocations = replace(result.allocations, size=all_sizes)
        return result

    def _make_recording(self) -> Recording:
        """Return a recording of the requests, in which the sizes of the allocations of the step are unknown."""
        requests, state, operations = self._requests, self._requests.state.state, self._operations.copy()
        total, blocks = len(operations), state.blocks.copy()
        start, end = np.full((2, self._release), total, np.int64)
        start[self._first_block :] = BEFORE
        freed, releases = np.flatnonzero(operations < 0), np.flatnonzero(operations == self._release)
        allocated = np.flatnonzero((operations >= 0) & (operations < self._release))
        start[operations[allocated]], end[~operations[freed]] = allocated, freed
        operations[releases] += np.arange(len(releases))
        blocks["row"] = self._first_block + np.arange(len(blocks))
        unknown = np.full(self._release, -1, np.int64)
        result = copy.copy(requests.recording)
        result.allocations = Allocations(
            address=np.append(unknown[: self._first_block], blocks["address"]),
            size=np.append(unknown[: self._first_block], blocks["requested"]),
            start=start,
            free_requested=end,
            end=end,
            stack=unknown.astype(np.int32),
            nth=unknown,
            block=unknown,
        )
        trace, events = requests.step.timeline.trace, requests.events[self._places]
        result.trace = replace(
            trace, device_free=EventValues(), **{name: getattr(trace, name)[events] for name in _COLUMNS}
        )
        result.operations, result.events = operations.astype(np.int32), np.arange(total, dtype=np.int32)
        result.special = [ReleasedSegments(event, 1, event + 1, retry=False) for event in releases.tolist()]
        segment, is_removed = find_range(state.segments, blocks["address"]), self._removed
        used = ~np.isin(np.arange(len(state.segments)), np.setdiff1d(segment[is_removed], segment[~is_removed]))
        own, older = np.split(requests.pool_of, [requests.count])
        result.pools, result.pool_of = requests.pools, np.append(np.tile(own, self._last_run + 1), older)
        result.segment_pools = requests.segment_pools[used]
        result.initial_starts = requests.state.recording.segment_starts(state)[used]
        result.initial = replace(state, blocks=blocks[~is_removed], segments=state.segments[used])
        result.settings, result.total = requests.state.recording.settings, requests.state.recording.total
        return result

    def replay(self, sizes: Ints, *, limit: int | None, settings: str | None, keeps_state: bool) -> ReplayRun:
        """Replay the runs until a run with all kept tensors at its start does not increase the peak of reserved memory.

        Args:
            sizes: Sizes in bytes of the allocations of the step.
            limit: Limit on reserved memory in bytes; None for no limit.
            settings: Allocator settings, as in `StepPredictor.predict`.
            keeps_state: Whether the blocks of the state keep their recorded addresses, as in `StepPredictor`.
        """
        recording = self.with_sizes(sizes)
        allocator_settings = recording.settings if settings is None else AllocatorSettings.parse(settings)
        return run(
            recording,
            allocator_settings,
            limit=limit,
            by_fraction=allocator_settings.collection_threshold > 0,
            keep_older=keeps_state,
            descending=True,  # like the addresses that cudaMalloc returns; the allocator prefers low addresses
            run_ends=self._run_ends[self._complete_run : -1],
        )
