"""Choice of the polynomials, and reasons for not trusting predictions."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from ipygpumem.core.errors import OptionError
from ipygpumem.core.units import many
from ipygpumem.core.units import size as size_text
from ipygpumem.snapshot.scaling.fitting import MatchedRecordings, compare
from ipygpumem.snapshot.scaling.results import Misfit, Unmatched
from ipygpumem.snapshot.scaling.size_model import Size, SizeModel

_DEGREES = {"linear": (1,), "quadratic": (2,), "automatic": (1, 2)}
_GOOD_FIT = 0.001
"""Relative misfit up to which a line is preferred to a quadratic polynomial."""
_SQUARE = 4.2
"""Growth of an allocation when the size is doubled that is still attributed to a square; 5% more than 4."""
_MAX_MISFIT = 0.02
"""Relative difference between a predicted and a recorded peak above which the prediction is not trusted."""
_MAX_SHARE = 0.005
"""Share of the peak above which allocations that differ between the recordings, or that shrink, are not tolerated."""


def choose_model(matched: MatchedRecordings, axis: str | Sequence[str]) -> SizeModel:
    """Return the polynomials for the sizes of allocations. `ScaledRecording.from_recordings` describes ``axis``.

    Raises:
        OptionError: ``axis`` is invalid, or more sizes must be recorded.
    """
    names = (axis,) * len(matched.size) if isinstance(axis, str) else tuple(axis)
    if len(names) != len(matched.size) or any(name not in _DEGREES for name in names):
        raise OptionError(
            f"{axis!r} does not describe the axes: expected 'linear', 'quadratic' or 'automatic' for each"
        )
    first, *others = sorted(product(*(_DEGREES[name] for name in names)), key=sum)
    best = matched.fit(first)
    error = _largest_error(matched, best)
    for degrees in others:
        if error > _GOOD_FIT and matched.determines(degrees):
            model = matched.fit(degrees)
            if _is_plausible(matched.size, model) and _largest_error(matched, model) < error:
                best, error = model, _largest_error(matched, model)
    return best


def find_reasons(matched: MatchedRecordings, model: SizeModel, misfits: Sequence[Misfit]) -> tuple[str, ...]:
    """Return the reasons for not trusting the predictions, as sentences."""
    reasons = (_differences(matched), _missing(misfits), _errors(misfits), _shrinking(matched, model))
    return tuple(reason for reason in reasons if reason)


def _largest_error(matched: MatchedRecordings, model: SizeModel) -> float:
    return max(abs(matched.misfit(model, *recording).relative) for recording in matched.recordings)


def _is_plausible(size: Size, model: SizeModel) -> bool:
    """Return whether almost no allocation grows faster than the square of the size.

    Otherwise, a polynomial fits the recorded sizes only because it has enough coefficients.
    """
    for axis in range(len(size)):
        doubled = tuple(value * (2 if number == axis else 1) for number, value in enumerate(size))
        now, then = model.sizes(size), model.sizes(doubled)
        if then[then > _SQUARE * now].sum() > _MAX_SHARE * then.sum():
            return False
    return True


def _differences(matched: MatchedRecordings) -> str:
    """Return a reason if two recordings of the same size differ."""
    previous: dict[Size, int] = {}
    for number, (size, run) in enumerate(matched.recordings):
        if size in previous:
            other = matched.recordings[previous[size]][1]
            misfit = compare(size, other, other.sizes, size, run)
            different = max(abs(misfit.predicted - misfit.recorded), *(item.at_peak for item in misfit.unmatched), 0)
            if different > _MAX_SHARE * misfit.recorded:
                lines = [item.line for item in misfit.unmatched] + [item.line for item in misfit.allocations]
                return (
                    f"Two recordings of the size {_name(size)} differ by {size_text(different)} at the peak, first at "
                    f"{lines[0]}, so the step cannot be predicted: make it allocate the same memory in each run."
                )
        previous[size] = number
    return ""


def _missing(misfits: Sequence[Misfit]) -> str:
    """Return a reason if allocations without a counterpart are a relevant part of the peak."""
    worst: tuple[float, Unmatched, int] | None = None
    for misfit in misfits:
        relevant = [item for item in misfit.unmatched if item.at_peak]
        share = sum(item.at_peak for item in relevant) / max(misfit.recorded, 1)
        if share > max(_MAX_SHARE, worst[0] if worst else 0):
            worst = share, relevant[0], sum(item.count for item in relevant)
    if worst is None:
        return ""
    share, item, count = worst
    return (
        f"{many(count, 'allocation')} that are {share:.1%} of the peak exist only at some of the recorded sizes, the "
        f"largest of them at size {_name(item.size)} at {item.line}, so other sizes cannot be predicted: record sizes "
        "at which the step takes the same path."
    )


def _errors(misfits: Sequence[Misfit]) -> str:
    """Return a reason if a predicted peak differs from the recorded one."""
    worst = max(misfits, key=lambda misfit: abs(misfit.relative))
    if abs(worst.relative) <= _MAX_MISFIT:
        return ""
    line = f", the largest difference being at {worst.allocations[0].line}" if worst.allocations else ""
    return (
        f"The predicted peak for the size {_name(worst.size)} is {size_text(worst.predicted)}, but "
        f"{size_text(worst.recorded)} were recorded ({abs(worst.relative):.1%}){line}: the memory of the step does not "
        "grow regularly with the size."
    )


def _shrinking(matched: MatchedRecordings, model: SizeModel) -> str:
    """Return a reason if a relevant part of the allocations becomes smaller when the size grows."""
    now = matched.step.sizes
    then = model.sizes(tuple(2 * value for value in matched.size))[: len(now)]
    smaller = np.flatnonzero(then < now)
    lost = int((now - then)[smaller].sum())
    live = np.isin(smaller, matched.step.live_at_own_peak())
    if int((now - then)[smaller[live]].sum()) <= _MAX_SHARE * (matched.step.start + matched.step.own_peak):
        return ""
    line = matched.step.lines(smaller[np.argmax((now - then)[smaller])][None])[0]
    return (
        f"{many(len(smaller), 'allocation')} become {size_text(lost)} smaller when the size is doubled, the largest of "
        f"them at {line}, so larger sizes cannot be predicted from these recordings: record larger sizes."
    )


def _name(size: Size) -> str:
    return str(size[0]) if len(size) == 1 else str(size)
