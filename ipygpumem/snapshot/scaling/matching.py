"""Matching of the allocations in several runs of a step, and polynomials for their sizes."""

from __future__ import annotations

import math
import weakref
from bisect import bisect_left
from collections.abc import Sequence
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ipygpumem.snapshot.model.stacks import Frame
from ipygpumem.snapshot.model.timeline import Ints
from ipygpumem.snapshot.scaling.common_subsequence import common_subsequence
from ipygpumem.snapshot.scaling.reductions import with_reductions
from ipygpumem.snapshot.scaling.results import AllocationDeviation, PredictionDeviation, UnmatchedAllocations
from ipygpumem.snapshot.scaling.size_model import (
    Floats,
    Size,
    SizeModel,
    choose_nodes,
    find_polynomials,
    with_workspaces,
)
from ipygpumem.snapshot.scaling.step import StepRecording

Mask = NDArray[np.bool_]

_CUBE = 3


def match(
    keys: tuple[Ints, Ints], sizes: tuple[Ints, Ints], factors: Sequence[float], workspaces: tuple[Mask, Mask]
) -> Ints:
    """For each allocation of the first run, return the index of its counterpart in the second run, or -1.

    If the keys of the runs differ, allocations with the same key are matched in order. Workspaces, which may exist at
    only some sizes, are matched after all other allocations. Since many allocations have the same key, such as all
    allocations of a backward pass, allocations whose size grows exactly by a product of powers (0 to 3) of
    ``factors`` are matched first, and then allocations whose size grows at most by the product of the cubes.

    ``keys``: Keys of the allocations of both runs, such as numbers of call stacks.
    ``sizes``: Sizes of the allocations of both runs in bytes.
    ``factors``: Factors by which the size of the step grows on each axis from the first run to the second run.
    ``workspaces``: Masks of the workspaces of both runs.
    """
    if np.array_equal(*keys):
        return np.arange(len(keys[0]))
    first, second = keys[0].tolist(), keys[1].tolist()
    before, after = sizes[0].tolist(), sizes[1].tolist()
    powers = [math.prod(map(pow, factors, exponents)) for exponents in product(range(_CUBE + 1), repeat=len(factors))]

    expected = {nbytes: {nbytes * power for power in powers} for nbytes in set(before)}

    def grows_exactly(i: int, j: int) -> bool:
        return first[i] == second[j] and after[j] in expected[before[i]]

    low, high = min(1.0, *powers), max(1.0, *powers)

    def grows_plausibly(i: int, j: int) -> bool:
        return first[i] == second[j] and bool(low * before[i] <= after[j] <= high * before[i])

    pairs = [(-1, -1), (len(first), len(second))]
    without_workspaces = [np.flatnonzero(~mask).tolist() for mask in workspaces]
    all_rows = [[*range(len(mask))] for mask in workspaces]
    for (own_rows, other_rows), matches in product((without_workspaces, all_rows), (grows_exactly, grows_plausibly)):
        new_pairs: list[tuple[int, int]] = []
        for (i, j), (next_i, next_j) in pairwise(pairs):
            rows = own_rows[bisect_left(own_rows, i + 1) : bisect_left(own_rows, next_i)]
            counterparts = other_rows[bisect_left(other_rows, j + 1) : bisect_left(other_rows, next_j)]
            same_keys = [first[row] for row in rows] == [second[row] for row in counterparts]
            new_pairs += (
                zip(rows, counterparts, strict=True) if same_keys else common_subsequence(rows, counterparts, matches)
            )
        pairs = sorted([*pairs, *new_pairs])
    result = np.full(len(first), -1, np.int64)
    indices = np.asarray(pairs[1:-1], np.int64).reshape(-1, 2)
    result[indices[:, 0]] = indices[:, 1]
    return result


Run = tuple[Size, StepRecording]  # a recording of the step and its size
_Results = weakref.WeakKeyDictionary[StepRecording, Ints]

_results: weakref.WeakKeyDictionary[StepRecording, _Results] = weakref.WeakKeyDictionary()
"""Results of `_counterparts`, because each prediction matches the same runs."""

_MAX_DEVIATIONS = 20  # largest number of allocations that a `PredictionDeviation` contains
_MULTIPLES = (1, 4, 16, 64)  # multiples of the largest size at whose peaks allocations are compared


class PredictedPeak(NamedTuple):
    """Predicted peak of a step at a multiple of the largest recorded size.

    Attributes:
        factor: Ratio of the size to the largest recorded size.
        live: Indices of the allocations that exist at the peak.
        bytes: Total size of these allocations in bytes.
        sizes: Predicted sizes of all allocations in bytes.
    """

    factor: int
    live: Ints
    bytes: int
    sizes: Ints


class MatchedRecordings:
    """Recordings of a step, whose allocations are matched with those of the recording at the largest size.

    Attributes:
        runs: Sizes and recordings of the step.
        size: Largest recorded size of the step.
        step: Recording at this size.
        is_workspace: Mask of the allocations of ``step`` that may be workspaces of libraries. Temporary tensors, whose
            sizes are a polynomial in the size of the step, are excluded.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.size, self.step = max(runs, key=lambda run: math.prod(run[0]))
        self._counterparts = [_counterparts((self.size, self.step), run) for run in runs]
        is_tensor = find_polynomials([size for size, _ in runs], self.recorded_sizes())
        self.is_workspace: Mask = self.step.is_workspace & ~is_tensor

    def fit(self, degrees: tuple[int, ...]) -> SizeModel:
        """Return a model of the sizes of the allocations: polynomials of the given degrees, one degree per axis.

        If an allocation is missing in a run at a node of the polynomials, its size is assumed to be proportional to
        the size of the step. Workspaces and buffers of reductions are modeled separately.
        """
        nodes = choose_nodes([size for size, _ in self.runs], degrees)
        grid = list(product(*nodes))
        values = np.full((len(self.step.rows), len(grid)), -1.0)
        for (size, run), indices in zip(self.runs, self._counterparts, strict=True):
            if size in grid:
                place = grid.index(size)
                values[:, place] = np.maximum(values[:, place], np.append(run.sizes, -1)[indices])
        is_missing = (values < 0).any(axis=1)
        share = np.asarray([math.prod(size) / math.prod(self.size) for size in grid])
        values[is_missing] = self.step.sizes[is_missing, None] * share
        model = SizeModel.fit(nodes, values.reshape(-1, *map(len, nodes)))
        recorded_sizes, sizes = self.recorded_sizes().astype(np.float64), [size for size, _ in self.runs]
        rows = np.flatnonzero(self.is_workspace)
        model = with_workspaces(model, rows, sizes, recorded_sizes[:, rows])
        rows = np.flatnonzero(self.step.is_workspace)
        return with_reductions(model, self.step, rows, sizes, recorded_sizes[:, rows])

    def recorded_sizes(self) -> Ints:
        """Return the recorded sizes of the allocations in bytes, as an array of the shape (runs, allocations).

        The size of an allocation that a run does not contain is -1.
        """
        pairs = zip(self.runs, self._counterparts, strict=True)
        return np.stack([np.append(run.sizes, -1)[indices] for (_, run), indices in pairs])

    def counterparts(self, run: Run) -> Ints:
        """For each allocation of a run, return the index of its counterpart in ``step``, or -1."""
        known_counterparts = (
            indices for (_, own), indices in zip(self.runs, self._counterparts, strict=True) if own is run[1]
        )
        indices = next(known_counterparts, None)
        if indices is None:
            indices = _counterparts((self.size, self.step), run)
        result = np.full(len(run[1].rows), -1, np.int64)
        matching = np.flatnonzero(indices >= 0)
        result[indices[matching]] = matching
        return result

    def peaks(self, model: SizeModel, factors: Floats | float = 1.0) -> list[PredictedPeak]:
        """Return the predicted peaks at multiples of the largest recorded size. ``factors``: See `SizeModel.sizes`."""
        sizes = [(factor, model.sizes(tuple(factor * value for value in self.size), factors)) for factor in _MULTIPLES]
        return [
            PredictedPeak(factor, *self.step.peak_with(predicted_sizes), predicted_sizes)
            for factor, predicted_sizes in sizes
        ]

    def deviations(self, model: SizeModel) -> tuple[PredictionDeviation, ...]:
        peaks, pairs = self.peaks(model), zip(self.runs, self._counterparts, strict=True)
        own = self.size, self.step
        return tuple(
            _compare(own, model.sizes(run[0]), run, rows, peaks, irregular=model.irregular) for run, rows in pairs
        )

    def deviation(self, model: SizeModel, run: Run) -> PredictionDeviation:
        own = self.size, self.step
        return _compare(
            own, model.sizes(run[0]), run, _counterparts(own, run), self.peaks(model), irregular=model.irregular
        )


def compare_runs(first: Run, second: Run) -> PredictionDeviation:
    """Return the deviation of the first run, as a prediction, from the second run at the same size."""
    step = first[1]
    peak = PredictedPeak(1, *step.peak_with(step.sizes), step.sizes)
    return _compare(first, step.sizes, second, _counterparts(first, second), [peak])


def _counterparts(first: Run, second: Run) -> Ints:
    """For each allocation of the first run, return the index of its counterpart in the second run, or -1."""
    results = _results.setdefault(first[1], weakref.WeakKeyDictionary())
    if second[1] not in results:
        results[second[1]] = _match_runs(first, second)
    return results[second[1]]


def _match_runs(first: Run, second: Run) -> Ints:
    numbers: dict[tuple[Frame, ...], int] = {}
    keys = first[1].keys(numbers), second[1].keys(numbers)
    factors = [after / before for before, after in zip(first[0], second[0], strict=True)]
    workspaces = first[1].is_workspace, second[1].is_workspace
    return match(keys, (first[1].sizes, second[1].sizes), factors, workspaces)


def _compare(
    first: Run,
    sizes: Ints,
    second: Run,
    indices: Ints,
    peaks: Sequence[PredictedPeak],
    *,
    irregular: Mask | bool = False,
) -> PredictionDeviation:
    """Return the deviation of a prediction, which consists of the first run with ``sizes``, from the second run.

    ``indices``: For each allocation of the first run, the index of its counterpart in the second run, or -1.
    ``peaks``: Peaks at which allocations are compared.
    ``irregular``: Mask of workspaces that are assumed to have the sizes recorded in the second run.
    """
    step, (size, run) = first[1], second
    is_missing = indices < 0
    sizes = np.where(irregular, np.append(run.sizes, 0)[indices], sizes)
    only_in_second = np.ones(len(run.rows), np.bool_)
    only_in_second[indices[~is_missing]] = False
    own_peak = run.peak_with(np.where(only_in_second & run.is_workspace, 0, run.sizes))[1]
    recorded_sizes = np.where(is_missing, sizes, np.append(run.sizes, 0)[indices])
    error = np.abs(sizes - recorded_sizes)
    shares = np.zeros(len(sizes))
    for peak in peaks:
        shares[peak.live] = np.maximum(shares[peak.live], peak.sizes[peak.live] / max(step.start + peak.bytes, 1))
    worst = np.lexsort((-error, -error * (shares > 0)))[: min(_MAX_DEVIATIONS, np.count_nonzero(error))]
    columns = (step.lines(worst) if len(worst) else [], sizes[worst].tolist(), recorded_sizes[worst].tolist())
    shares[step.is_workspace] = 0  # a library may select an algorithm with a workspace at only some sizes
    other_shares, live = np.zeros(len(run.rows)), run.live_at_own_peak()
    other_shares[live] = run.sizes[live] / max(run.peak, 1)
    other_shares[run.is_workspace] = 0
    unmatched = _by_line(first, np.flatnonzero(is_missing), shares)
    unmatched += _by_line(second, np.flatnonzero(only_in_second), other_shares)
    return PredictionDeviation(
        size=size,
        predicted=run.peak + step.peak_with(sizes)[1] - own_peak,
        recorded=run.peak,
        difference=max(float(error[peak.live].sum() / max(recorded_sizes[peak.live].sum(), 1)) for peak in peaks),
        allocations=tuple(AllocationDeviation(*values) for values in zip(*columns, strict=True)),
        unmatched=tuple(sorted(unmatched, key=lambda item: (-item.share, -item.bytes))),
    )


def _by_line(run: Run, indices: Ints, shares: Floats) -> list[UnmatchedAllocations]:
    size, step = run
    if not len(indices):  # the most frequent case
        return []
    columns = (step.lines(indices), step.sizes[indices].tolist(), shares[indices].tolist())
    sums: dict[str, tuple[int, int, float]] = {}
    for line, nbytes, share in zip(*columns, strict=True):
        total = sums.get(line, (0, 0, 0.0))
        sums[line] = (total[0] + 1, total[1] + nbytes, total[2] + share)
    return [UnmatchedAllocations(line, size, *total) for line, total in sums.items()]
