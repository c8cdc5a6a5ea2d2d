"""Variables that determine the size of a step, and the ranges of their values."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import field, replace
from typing import Any, TypeAlias

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.errors import OptionError
from ipygpumem.core.serialization import Serializable

AXIS = re.compile(
    r"\s*(?P<name>[^\W\d]\w*)=(?P<first>\d{1,30})\.\.(?P<last>\d{1,30})(?:\.\.(?P<step>\d{1,30}))?(?=\s|$)"
)
"""Pattern of a variable and its range, such as ``batch=1..4096`` or, with a step, ``batch=8..4096..8``."""
_MIN_SIZES = 3
"""Minimum number of sizes: two determine the prediction, and one checks it."""
_MAX_AXES = 2
_MAX_SIZE = 1 << 40
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
        """Smallest value."""
        return self.sizes[0]

    @property
    def last(self) -> int:
        """Largest value."""
        return self.sizes[-1]

    @property
    def text(self) -> str:
        """Name and range of values, such as ``batch 1 to 4,096``."""
        return f"{self.name} {self.first:,} to {self.last:,}"

    @property
    def first_run(self) -> int:
        """Smallest value at which the step runs; if possible not 1, because operations on one element can be views."""
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
    """Return the value of each axis at position ``index``. For an axis with fewer values, this is its last value."""
    return tuple(axis.sizes[min(index, len(axis.sizes) - 1)] for axis in axes)


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
        raise OptionError(f"{text!r} does not begin with a variable and its range, such as batch=1..4096 step(batch)")
    if not statement:
        name = axes[0].name
        raise OptionError(f"the statement after {text.strip()} is missing: add one, as in {name}=1..64 step({name})")
    return check_axes(axes), statement


def checked_axis(name: Any, sizes: Any) -> SizeAxis:
    """Return the axis with these values. Raises `OptionError` unless they are three or more positive integers."""
    if not isinstance(name, str):
        raise OptionError(f"the names of sizes must be strings, not {name!r}")
    try:
        sorted_sizes: Sequence[int] = sizes if isinstance(sizes, range) and sizes.step > 0 else sorted(set(sizes))
    except TypeError:
        raise OptionError(f"the sizes of {name} must be integers, such as range(1, 65), not {sizes!r}") from None
    if not sorted_sizes:
        text = f"{sizes.start}..{sizes.stop - 1}" if isinstance(sizes, range) else repr(sizes)
        raise OptionError(f"the range {text} of {name} is empty: its first value must not exceed its last value")
    bounds = (sorted_sizes[0], sorted_sizes[-1]) if isinstance(sorted_sizes, range) else sorted_sizes
    if any(isinstance(size, bool) or not isinstance(size, int) or size < 1 for size in bounds):
        raise OptionError(f"the sizes of {name} must be positive integers, not {sizes!r}")
    if max(bounds) > _MAX_SIZE:
        raise OptionError(f"the sizes of {name} must not exceed {_MAX_SIZE:,}")
    if len(sorted_sizes) < _MIN_SIZES:
        raise OptionError(f"a prediction requires at least {_MIN_SIZES} sizes: use a longer range for {name}")
    return SizeAxis(name, sorted_sizes)


def check_axes(axes: Sequence[SizeAxis]) -> tuple[SizeAxis, ...]:
    """Return the axes as a tuple. Raises `OptionError` if there are more than two or two have the same name."""
    names = [axis.name for axis in axes]
    if len(axes) > _MAX_AXES or len(set(names)) < len(names):
        raise OptionError(f"expected one or two different variables, got {', '.join(names)}")
    return tuple(axes)
