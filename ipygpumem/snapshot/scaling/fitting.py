"""Allocations of several runs of a step, matched one by one, and their sizes as functions of the size of the step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot.model.timeline import Ints
from ipygpumem.snapshot.scaling.alignment import match
from ipygpumem.snapshot.scaling.results import AllocationMisfit, Misfit, Unmatched
from ipygpumem.snapshot.scaling.size_model import Size, SizeModel, choose_nodes
from ipygpumem.snapshot.scaling.step import StackKey, StepRecording

Recordings = Sequence[tuple[Size, StepRecording]]
_MAX_MISFITS = 20
"""Number of allocations that a `Misfit` contains."""


@dataclass(frozen=True, slots=True, eq=False)
class MatchedRecordings:
    """Several runs of a step, whose allocations are matched with those of the run at the largest size.

    Attributes:
        recordings: All runs with their sizes.
        size: The largest size.
        step: The run at this size.
        counterparts: For each run, the index of the counterpart of each allocation of ``step``, or -1.
    """

    recordings: Recordings
    size: Size
    step: StepRecording
    counterparts: tuple[Ints, ...]

    @classmethod
    def of(cls, recordings: Recordings) -> MatchedRecordings:
        """Match the allocations of all runs."""
        size, step = max(recordings, key=lambda item: float(np.prod(item[0])))
        return cls(recordings, size, step, tuple(_counterparts(size, step, *other) for other in recordings))

    def fit(self, degrees: tuple[int, ...]) -> SizeModel:
        """Return the sizes of the allocations of ``step`` as polynomials with the given degree on each axis.

        An allocation that is missing from a run is assumed to be proportional to the size of the step.
        """
        nodes = choose_nodes([size for size, _ in self.recordings], degrees)
        grid = list(product(*nodes))
        values = np.full((len(self.step.rows), len(grid)), -1.0)
        for (size, run), indices in zip(self.recordings, self.counterparts, strict=True):
            if size in grid:
                found = np.where(indices >= 0, np.append(run.sizes, -1)[indices], -1)
                place = grid.index(size)
                values[:, place] = np.maximum(values[:, place], found)
        missing = (values < 0).any(axis=1)
        share = np.asarray([np.prod(size) for size in grid]) / float(np.prod(self.size))
        values[missing] = self.step.sizes[missing, None] * share
        return SizeModel.fit(nodes, values.reshape(-1, *map(len, nodes)))

    def determines(self, degrees: tuple[int, ...]) -> bool:
        """Return whether enough sizes were recorded for polynomials of the given degrees."""
        try:
            choose_nodes([size for size, _ in self.recordings], degrees)
        except OptionError:
            return False
        return True

    def misfit(self, model: SizeModel, size: Size, run: StepRecording) -> Misfit:
        """Compare the prediction for a size with a run at this size."""
        return compare(self.size, self.step, model.sizes(size)[: len(self.step.rows)], size, run)


def compare(size: Size, step: StepRecording, sizes: Ints, other: Size, run: StepRecording) -> Misfit:
    """Compare a step whose allocations have the given sizes with a run of the step at another size."""
    indices = _counterparts(size, step, other, run)
    matched = np.flatnonzero(indices >= 0)
    predicted, recorded = sizes[matched], run.sizes[indices[matched]]
    error = np.abs(predicted - recorded)
    worst = np.flatnonzero(error)
    worst = worst[np.argsort(-error[worst], kind="stable")][:_MAX_MISFITS]
    lines = step.lines(matched[worst])
    return Misfit(
        size=other,
        predicted=run.start + int(step.own_levels(sizes).max()),
        recorded=run.start + run.own_peak,
        allocations=tuple(
            AllocationMisfit(line, int(predicted[row]), int(recorded[row]))
            for line, row in zip(lines, worst, strict=True)
        ),
        unmatched=_unmatched(indices, (size, step), (other, run)),
    )


def _unmatched(
    indices: Ints, first: tuple[Size, StepRecording], second: tuple[Size, StepRecording]
) -> tuple[Unmatched, ...]:
    """Return the allocations that only one of two runs contains, by line."""
    only_first = np.flatnonzero(indices < 0)
    only_second = np.setdiff1d(np.arange(len(second[1].rows)), indices)
    items = _by_line(*first, only_first) + _by_line(*second, only_second)
    return tuple(sorted(items, key=lambda item: (-item.at_peak, -item.bytes)))


def _counterparts(size: Size, step: StepRecording, other: Size, run: StepRecording) -> Ints:
    """Return the index of the counterpart in another run of each allocation of a step, or -1."""
    numbers: dict[StackKey, int] = {}
    growth = [1.0]
    for ours, theirs in zip(size, other, strict=True):
        growth += [factor * (theirs / ours) ** power for factor in growth for power in (1, 2)]
    return match((step.keys(numbers), run.keys(numbers)), (step.sizes, run.sizes), sorted(set(growth)))


def _by_line(size: Size, run: StepRecording, indices: Ints) -> tuple[Unmatched, ...]:
    at_peak = np.isin(indices, run.live_at_own_peak()).tolist()
    sums: dict[str, list[int]] = {}
    for line, nbytes, inside in zip(run.lines(indices), run.sizes[indices].tolist(), at_peak, strict=True):
        total = sums.setdefault(line, [0, 0, 0])
        total[0] += 1
        total[1] += nbytes
        total[2] += nbytes * inside
    return tuple(Unmatched(line, size, *total) for line, total in sums.items())
