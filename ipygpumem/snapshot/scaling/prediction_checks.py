"""Selection of the polynomials for the sizes of allocations, and reasons why predictions are unreliable."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations, product

import numpy as np

from ipygpumem.core.errors import OptionError
from ipygpumem.core.units import many, precise_size
from ipygpumem.core.units import size as size_text
from ipygpumem.snapshot.scaling.growth_bounds import with_exact_quadratics
from ipygpumem.snapshot.scaling.matching import MatchedRecordings, PredictedPeak, compare_runs
from ipygpumem.snapshot.scaling.results import PredictionDeviation
from ipygpumem.snapshot.scaling.size_model import Size, SizeModel

_DEGREES = {"linear": (1,), "quadratic": (2,), "automatic": (1, 2, 3)}
_GOOD_FIT = 0.001  # relative error up to which a linear function is preferred to a quadratic polynomial
_SQUARE = 2  # degree above which polynomials are only used if those of lower degrees are wrong
_LINE = 2  # number of sizes that determine a linear function
_TOLERANCE = 1.05  # factor by which an allocation may grow faster than the polynomials of its degree
_MAX_ERROR = 0.02  # relative error of a prediction for a recorded size above which predictions are unreliable
_NOTED_SHARE = 0.001  # share of the peak above which a note describes allocations of unknown growth
_MAX_SHARE = 0.005
"""Largest accepted share of the peak for allocations that differ between recordings or that shrink."""


def choose_model(matched: MatchedRecordings, axis: str | Sequence[str]) -> SizeModel:
    """Return the model whose polynomials predict the recordings best. Lower degrees are preferred.

    ``axis`` is described in `RecordedStepPredictor.from_recordings`. Raises `OptionError` if it is
    invalid or the step was recorded at too few sizes.
    """
    names = (axis,) * len(matched.size) if isinstance(axis, str) else tuple(axis)
    if len(names) != len(matched.size) or any(name not in _DEGREES for name in names):
        raise OptionError(f"expected 'linear', 'quadratic' or 'automatic' for each axis, but got {axis!r}")
    first, *other_degrees = sorted(product(*(_DEGREES[name] for name in names)), key=sum)
    best = matched.fit(first)
    error = _largest_error(matched, best)
    for degrees in other_degrees:
        if error > _GOOD_FIT:
            try:
                model = matched.fit(degrees)
            except OptionError:  # too few sizes were recorded
                continue
            other_error = _largest_error(matched, model)
            curved = error > _MAX_ERROR or (max(degrees) <= _SQUARE and _tensors_differ(matched, best, model))
            if other_error < error and curved and _is_sound(matched, model):
                best, error = model, other_error
    if names == ("automatic",) and best.coefficients.shape[1] == _LINE:
        model = with_exact_quadratics(matched, best)
        best = model if _is_sound(matched, model) else best
    return best


def _largest_error(matched: MatchedRecordings, model: SizeModel) -> float:
    return max(_uncertainty(matched, model)[0], *(deviation.error for deviation in matched.deviations(model)))


def _uncertainty(matched: MatchedRecordings, model: SizeModel) -> tuple[float, PredictedPeak, PredictedPeak]:
    """Return the largest relative difference between the lower and upper bound of a peak, and these two bounds."""
    bounds = zip(matched.peaks(model, model.low)[1:], matched.peaks(model, model.high)[1:], strict=True)
    start = matched.step.start
    differences = [((high.bytes - low.bytes) / max(start + high.bytes, 1), low, high) for low, high in bounds]
    return max(differences, key=lambda item: item[0])


def _tensors_differ(matched: MatchedRecordings, first: SizeModel, second: SizeModel) -> bool:
    """Return whether two models predict different sizes of tensors, other than workspaces, at larger sizes.

    A library such as cuDNN selects algorithms by size. Quadratic polynomials always approximate the sizes of its
    workspaces better than linear functions, but are wrong at larger sizes if the sizes of the tensors are linear.
    """
    pairs = zip(matched.peaks(first)[1:], matched.peaks(second)[1:], strict=True)
    for peak, other in pairs:
        live = np.union1d(peak.live, other.live)
        tensors = live[~matched.is_workspace[live]]
        difference = np.abs(peak.sizes - other.sizes)[tensors].sum()
        if difference > _GOOD_FIT * max(peak.bytes, other.bytes):
            return True
    return False


def _is_sound(matched: MatchedRecordings, model: SizeModel) -> bool:
    """Return whether polynomials are checked at recorded sizes that did not determine them, and grow as expected.

    Polynomials of degree 1 need no such check. At a peak, a small share of the bytes may grow faster than expected.

    A quadratic polynomial always fits three sizes exactly, and often four irregular sizes that are close together.
    """
    sizes_by_axis = zip(*(size for size, _ in matched.runs), strict=True)
    pairs = zip(model.nodes, sizes_by_axis, strict=True)
    checked = all(len(points) <= _LINE or not set(points).issuperset(values) for points, values in pairs)
    _, peak, *_ = matched.peaks(model)
    growth = peak.sizes / np.maximum(matched.step.sizes, 1)
    fastest = math.prod(peak.factor ** (len(points) - 1) for points in model.nodes)
    too_fast = peak.live[growth[peak.live] > _TOLERANCE * fastest]
    return checked and bool(peak.sizes[too_fast].sum() <= _MAX_SHARE * peak.bytes)


def find_reasons(
    matched: MatchedRecordings, model: SizeModel, deviations: Sequence[PredictionDeviation]
) -> tuple[str, ...]:
    """Return the reasons why the predictions are unreliable, as sentences."""
    worst = max(deviations, key=lambda deviation: deviation.error)
    reasons = (_difference_at_same_size(matched), _unmatched(deviations), _error(worst), _shrinking(matched, model))
    return tuple(filter(None, (*reasons, _faster(matched, model), _irregular(matched, model))))


def find_notes(matched: MatchedRecordings, model: SizeModel) -> tuple[str, ...]:
    """Return sentences about assumptions of the predictions that the recordings do not confirm."""
    other_runs = [run for run in matched.runs if run[0] != matched.size]
    is_unmatched = np.ones(len(matched.step.rows), np.bool_)
    for run in other_runs:
        counterparts = matched.counterparts(run)
        is_unmatched[counterparts[counterparts >= 0]] = False
    peaks = [(peak.sizes[live := peak.live[is_unmatched[peak.live]]], live, peak) for peak in matched.peaks(model)]
    share, sizes, live = max(
        ((sizes.sum() / max(matched.step.start + peak.bytes, 1), sizes, live) for sizes, live, peak in peaks),
        key=lambda item: item[0],
    )
    if not other_runs or share <= _NOTED_SHARE:
        return ()
    line = matched.step.main_line(live, sizes)
    text = (
        f"{many(len(live), 'allocation')} at the largest measured size ({_name(matched.size)}), mainly in {line}, did"
        f" not occur at smaller sizes. This memory accounts for up to {share:.1%} of the peak if it is proportional to"
        " the size, as the predictions assume."
    )
    return (text,)


def _difference_at_same_size(matched: MatchedRecordings) -> str:
    for first, second in combinations(matched.runs, 2):
        if first[0] == second[0]:
            deviation = compare_runs(first, second)
            different = max(abs(deviation.predicted - deviation.recorded), int(_share(deviation) * deviation.recorded))
            if different > _MAX_SHARE * deviation.recorded:
                lines = [item.line for item in deviation.unmatched] + [item.line for item in deviation.allocations]
                return (
                    f"Two recordings of size {_name(first[0])} differ by {precise_size(different)} at the peak, for"
                    f" example in {(*lines, 'an unknown line')[0]}: make the step allocate the same memory in each run."
                )
    return ""


def _unmatched(deviations: Sequence[PredictionDeviation]) -> str:
    worst = max(deviations, key=_share)
    if _share(worst) <= _MAX_SHARE:
        return ""
    count, item = sum(item.count for item in worst.unmatched if item.share), worst.unmatched[0]
    share = min(_share(worst), 1.0)  # the allocations can belong to the peaks of different sizes
    verb = "occurs" if count == 1 else "occur"
    return (
        f"Not all recorded sizes have the same allocations: {many(count, 'allocation')} ({share:.1%} of the peak)"
        f" {verb} at only some sizes, mainly in {item.line} at size {_name(item.size)}. Use sizes at which the step"
        " runs the same operations, for example with the same number of iterations of each loop."
    )


def _share(deviation: PredictionDeviation) -> float:
    return sum(item.share for item in deviation.unmatched)


def _error(worst: PredictionDeviation) -> str:
    if worst.error <= _MAX_ERROR:
        return ""
    sizes = ""
    if worst.allocations:
        line = worst.allocations[0].line
        sizes = f", and the sizes of its allocations differ by {worst.difference:.1%}, for example in {line}"
    return (
        f"The peak at size {_name(worst.size)} is {size_text(worst.recorded)}, but the prediction is "
        f"{size_text(worst.predicted)}{sizes}: use larger sizes or, if the size is a length, at least four sizes."
    )


def _irregular(matched: MatchedRecordings, model: SizeModel) -> str:
    difference, low, high = _uncertainty(matched, model)
    if difference <= _MAX_ERROR:
        return ""
    size, start = tuple(high.factor * value for value in matched.size), matched.step.start
    line = matched.step.main_line(high.live, (high.sizes - low.sizes)[high.live])
    return (
        f"The sizes of workspaces are irregular, mainly in {line}, because a library such as cuDNN"
        f" selects its algorithms by size: at size {_name(size)}, the peak would be between"
        f" {size_text(start + low.bytes)} and {size_text(start + high.bytes)}. Use larger sizes."
    )


def _shrinking(matched: MatchedRecordings, model: SizeModel) -> str:
    step = matched.step
    for _, live, total, sizes in matched.peaks(model)[1:]:
        change = (sizes - step.sizes)[live]
        lost_bytes = -int(change[change < 0].sum())
        if lost_bytes > _MAX_SHARE * (step.start + total):
            line = step.main_line(live, np.maximum(-change, 0))
            return (
                f"At larger sizes, {many(int(np.count_nonzero(change < 0)), 'allocation')} at the peak would shrink by "
                f"{size_text(lost_bytes)} in total, mainly in {line}: use larger sizes."
            )
    return ""


def _faster(matched: MatchedRecordings, model: SizeModel) -> str:
    """Return a reason if the linear functions for allocations at the peak are negative at a size of 0.

    Two sizes always determine such a function, even if the allocations grow with the square of the size of the step.
    """
    if model.coefficients.shape[1:] != (_LINE,):
        return ""
    _, live, total, _ = matched.peaks(model)[0]
    constants = model.exact_sizes((0,))[live]
    if -constants[constants < 0].sum() <= _MAX_ERROR * total:
        return ""
    line = matched.step.main_line(live, np.maximum(-constants, 0))
    return f"The sizes of allocations, mainly in {line}, are not linear functions of the size: use smaller sizes."


def _name(size: Size) -> str:
    return str(size[0]) if len(size) == 1 else str(size)
