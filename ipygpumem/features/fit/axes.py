"""Variables that determine the size of a step, the ranges of their values, and the sizes of runs."""

from __future__ import annotations

import operator
import re
import reprlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.errors import OptionError
from ipygpumem.core.serialization import Serializable

if TYPE_CHECKING:
    from ipygpumem.features.fit.ranks import RankCommunicator
    from ipygpumem.snapshot.scaling.step_predictor import RecordedStepPredictor, StepPredictor

AXIS = re.compile(
    r"\s*(?P<name>[^\W\d]\w*)=(?P<first>\d{1,30})\.\.(?P<last>\d{1,30})(?:\.\.(?P<step>\d{1,30}))?(?=\s|$)"
)
"""Pattern of a variable and its range, such as ``batch=1..4096`` or, with a step, ``batch=8..4096..8``."""
_MIN_SIZES = 3
"""Minimum number of sizes: two determine the prediction, and one checks it."""
_MAX_AXES = 2
_MAX_SIZE = 1 << 40
_MAX_EXCESS = 0.1
"""Relative difference up to which the upper bound of a run's memory usage agrees with the prediction."""
_STEP_SHARE = 0.25
"""Maximum upper bound of the memory usage of a run before the verification, as a share of its memory limit."""
MAX_GROWTH = 8
"""Largest factor between the sizes of successive runs as long as the growth of some tensors is unknown."""
_RATIO = 1.05
"""Ratio of successive candidates for the size of a run if two variables grow in proportion."""
EXTRAPOLATION = 1.5
"""Minimum ratio of the size of a run that confirms a prediction to the largest size from which it was predicted."""
Size: TypeAlias = tuple[int, ...]
"""Size of a step: the value of each of its variables, such as ``(64,)`` or, for two variables, ``(64, 1024)``."""


def size_name(size: Size) -> str:
    """Format a size, such as ``"64"`` or ``"64 by 1,024"``."""
    return " by ".join(f"{value:,}" for value in size)


@dataclass(frozen=True, slots=True)
class SizeAxis(Serializable):
    """A variable whose value determines the size of the step.

    Attributes:
        name: Name of the variable.
        sizes: Values in ascending order.
    """

    name: str
    sizes: Sequence[int] = field(metadata={"key": None})

    written_properties = ("first", "last")

    @property
    def first(self) -> int:
        return self.sizes[0]

    @property
    def last(self) -> int:
        return self.sizes[-1]

    @property
    def text(self) -> str:
        """Name and range of values, such as ``batch 1 to 4,096``."""
        return f"{self.name} {self.first:,} to {self.last:,}"

    @property
    def first_run(self) -> int:
        """Smallest value at which the step runs; if possible not 1, at which more operations return views."""
        return self.sizes[1] if self.first == 1 and len(self.sizes) > _MIN_SIZES else self.first

    def until(self, last: int) -> SizeAxis:
        """Return a copy of the axis without the values greater than ``last``."""
        return replace(self, sizes=self.sizes[: bisect_right(self.sizes, last)])

    def at_least(self, value: int) -> int:
        """Return the smallest value that is not less than ``value``, or the largest value if all values are less."""
        return self.sizes[min(bisect_left(self.sizes, value), len(self.sizes) - 1)]

    def at_most(self, value: int) -> int | None:
        """Return the largest value that is not greater than ``value``, or None if all values are greater."""
        place = bisect_right(self.sizes, value)
        return self.sizes[place - 1] if place else None


def nth_size(axes: Sequence[SizeAxis], index: int) -> Size:
    """Return the value at position ``index`` of each axis, or the last value of an axis with fewer values."""
    return tuple(axis.sizes[min(index, len(axis.sizes) - 1)] for axis in axes)


def proportional_size(axes: Sequence[SizeAxis], size: Size, index: int) -> Size:
    """Return ``size`` multiplied by ``_RATIO**index``, with each value rounded up to a value of its axis."""
    return tuple(axis.at_least(int(_RATIO**index * value)) for axis, value in zip(axes, size, strict=True))


def combined_sizes(axes: Sequence[SizeAxis], first: Size, second: Size, growth: int) -> Sequence[Size]:
    """Return the sizes of the runs that determine a prediction, except for ``first``.

    For two axes, these are combinations of two values of the first axis with three values of the second axis, because
    the second variable is often a sequence length, with which some allocations grow quadratically.
    """
    if len(first) == 1:
        return [second]
    lengths = (first[1], second[1], axes[1].at_least(growth * second[1]))
    return [(batch, length) for length in lengths for batch in (first[0], second[0])][1:]


def third_value_sizes(axes: Sequence[SizeAxis], sizes: Sequence[Size]) -> list[Size]:
    """Return the sizes of additional runs that determine quadratic functions of the first of two axes.

    ``sizes`` are those of the runs so far: combinations of two values of the first axis with three of the second, and a
    size that is larger on both axes. The additional runs add a third value of the first axis. If possible, this value
    differs from that of the largest run, which then checks the quadratic functions. For one axis, the result is empty.
    """
    if len(axes) == 1:
        return []
    values, lengths = (sorted(set(axis))[:3] for axis in zip(*sizes, strict=True))
    third = axes[0].at_least((values[-2] + values[-1] + 1) // 2)
    return sorted({(third, length) for length in lengths}.difference(sizes))


def verification_size(
    scaled: RecordedStepPredictor,
    axes: Sequence[SizeAxis],
    checked: Size,
    *,
    allocated: int,
    limit: int,
    smallest: int,
    growth_limit: float,
    ranks: RankCommunicator,
) -> tuple[Size, bool]:
    """Return the size of the next run after that at size ``checked``, and whether it verifies the prediction.

    The upper bound on the memory usage of this run does not exceed ``limit``, in bytes above ``allocated``. If this
    bound is much higher than the prediction, the run does not verify the prediction, but lowers the bound. The bound
    and the prediction are compared without the ``smallest`` bytes that a run at the smallest size uses, which would
    hide a difference. For two axes, the candidates are the results of `nth_size` or, if none of them within ``limit``
    is larger than ``checked``, those of `proportional_size`.
    ``growth_limit``: Largest factor between ``checked`` and the size of a run that does not verify the prediction.
    """
    count = max(len(axis.sizes) for axis in axes)
    is_proportional = False

    @cache  # the searches below compare the same sizes
    def bound(size: Size) -> int:
        return scaled.bound(size, allocated + limit) - allocated

    @cache
    def growth(size: Size) -> int:
        return scaled.allocated(size, allocated + limit) - allocated

    def size_at(index: int) -> Size:
        return proportional_size(axes, checked, index) if is_proportional else nth_size(axes, index)

    def largest(share: float, needed_bytes: Callable[[Size], int]) -> Size:
        place = bisect_right(range(count), int(share * limit), key=lambda index: needed_bytes(size_at(index)))
        last = ranks.minimum(place - 1)
        return checked if last < 0 else max(size_at(last), checked)

    is_proportional = len(axes) > 1 and largest(1, growth) == checked
    bounded, expected = largest(1, bound), largest(1, growth)
    grows = len(checked) > 1 or growth(bounded) > smallest  # otherwise, sizes may be padded to a multiple
    certain = (
        grows and not scaled.reasons and _MAX_EXCESS * (growth(bounded) - smallest) >= bound(bounded) - growth(bounded)
    )
    if bounded == expected == checked or (bounded > checked and ranks.minimum(int(certain))):
        return bounded, True
    near = tuple(
        axis.at_least(max(int(growth_limit * value), value + 1)) for axis, value in zip(axes, checked, strict=True)
    )
    bounded = tuple(map(min, bounded, near))
    half = tuple(axis.at_least(value // 2) for axis, value in zip(axes, largest(1, bound), strict=True))
    # so that a larger run can confirm a quadratic function
    part = tuple(map(min, largest(_STEP_SHARE, bound), half, near))
    if bounded > checked or len(checked) > 1:
        return (part if part > checked else bounded), False
    return (axes[0].at_least(3 * checked[0] // 4),), False


def fitted_size(axis: SizeAxis, sizes: Sequence[int]) -> int:
    """Return half of the largest of ``sizes``, or two thirds if a run had this size, rounded down to the axis.

    ``sizes`` are those of the runs. If a run had both sizes, return two thirds. Values that do not exceed the first of
    ``sizes`` are excluded; if none remains, return 0. A run at the resulting size and smaller runs determine a
    prediction that the largest run checks.
    """
    values = [axis.at_most(int(max(sizes) / ratio)) or 0 for ratio in (2, EXTRAPOLATION)]
    larger = [value for value in values if value > sizes[0]]
    return next((value for value in larger if value not in sizes), larger[-1] if larger else 0)


def largest_sizes(
    ranks: RankCommunicator, axis: SizeAxis, scaled: StepPredictor, capacity: int, margin: float
) -> dict[str, int | None]:
    """Return the largest sizes at which the step fits on all ranks, keyed by attribute name of `Fit`."""
    # reserved memory can be lower at a larger size, so a search from the first size may end below the recommended size
    first, last = axis.first, axis.last
    recommended = scaled.largest(capacity, margin, first=first, last=last)
    largest = scaled.largest(capacity, first=recommended or first, last=last) or recommended
    after_release = scaled.largest(capacity, first=largest or first, last=last, after_release=True) or largest
    sizes = {"largest": largest, "recommended": recommended, "after_release": after_release}
    return {name: axis.at_most(ranks.minimum(size or 0)) for name, size in sizes.items()}


def parse_axes(text: str) -> tuple[tuple[SizeAxis, ...], str]:
    """Parse the variables and the statement of a command line such as ``batch=1..4096 step(batch)``.

    Raises:
        OptionError: The variables, their ranges or the statement are missing or invalid.
    """
    axes, end = [], 0
    while (match := AXIS.match(text, end)) is not None:
        first, last, step = (int(match[name] or 1) for name in ("first", "last", "step"))
        axes.append(checked_axis(match["name"], range(first, last + 1, max(step, 1))))
        end = match.end()
    statement = text[end:].strip()
    if not axes:
        raise OptionError(
            f"{text!r} does not begin with a variable and its range: for example, use batch=1..4096 step(batch)"
        )
    if not statement:
        name = axes[0].name
        raise OptionError(f"the statement after {text.strip()} is missing: add one, as in {name}=1..64 step({name})")
    return check_axes(axes), statement


def checked_axis(name: Any, sizes: Any) -> SizeAxis:
    """Return a `SizeAxis` with the values ``sizes``.

    Raises:
        OptionError: ``name`` is not a string, or ``sizes`` does not contain at least three different integers, or an
            integer is less than 1 or greater than 2**40.
    """
    if not isinstance(name, str):
        raise OptionError(f"the keys of sizes must be names of parameters, but got {name!r}")
    try:
        is_range = isinstance(sizes, range) and sizes.step > 0
        sorted_sizes: Sequence[int] = sizes if is_range else sorted({_integer(size) for size in sizes})
    except TypeError:
        text = _short_text(sizes)
        raise OptionError(f"the sizes of {name} must be integers, such as range(1, 65), but got {text}") from None
    if not sorted_sizes:
        if not is_range:
            raise OptionError(f"the list of sizes of {name} is empty: pass at least {_MIN_SIZES} sizes")
        text = f"{sizes.start}..{sizes.stop - 1}"
        raise OptionError(f"the range {text} of {name} is empty: its first value must not exceed its last value")
    if sorted_sizes[0] < 1:
        raise OptionError(f"the sizes of {name} must be positive integers, but got {_short_text(sizes)}")
    if sorted_sizes[-1] > _MAX_SIZE:
        raise OptionError(f"the sizes of {name} must not exceed {_MAX_SIZE:,}")
    if len(sorted_sizes) < _MIN_SIZES:
        raise OptionError(f"a prediction requires at least {_MIN_SIZES} sizes: use a longer range for {name}")
    return SizeAxis(name, sorted_sizes)


def _short_text(value: Any) -> str:
    return " ".join(reprlib.repr(value).split())


def _integer(value: Any) -> int:
    """Return a Python or NumPy integer as an `int`. Raises `TypeError` for other values, including Booleans."""
    if isinstance(value, bool):
        raise TypeError("bool is not an integer")
    return operator.index(value)


def check_axes(axes: Sequence[SizeAxis]) -> tuple[SizeAxis, ...]:
    """Return the axes as a tuple. Raises `OptionError` for more than two axes or equal names."""
    names = [axis.name for axis in axes]
    if len(axes) > _MAX_AXES or len(set(names)) < len(names):
        raise OptionError(f"expected one or two different variables, but got {', '.join(names)}")
    return tuple(axes)
