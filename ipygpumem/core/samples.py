"""What samples of a whole card prove about memory outside PyTorch, between the two readings of a measurement.

A sample tells what the card had given away at one instant; what PyTorch had reserved at that instant nobody can ask
without PyTorch's lock. So each sample is held against the *most* that PyTorch can have had then. What is left was
not PyTorch's for certain, and is a lower bound::

    outside at an instant >= used - driver reserved - the most PyTorch can have reserved - everybody else's

Everybody else's is known at both ends only, and the more of them counts. A process that came after the first reading
and went before the second is in no list: what it had stands on the left side. So the bound is of this process *and of
those that came and went*, and whoever tells it has to say so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipygpumem.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ipygpumem.core.reading import DeviceReading

__all__ = ["NOISE", "OutsidePeak", "Sample", "elsewhere", "highest_outside"]

NOISE = 16 * MIB
"""What page tables and neighbours move in passing: no less is told as a peak."""


@dataclass(frozen=True, slots=True)
class Sample:
    """A card at one instant between ``begin`` and ``end`` (seconds since the measurement began): bytes given away."""

    begin: float
    end: float
    used: int


@dataclass(frozen=True, slots=True)
class OutsidePeak:
    """The highest level outside PyTorch that samples prove: this process's, with that of any that came and went.

    Attributes:
        change: Bytes over the level before: at least this.
        seconds: When, counted from the beginning.
        gap: The longest time between two samples, in seconds: what rose and fell inside it was not seen.
        since: When the first sample was taken, in seconds.
        count: How many samples there were.
    """

    change: int
    seconds: float
    gap: float
    since: float
    count: int


def highest_outside(
    before: DeviceReading,
    after: DeviceReading,
    samples: Iterable[Sample],
    reserved: Callable[[float, float], int | None],
) -> tuple[int, float] | None:
    """The highest proved change of memory outside PyTorch, and its time.

    None where it is no more than the two readings tell, or where these cannot be compared. ``reserved`` gives the most
    that PyTorch can have had reserved between two times, None where nobody knows.
    """
    base, end = _around(before), _around(after)
    if base is None or end is None or before.source != after.source:
        return None
    driver = max(before.driver_reserved or 0, after.driver_reserved or 0)
    others = 0
    if before.process is not None and after.process is not None:
        base, end = before.outside or 0, after.outside or 0
        others = elsewhere(before, after)
    highest = max(end - base, 0) + NOISE, -1.0
    for sample in samples:
        most = reserved(sample.begin, sample.end)
        if most is not None and sample.used - driver - most - others - base > highest[0]:
            highest = sample.used - driver - most - others - base, sample.begin
    return None if highest[1] < 0 else highest


def elsewhere(before: DeviceReading, after: DeviceReading) -> int:
    """What is neither this process's nor the driver's: the more of both ends, for it may have been there all along."""
    return max((one.others or 0) + (one.unattributed or 0) for one in (before, after))


def _around(reading: DeviceReading) -> int | None:
    """Everything on the card but PyTorch's reserved and the driver's own."""
    if reading.used is None or reading.reserved is None:
        return None
    return reading.used - (reading.driver_reserved or 0) - reading.reserved
