"""Sizes of workspaces, which depend on the algorithm that a library such as cuDNN selects for a size of the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ipygpumem.snapshot.model.timeline import Ints
from ipygpumem.snapshot.scaling.size_model import Floats, Size, SizeModel

_TOLERANCE = 0.01
"""Relative error up to which the size of a workspace agrees with a polynomial."""
_SMALLEST_SHARE = 0.25
"""Share of the largest size below which a run is not used for the bounds of a workspace."""
_ENOUGH = 3
"""Number of sizes from which values on a line are not considered a coincidence."""


def with_workspaces(model: SizeModel, rows: Ints, sizes: Sequence[Size], recorded: Floats) -> SizeModel:
    """Return a model with other sizes for the workspaces whose recorded sizes differ from ``model``.

    The size of a workspace is linear in the size of the step if its largest recorded sizes are on a line. Otherwise, it
    is assumed to be proportional to the size of the step, with the proportions in the larger runs as bounds.

    Args:
        model: Sizes of all allocations.
        rows: Indices of the workspaces.
        sizes: Sizes of the runs.
        recorded: Array of the shape (runs, workspaces) with recorded sizes in bytes; -1 if the workspace is missing.
    """
    order = sorted(range(len(sizes)), key=lambda run: math.prod(sizes[run]))
    sizes, recorded = [sizes[run] for run in order], recorded[order]
    expected = np.stack([model.sizes(size)[rows] for size in sizes])
    wrong = np.abs(expected - recorded) > _TOLERANCE * np.maximum(recorded, 1)
    irregular, low, high = np.zeros(len(model.coefficients), np.bool_), *np.ones((2, len(model.coefficients)))
    coefficients = model.coefficients.copy()
    for column in np.flatnonzero(wrong.any(axis=0)).tolist():
        row, values = rows[column], recorded[:, column]
        line = _line([size[0] for size in sizes], values.tolist()) if len(sizes[0]) == 1 else None
        if line is None:
            line = 0.0, values[-1] / math.prod(sizes[-1])
            low[row], high[row] = _bounds(sizes, np.maximum(values, 0))
        grid = np.ones(())
        for points in model.nodes:
            grid = np.multiply.outer(grid, points)
        coefficients[row] = SizeModel.fit(model.nodes, (line[0] + line[1] * grid)[None]).coefficients[0]
        irregular[row] = True
    return replace(model, coefficients=coefficients, irregular=irregular, low=low, high=high)


def _line(sizes: Sequence[int], values: Sequence[float]) -> tuple[float, float] | None:
    """Return the value at 0 and the slope of a line through the values at the largest sizes; None if there is no line.

    Two different sizes are enough if the value is constant or proportional to the size.
    """
    last, value = sizes[-1], values[-1]
    for first in range(len(sizes) - 1):
        different = len(set(sizes[first:]))
        if different == 1 or values[first] < 0:
            continue
        slope = (value - values[first]) / (last - sizes[first])
        constant = value - slope * last
        simple = min(abs(value - values[first]), abs(constant)) <= _TOLERANCE * value
        pairs = zip(sizes[first:], values[first:], strict=True)
        on_line = all(abs(constant + slope * size - item) <= _TOLERANCE * max(item, 1) for size, item in pairs)
        if on_line and slope >= 0 and (simple or different >= _ENOUGH):
            return constant, slope
    return None


def _bounds(sizes: Sequence[Size], values: Floats) -> tuple[float, float]:
    """Return the lowest and highest ratio of value to size in the larger runs, divided by the ratio in the last run."""
    shares = np.asarray([math.prod(size) / math.prod(sizes[-1]) for size in sizes])
    proportions = (values / shares / max(values[-1], 1))[shares >= _SMALLEST_SHARE]
    confirmed = (shares[shares >= _SMALLEST_SHARE] < 1).any()
    return float(proportions.min()) if confirmed else 0.0, float(proportions.max())
