"""Sizes of allocations as polynomials in the size of the step.

Sizes of workspaces also depend on the algorithm that a library such as cuDNN selects for a size of the step.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot.model.timeline import Ints

Floats = NDArray[np.float64]
Size = tuple[int, ...]  # size of a step on each axis, such as ``(batch, length)``
Powers = tuple[int, ...]  # exponent of the size on each axis

_RESERVED_ERROR = 0.06  # 5.9% was measured for ResNet-18 with images of up to 2,048 pixels
_SLOW_GROWTH = 1 / 16  # growth of an allocation above its limit, relative to its growth below the limit
_LARGEST_SLOW = 1 << 28  # PyTorch splits reductions of more than 2 GiB
_MAX_DEVIATION = 0.001  # relative deviation from a polynomial
_CUBE = 3  # highest degree of polynomials
_LARGEST = 1 << 46  # upper limit of the size of an allocation, so that sums do not overflow


@dataclass(frozen=True, slots=True, eq=False)
class SizeModel:
    """Size of each allocation as a polynomial in Newton's form, or as a product of polynomials for several axes.

    Attributes:
        nodes: For each axis, the sizes of the step at which the polynomials are interpolated.
        coefficients: Array of the shape (allocations, *number of nodes per axis).
        irregular: Mask of the allocations whose sizes are predicted as those of workspaces or of buffers of reductions.
        low, high: Ratios of the lower and upper bound to the predicted size of each allocation; 1 if the size is
            certain.
        limits: Size in bytes above which an allocation grows more slowly; infinite if there is no such limit.
    """

    nodes: tuple[tuple[int, ...], ...]
    coefficients: Floats
    irregular: NDArray[np.bool_] | bool = False
    low: Floats | float = 1.0
    high: Floats | float = 1.0
    limits: Floats | float = math.inf

    @classmethod
    def fit(cls, nodes: tuple[tuple[int, ...], ...], values: Floats) -> SizeModel:
        """Return the model that interpolates the given values at the nodes."""
        coefficients = values.astype(np.float64)
        for axis, points in enumerate(nodes, start=1):
            coefficients = np.moveaxis(coefficients, axis, 0).copy()
            for order in range(1, len(points)):
                for place in range(len(points) - 1, order - 1, -1):
                    difference = coefficients[place] - coefficients[place - 1]
                    coefficients[place] = difference / (points[place] - points[place - order])
            coefficients = np.moveaxis(coefficients, 0, axis)
        return cls(nodes, coefficients)

    def sizes(self, size: Size, factors: Floats | float = 1.0) -> Ints:
        """Return the size of each allocation in bytes or, if ``factors`` is ``low`` or ``high``, the bound on it."""
        sizes = np.rint(self.exact_sizes(size) * factors)
        return np.clip(sizes, 0, _LARGEST).astype(np.int64)

    def exact_sizes(self, size: Size) -> Floats:
        """Return the size of each allocation in bytes, without rounding."""
        values: Floats = self.evaluate(self.coefficients, size)
        if not np.isfinite(self.limits).any():
            return values
        slow = np.where(np.isfinite(self.limits), np.minimum(_SLOW_GROWTH * values, _LARGEST_SLOW), values)
        result: Floats = np.maximum(np.minimum(values, self.limits), slow)
        return result

    @property
    def grows(self) -> NDArray[np.bool_]:
        """Mask of the allocations whose sizes depend on the size of the step."""
        size = tuple(points[0] for points in self.nodes)
        result: NDArray[np.bool_] = self.sizes(size) != self.sizes(tuple(2 * value for value in size))
        return result

    @property
    def reserved_error(self) -> float:
        """Share by which predictions of reserved memory may be too low.

        Reserved memory depends on whether tensors fit into the memory of freed workspaces. If the tensors grow faster
        than the size of the step, runs at small sizes do not show whether they fit.
        """
        irregular = self.irregular & np.isinf(self.limits)
        return _RESERVED_ERROR if max(map(len, self.nodes)) > len((0, 1)) and np.any(irregular) else 0.0

    def evaluate(self, coefficients: NDArray[Any], size: Size) -> Any:
        """Return the values of polynomials at a size. The last axes of ``coefficients`` are those of the size."""
        result = coefficients
        for points, at in zip(reversed(self.nodes), reversed(size), strict=True):
            result = result @ _basis(points, at)
        return result

    @property
    def powers(self) -> tuple[Powers, ...]:
        """Combinations of powers with which a workspace may grow, one power per axis, in descending order of sums."""
        powers = product(*(range(len(points) - 1, 0, -1) for points in self.nodes))
        return tuple(sorted(powers, key=sum, reverse=True))

    def proportional(self, growth: float, constant: float, powers: Powers) -> Floats:
        """Return the coefficients of ``constant + growth * scale(size, powers)``."""
        grid = np.ones(())
        for points, power in zip(self.nodes, powers, strict=True):
            grid = np.multiply.outer(grid, np.asarray(points, np.float64) ** power)
        result: Floats = SizeModel.fit(self.nodes, (constant + growth * grid)[None]).coefficients[0]
        return result

    def at(self, axis: int, size: int) -> SizeModel:
        """Return the model of the remaining axes for a fixed size on one axis."""
        moved = np.moveaxis(self.coefficients, axis + 1, -1) @ _basis(self.nodes[axis], size)
        return replace(self, nodes=self.nodes[:axis] + self.nodes[axis + 1 :], coefficients=moved)


def check_size(size: int | Sequence[int]) -> Size:
    """Return a size as a tuple; raise `OptionError` if it is invalid."""
    values = (size,) if isinstance(size, (int, np.integer)) else tuple(size)
    integers = all(isinstance(value, (int, np.integer)) and not isinstance(value, bool) for value in values)
    if not values or not integers or min(values) < 1:
        raise OptionError(f"the size of a step must consist of positive integers, but got {size!r}")
    return tuple(int(value) for value in values)


def _basis(points: tuple[int, ...], at: int) -> Floats:
    """Return the values of Newton's basis polynomials for the nodes ``points``, at the size ``at``."""
    return np.cumprod([1.0, *(at - point for point in points[:-1])]).astype(np.float64)


def polynomial(function: Callable[[int], Floats], index: int, first: int, last: int, degree: int) -> tuple[float, ...]:
    """Return the coefficients of the polynomial that equals ``function(size)[index]`` from ``first`` to ``last``.

    The constant is the first coefficient. The result is empty if the polynomial of this degree that fits best deviates
    from these values by more than 0.1%.
    """
    last = max(last, first + 2 * degree)
    sizes = np.linspace(first, last, 2 * degree + 1).astype(np.int64)
    values = np.asarray([function(size)[index] for size in sizes.tolist()])
    weights = 1 / np.maximum(np.abs(values), 1)  # small values are as exact as large ones
    coefficients = np.polynomial.polynomial.polyfit(sizes / last, values, degree, w=weights)
    deviation = np.abs(np.polynomial.polynomial.polyval(sizes / last, coefficients) - values)
    is_exact = bool(np.all(deviation <= _MAX_DEVIATION * np.abs(values)))
    return tuple((coefficients / float(last) ** np.arange(degree + 1)).tolist()) if is_exact else ()


def choose_nodes(sizes: Sequence[Size], degrees: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the nodes of polynomials on each axis, selected from the recorded sizes and preferably far apart.

    Raises `OptionError` if too few sizes were recorded.
    """

    def quality(nodes: tuple[tuple[int, ...], ...]) -> tuple[int, float]:
        spread = math.prod(points[-1] - points[0] for points in nodes)
        return spread, -sum(abs(2 * sum(points[1:-1]) - (points[0] + points[-1])) for points in nodes)

    values = [sorted(set(axis)) for axis in zip(*sizes, strict=True)]
    candidates = product(*(combinations(axis, degree + 1) for axis, degree in zip(values, degrees, strict=True)))
    recorded_sizes = set(sizes)
    complete = [nodes for nodes in candidates if recorded_sizes.issuperset(product(*nodes))]
    if not complete:
        requirement = " and ".join(f"{degree + 1} different sizes" for degree in degrees)
        both = " in all combinations" if len(degrees) > 1 else ""
        names = ", ".join(str(size if len(size) > 1 else size[0]) for size in sorted(recorded_sizes))
        raise OptionError(
            f"{requirement} are required{both} to predict other sizes, but the recorded sizes are {names}"
        )
    return max(complete, key=quality)


def find_polynomials(sizes: Sequence[Size], recorded: Ints) -> NDArray[np.bool_]:
    """Return a mask of the growing allocations that polynomials predict exactly, also at sizes that are not nodes.

    ``recorded``: Array of the shape (runs, allocations) with recorded sizes in bytes.
    """
    result = np.zeros(recorded.shape[1], np.bool_)
    for degrees in product(range(1, _CUBE + 1), repeat=len(sizes[0])):
        counts = [degree + 1 for degree in degrees]
        with contextlib.suppress(OptionError):  # too few sizes were recorded
            nodes = choose_nodes(sizes, degrees)
            values = recorded[[sizes.index(size) for size in product(*nodes)]].T.astype(np.float64)
            model = SizeModel.fit(nodes, values.reshape(-1, *counts))
            exact = np.all(recorded == np.stack([model.sizes(size) for size in sizes]), axis=0)
            result |= exact & (len(set(sizes)) > math.prod(counts))
    result &= recorded.min(axis=0) < recorded.max(axis=0)
    return result


_TOLERANCE = 0.01  # relative error up to which the size of a workspace agrees with a polynomial
_SMALLEST_SHARE = 0.5  # share of the largest size below which a run is not used for the bounds of a workspace
_SMALL_CONSTANT = 0.15  # largest constant part of a line through two sizes, as a share of the largest workspace
_ENOUGH = 3  # number of sizes from which values on a line are not considered a coincidence


def with_workspaces(model: SizeModel, rows: Ints, sizes: Sequence[Size], recorded: Floats) -> SizeModel:
    """Return a model with other sizes for the workspaces whose recorded sizes differ from ``model``.

    Workspaces grow with a power of the size of the step that does not exceed the degree of the polynomials: if the
    sizes of tensors are quadratic functions of the size of an image, so are those of the workspaces in which cuDNN
    converts these tensors. If the step has one axis and the recorded sizes of a workspace at the largest sizes of the
    step are a linear function of a power, this function determines its size. Otherwise, the workspace is assumed to be
    proportional to a power, and the lowest and highest ratio in the larger runs are its bounds.

    ``rows``: Indices of the workspaces in ``model``.
    ``sizes``: Sizes of the step in the runs.
    ``recorded``: Array of the shape (runs, workspaces) with recorded sizes in bytes; -1 if the workspace is missing.
    """
    order = sorted(range(len(sizes)), key=lambda run: math.prod(sizes[run]))
    sizes, recorded = [sizes[run] for run in order], recorded[order]
    expected = np.stack([model.sizes(size)[rows] for size in sizes])
    wrong = np.abs(expected - recorded) > _TOLERANCE * np.maximum(recorded, 1)
    irregular, low, high = np.zeros(len(model.coefficients), np.bool_), *np.ones((2, len(model.coefficients)))
    coefficients = model.coefficients.copy()
    for column in np.flatnonzero(wrong.any(axis=0)).tolist():
        row, values = rows[column], recorded[:, column]
        lines = [
            (*line, powers)
            for powers in (model.powers if len(sizes[0]) == 1 else ())
            if (line := _line([size[0] ** powers[0] for size in sizes], values.tolist())) is not None
        ]
        if lines:
            count, constant, slope, powers = max(lines, key=lambda line: line[0])
            may_be_proportional = _TOLERANCE < constant / max(values[-1], 1) <= _SMALL_CONSTANT
            if may_be_proportional and count < _ENOUGH:
                ratio = _bounds(sizes, np.maximum(values, 0), powers)[1]
                high[row] = ratio * values[-1] / (values[-1] - constant)
        else:
            powers = best_powers(model, sizes, np.maximum(values, 0))
            constant, slope = 0.0, values[-1] / scale(sizes[-1], powers)
            low[row], high[row] = _bounds(sizes, np.maximum(values, 0), powers)
        coefficients[row] = model.proportional(slope, constant, powers)
        irregular[row] = True
    return replace(model, coefficients=coefficients, irregular=irregular, low=low, high=high)


def scale(size: Size, powers: Powers) -> int:
    """Return the product of the sizes on all axes, each raised to a power."""
    return math.prod(map(pow, size, powers))


def best_powers(model: SizeModel, sizes: Sequence[Size], values: Floats) -> Powers:
    """Return the powers to which the values in larger runs are most nearly proportional; if unknown, the highest."""

    def spread(powers: Powers) -> float:
        low, high = _bounds(sizes, values, powers)
        return high / low if low > 0 else math.inf

    return min(model.powers, key=spread)


def _line(scales: Sequence[int], values: Sequence[float]) -> tuple[int, float, float] | None:
    """Return a line through the values at the largest scales of the step; None if there is no line.

    Two different scales are enough if the value is constant or nearly proportional to the scale. The result is the
    number of scales on the line, the value of the line at 0, and its slope.
    """
    last, value = scales[-1], values[-1]
    for first in range(len(scales) - 1):
        different = len(set(scales[first:]))
        if different == 1 or values[first] < 0:
            continue
        slope = (value - values[first]) / (last - scales[first])
        constant = value - slope * last
        is_constant = abs(value - values[first]) <= _TOLERANCE * value
        simple = is_constant or -_TOLERANCE * value <= constant <= _SMALL_CONSTANT * value
        pairs = zip(scales[first:], values[first:], strict=True)
        on_line = all(abs(constant + slope * scale - item) <= _TOLERANCE * max(item, 1) for scale, item in pairs)
        if on_line and slope >= 0 and (simple or different >= _ENOUGH):
            return different, constant, slope
    return None


def _bounds(sizes: Sequence[Size], values: Floats, powers: Powers) -> tuple[float, float]:
    """Return the lowest and highest ratio of value to scale in the larger runs, relative to that in the last run.

    If all larger runs have the same size, the lowest ratio is unknown, and 0 is returned.
    """
    shares = np.asarray([math.prod(size) / math.prod(sizes[-1]) for size in sizes])
    scales = np.asarray([scale(size, powers) / scale(sizes[-1], powers) for size in sizes])
    proportions = (values / scales / max(values[-1], 1))[shares >= _SMALLEST_SHARE]
    confirmed = (shares[shares >= _SMALLEST_SHARE] < 1).any()
    return float(proportions.min()) if confirmed else 0.0, float(proportions.max())
