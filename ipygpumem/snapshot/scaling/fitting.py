"""Allocations of several runs of a step, matched one by one, and their sizes as functions of the size of the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

import numpy as np

from ipygpumem.snapshot.model.timeline import Ints
from ipygpumem.snapshot.scaling.alignment import match
from ipygpumem.snapshot.scaling.results import AllocationMisfit, Misfit, Unmatched
from ipygpumem.snapshot.scaling.size_model import Size, SizeModel, choose_nodes
from ipygpumem.snapshot.scaling.step import StackKey, StepRecording

Run = tuple[Size, StepRecording]
"""A recording of the step and its size."""

_MAX_MISFITS = 20
"""Number of allocations that a `Misfit` contains."""


class MatchedRecordings:
    """Several runs of a step, whose allocations are matched with those of the run at the largest size.

    Attributes:
        runs: All runs.
        size: The largest size.
        step: The run at this size.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self.runs = runs
        self.size, self.step = max(runs, key=lambda run: math.prod(run[0]))
        self._counterparts = [_counterparts((self.size, self.step), run) for run in runs]

    def fit(self, degrees: tuple[int, ...]) -> SizeModel:
        """Return the sizes of the allocations of ``step`` as polynomials with the given degree on each axis.

        An allocation that is missing from a run is assumed to be proportional to the size of the step.
        """
        nodes = choose_nodes([size for size, _ in self.runs], degrees)
        grid = list(product(*nodes))
        values = np.full((len(self.step.rows), len(grid)), -1.0)
        for (size, run), indices in zip(self.runs, self._counterparts, strict=True):
            if size in grid:
                place = grid.index(size)
                values[:, place] = np.maximum(values[:, place], np.append(run.sizes, -1)[indices])
        missing = (values < 0).any(axis=1)
        share = np.asarray([math.prod(size) / math.prod(self.size) for size in grid])
        values[missing] = self.step.sizes[missing, None] * share
        return SizeModel.fit(nodes, values.reshape(-1, *map(len, nodes)))

    def misfits(self, model: SizeModel) -> tuple[Misfit, ...]:
        """Compare the predictions with all runs."""
        return tuple(
            self._misfit(model, run, indices) for run, indices in zip(self.runs, self._counterparts, strict=True)
        )

    def misfit(self, model: SizeModel, run: Run) -> Misfit:
        """Compare a prediction with another run."""
        return self._misfit(model, run, _counterparts((self.size, self.step), run))

    def _misfit(self, model: SizeModel, run: Run, indices: Ints) -> Misfit:
        return _compare((self.size, self.step), model.sizes(run[0]), run, indices)


def compare_runs(first: Run, second: Run) -> Misfit:
    """Compare two runs at the same size."""
    return _compare(first, first[1].sizes, second, _counterparts(first, second))


def _counterparts(first: Run, second: Run) -> Ints:
    """Return the index in the second run of the counterpart of each allocation of the first one, or -1."""
    numbers: dict[StackKey, int] = {}
    growth = [1.0]
    for ours, theirs in zip(first[0], second[0], strict=True):
        growth += [factor * (theirs / ours) ** power for factor in growth for power in (1, 2)]
    steps = first[1], second[1]
    keys = steps[0].keys(numbers), steps[1].keys(numbers)
    return match(keys, (steps[0].sizes, steps[1].sizes), sorted(set(growth)))


def _compare(first: Run, sizes: Ints, second: Run, indices: Ints) -> Misfit:
    """Compare a run whose allocations have the given sizes with another one."""
    step, (size, run) = first[1], second
    matched = np.flatnonzero(indices >= 0)
    predicted, recorded = sizes[matched], run.sizes[indices[matched]]
    error = np.abs(predicted - recorded)
    worst = np.argsort(-error, kind="stable")[: min(_MAX_MISFITS, np.count_nonzero(error))]
    columns = (step.lines(matched[worst]), predicted[worst].tolist(), recorded[worst].tolist())
    unmatched = _by_line(first, np.flatnonzero(indices < 0))
    unmatched += _by_line(second, np.setdiff1d(np.arange(len(run.rows)), indices))
    return Misfit(
        size=size,
        predicted=run.peak + int(step.own_levels(sizes).max()) - run.own_peak,
        recorded=run.peak,
        difference=int(error.sum()) / max(int(recorded.sum()), 1),
        allocations=tuple(AllocationMisfit(*values) for values in zip(*columns, strict=True)),
        unmatched=tuple(sorted(unmatched, key=lambda item: (-item.at_peak, -item.bytes))),
    )


def _by_line(run: Run, indices: Ints) -> list[Unmatched]:
    """Return some of the allocations of a run by line."""
    size, step = run
    at_peak = np.isin(indices, step.live_at_own_peak()).tolist()
    sums: dict[str, list[int]] = {}
    for line, nbytes, inside in zip(step.lines(indices), step.sizes[indices].tolist(), at_peak, strict=True):
        total = sums.setdefault(line, [0, 0, 0])
        sums[line] = [total[0] + 1, total[1] + nbytes, total[2] + nbytes * inside]
    return [Unmatched(line, size, *total) for line, total in sums.items()]
