"""Upper bounds on the memory usage of a step at sizes that are much larger than the recorded sizes.

The quadratic part of an allocation's size can be negligible at the peaks of small runs, but determine the peaks of
large runs. Recorded sizes are exact: if the prediction of a recorded size is not, the allocation may grow faster than
predicted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot.model.timeline import Ints
from ipygpumem.snapshot.scaling.matching import MatchedRecordings, Run
from ipygpumem.snapshot.scaling.size_model import Floats, Size, SizeModel
from ipygpumem.snapshot.scaling.step import StepRecording

if TYPE_CHECKING:
    from collections import Counter

_SQUARE = 2
_MAX_EXPONENT = 4
_MAX_DIFFERENCE = 0.1
"""Largest difference between two exponents of a workspace that grows with a power of the size."""
_ENOUGH = 4
"""Number of recorded sizes that confirm or refute a quadratic polynomial, which three sizes determine."""
_FASTER = 1.5
"""Ratio of the growth of all tensors to that of the step's size above which workspaces grow like the tensors."""
_LARGEST = 1 << 46


def confirmed_growth(matched: MatchedRecordings, model: SizeModel, others: Iterable[Run]) -> NDArray[np.bool_]:
    """Return a mask of the allocations whose predicted sizes are exact and are also confirmed at another size.

    Sizes must be exact in all runs of ``matched``. The other size is not required to determine the model.

    ``others``: Further runs, one of which is sufficient as confirmation. Allocations may have other sizes in these
        runs, because other kernels are used at small sizes.
    """
    predicted = np.stack([model.sizes(size) for size, _ in matched.runs])
    exact = np.all(matched.recorded_sizes() == predicted, axis=0)
    is_checked = np.full(len(exact), len({size for size, _ in matched.runs}) > model.coefficients[0].size)
    for size, run in others:
        indices = matched.counterparts((size, run))
        matching, sizes = indices[indices >= 0], run.sizes[indices >= 0]
        is_checked[matching] |= sizes == model.sizes(size)[matching]
    result: NDArray[np.bool_] = exact & is_checked
    return result


def bounded_sizes(
    matched: MatchedRecordings,
    model: SizeModel,
    size: Size,
    is_confirmed: NDArray[np.bool_],
    least_power: float = _SQUARE,
) -> Ints:
    """Return an upper bound on the size of each allocation in bytes, at a size of the step above the recorded sizes.

    Allocations that are constant or whose growth is confirmed have the predicted sizes. Workspaces of libraries also
    have the predicted sizes unless the tensors grow much faster than the size of the step; in this case, they are
    assumed to grow like the tensors. All other allocations are assumed to grow with the power ``least_power`` of the
    size of the step, or with a higher power if their recorded sizes do. These include workspaces if the step was
    recorded at fewer than four sizes, because they cannot be distinguished from temporary tensors then.
    """
    predicted, recorded = model.sizes(size, model.high), matched.recorded_sizes()
    constant = np.all(recorded == matched.step.sizes, axis=0)
    exponents, steady = _exponents(matched, recorded, least_power)
    growth = math.prod(size) / math.prod(matched.size)
    bounds = np.minimum(matched.step.sizes * growth**exponents, _LARGEST).astype(np.int64)
    workspaces = matched.is_workspace & ~steady  # libraries select algorithms, and therefore workspaces, by size
    workspaces &= len({size for size, _ in matched.runs}) >= _ENOUGH
    certain = constant | is_confirmed | workspaces
    result: Ints = np.where(certain, predicted, np.maximum(predicted, bounds))
    growing = ~constant & ~workspaces
    fastest = result[growing].sum() / max(matched.step.sizes[growing].sum(), 1)
    if fastest > _FASTER * growth:
        unlimited = workspaces & np.isinf(model.limits)
        limits = np.minimum(matched.step.sizes * fastest, _LARGEST).astype(np.int64)
        result[unlimited] = np.maximum(result, limits)[unlimited]
    return result


def _exponents(matched: MatchedRecordings, recorded: Ints, least_power: float) -> tuple[Floats, NDArray[np.bool_]]:
    """Return the power with which each allocation may grow, and a mask of those that grow with a steady power above 1.

    The power of these allocations is about the same from the third to the second largest recorded size as from the
    second largest to the largest.
    """
    totals = [math.prod(size) for size, _ in matched.runs]
    largest = sorted(set(totals))[-_SQUARE - 1 :]
    values = np.maximum(np.stack([recorded[totals.index(total)] for total in largest]), 0.5)
    powers = np.diff(np.log(values), axis=0) / np.diff(np.log(largest))[:, None]
    if not len(powers):
        return np.full(recorded.shape[1], least_power), np.zeros(recorded.shape[1], np.bool_)
    known = (values[-2:] > 1).all(axis=0)
    exponents = np.where(known, np.clip(powers[-1], least_power, _MAX_EXPONENT), least_power)
    steady = known & (np.abs(powers[-1] - powers[0]) < _MAX_DIFFERENCE) & (powers[-1] > 1 + _MAX_DIFFERENCE)
    return exponents, steady & (len(powers) > 1)


def with_exact_quadratics(matched: MatchedRecordings, model: SizeModel) -> SizeModel:
    """Return a model with quadratic polynomials for the tensors whose sizes only such polynomials predict exactly.

    At small sizes, a quadratic part can be too small to affect the peak. ``model`` is returned unchanged if the step
    has more than one axis or was recorded at fewer than four sizes.
    """
    if len(matched.size) > 1 or len({size for size, _ in matched.runs}) < _ENOUGH:
        return model
    try:
        quadratic = matched.fit((_SQUARE,))
    except OptionError:
        return model
    recorded = matched.recorded_sizes()
    linear, square = (
        np.all(recorded == np.stack([candidate.sizes(size) for size, _ in matched.runs]), axis=0)
        for candidate in (model, quadratic)
    )
    replaced = square & ~linear & ~matched.is_workspace & (quadratic.coefficients[:, _SQUARE] > 0)
    if not replaced.any():
        return model
    values = np.stack([model.evaluate(model.coefficients, (node,)) for node in quadratic.nodes[0]], axis=1)
    coefficients = SizeModel.fit(quadratic.nodes, values).coefficients
    coefficients[replaced] = quadratic.coefficients[replaced]
    return replace(model, nodes=quadratic.nodes, coefficients=coefficients)


def growing_bytes(step: StepRecording, leaves: Counter[int]) -> int:
    """Return how many of the bytes allocated at the peak of a step may grow with the size of the step.

    For each leaf tensor, up to two allocations of its size are excluded: for a parameter, these are its gradient and a
    temporary tensor of the optimizer. ``leaves`` contains the number of leaf tensors by their size in bytes.
    """
    constant, unmatched_parameters = 0, leaves + leaves
    for nbytes in step.sizes[step.live_at_own_peak()].tolist():
        if unmatched_parameters[nbytes] > 0:
            unmatched_parameters[nbytes] -= 1
            constant += nbytes
    return step.own_peak - constant
