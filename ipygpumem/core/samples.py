"""A lower bound on peak memory outside PyTorch, computed from samples of device memory usage.

A sample is the memory in use on the whole device at one instant. PyTorch's reserved memory at that instant is unknown,
because reading PyTorch's counters would acquire the allocator's lock. An upper bound on it is therefore subtracted::

    memory outside PyTorch >= used - driver reserved - upper bound on PyTorch reserved - other processes

The memory of other processes is known only at the start and the end of the measurement, and the larger value is
subtracted. The result may include the memory of a process that started and ended in between. If the memory of other
processes is unknown, it is not subtracted, and the result may include its growth since the start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.reading import DeviceReading
from ipygpumem.core.units import MIB

NOISE = 16 * MIB  # changes of at most this size in bytes can be caused by page tables and other processes


@dataclass(frozen=True, slots=True)
class MemorySample:
    """Sample of the memory in use on a device.

    Attributes:
        begin, end: Times immediately before and after the query, in seconds since the measurement began.
        used: Memory in use in bytes, including memory reserved by the driver.
    """

    begin: float
    end: float
    used: int


@dataclass(frozen=True, slots=True)
class OutsidePeak:
    """Lower bound on peak memory outside PyTorch.

    Attributes:
        change: Lower bound in bytes on the growth of memory outside PyTorch since the start of the measurement.
        seconds: Time of the sample with this bound, in seconds since the measurement began.
        gap: Longest time between two consecutive samples, in seconds. Shorter peaks may have been missed.
        since: Time of the first sample, in seconds since the measurement began.
        count: Number of samples.
    """

    change: int
    seconds: float
    gap: float
    since: float
    count: int


def highest_outside(
    before: DeviceReading,
    after: DeviceReading,
    samples: Iterable[MemorySample],
    reserved: Callable[[float, float], int | None],
) -> tuple[int, float] | None:
    """Return the highest lower bound on the growth of memory outside PyTorch in bytes, and the time of its sample.

    ``reserved(begin, end)`` returns an upper bound on PyTorch's reserved memory between two times, in bytes, or None if
    no bound is known. The result is None if no lower bound exceeds the growth between the two readings by more than
    16 MiB, or if the memory in use on the device is unknown or comes from different sources.
    """
    start, end = before.device_outside, after.device_outside
    if start is None or end is None or before.source != after.source:
        return None
    driver = max(before.driver_reserved or 0, after.driver_reserved or 0)
    other_memory = 0
    if before.process is not None and after.process is not None:
        start, end = before.outside or 0, after.outside or 0
        other_memory = max_other_memory(before, after)
    highest, time = max(end - start, 0) + NOISE, None
    for sample in samples:
        bound = reserved(sample.begin, sample.end)
        if bound is None:
            continue
        change = sample.used - driver - bound - other_memory - start
        if change > highest:
            highest, time = change, sample.begin
    return None if time is None else (highest, time)


def max_other_memory(before: DeviceReading, after: DeviceReading) -> int:
    """Return the maximum over both readings of the memory used by neither this process nor the driver, in bytes."""
    return max((reading.others or 0) + (reading.unattributed or 0) for reading in (before, after))
