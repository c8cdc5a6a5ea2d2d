"""Sizes of allocations as polynomials in the size of the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot.model.timeline import Ints

Floats = NDArray[np.float64]
Size = tuple[int, ...]
"""Size of a step on each axis, such as ``(batch, length)``."""


@dataclass(frozen=True, slots=True, eq=False)
class SizeModel:
    """The size of each allocation as a polynomial in Newton's form, or a product of polynomials for several axes.

    Attributes:
        nodes: For each axis, the sizes that determine the polynomials. Their values at the nodes are exact.
        coefficients: Array of the shape (allocations, *number of nodes per axis).
    """

    nodes: tuple[tuple[int, ...], ...]
    coefficients: Floats

    @classmethod
    def fit(cls, nodes: tuple[tuple[int, ...], ...], values: Floats) -> SizeModel:
        """Return the model with the given values at the nodes."""
        coefficients = values.astype(np.float64)
        for axis, points in enumerate(nodes, start=1):
            coefficients = np.moveaxis(coefficients, axis, 0).copy()
            for order in range(1, len(points)):
                for place in range(len(points) - 1, order - 1, -1):
                    difference = coefficients[place] - coefficients[place - 1]
                    coefficients[place] = difference / (points[place] - points[place - order])
            coefficients = np.moveaxis(coefficients, 0, axis)
        return cls(nodes, coefficients)

    def sizes(self, size: Size) -> Ints:
        """Return the size of each allocation in bytes for a size of the step."""
        sizes: Ints = np.maximum(np.rint(self.evaluate(self.coefficients, size)), 0).astype(np.int64)
        return sizes

    def evaluate(self, coefficients: NDArray[Any], size: Size) -> Any:
        """Return the values of polynomials, given by an array whose last axes are those of ``coefficients``."""
        result = coefficients
        for points, at in zip(reversed(self.nodes), reversed(size), strict=True):
            result = result @ _basis(points, at)
        return result

    def with_constants(self, sizes: Ints) -> SizeModel:
        """Return the model with further allocations that have the same size for all sizes of the step."""
        constant = np.zeros((len(sizes), *self.coefficients.shape[1:]))
        constant.reshape(len(sizes), math.prod(constant.shape[1:]))[:, 0] = sizes
        return SizeModel(self.nodes, np.concatenate([self.coefficients, constant]))

    def at(self, axis: int, size: int) -> SizeModel:
        """Return the model of the remaining axes for a fixed size on one axis."""
        moved = np.moveaxis(self.coefficients, axis + 1, -1) @ _basis(self.nodes[axis], size)
        return SizeModel(self.nodes[:axis] + self.nodes[axis + 1 :], moved)


def _basis(points: tuple[int, ...], at: int) -> Floats:
    """Return the values of Newton's basis polynomials."""
    return np.cumprod([1.0, *(at - point for point in points[:-1])]).astype(np.float64)


def choose_nodes(sizes: Sequence[Size], degree: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return sizes on each axis whose combinations were all recorded; the smallest, the largest and those between them.

    Raises:
        OptionError: The sizes do not determine the polynomials.
    """
    recorded = set(sizes)
    nodes = []
    for axis, count in enumerate(degree):
        values = sorted({size[axis] for size in sizes})
        if len(values) <= count:
            raise OptionError(
                f"{count + 1} different sizes are needed to predict others, but only {', '.join(map(str, values))} "
                "was recorded: record another size"
            )
        places = np.linspace(0, len(values) - 1, count + 1).astype(int)
        nodes.append(tuple(values[place] for place in places))
    missing = [size for size in product(*nodes) if size not in recorded]
    if missing:
        raise OptionError(f"the sizes {', '.join(map(str, missing))} are needed to predict others: record them, too")
    return tuple(nodes)
