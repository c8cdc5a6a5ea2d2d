"""Readings and reports with round values."""

from __future__ import annotations

import dataclasses
import itertools

from ipygpumem.core.reading import DeviceReading, HostReading, Reading
from ipygpumem.core.report import MeasurementLabel, PeakCounters, build_report

MIB = 1 << 20
V2 = "NVML memory info v2"


def before(name="cuda:0", **changes):
    """Return a reading of an H200 after the preload, with 100 MiB of tensors."""
    reading = DeviceReading(
        name=name,
        context=True,
        allocated=100 * MIB,
        reserved=120 * MIB,
        active=100 * MIB,
        requested=99 * MIB,
        inactive_split=0,
        retries=0,
        ooms=0,
        rejections=0,
        used=1500 * MIB,
        driver_reserved=615 * MIB,
        process=806 * MIB,
        others=70 * MIB,
        total=143_771 * MIB,
        mode="process",
        why="NVML entry verified by a test allocation",
        source=V2,
        busy=False,
    )
    return dataclasses.replace(reading, **changes)


def after(name="cuda:0", **changes):
    """Return a reading after allocating 400 MiB of tensors, 64 MiB of cache and 256 MiB outside PyTorch."""
    changed = {"allocated": 500 * MIB, "active": 500 * MIB, "reserved": 584 * MIB}
    changed |= {"process": 1526 * MIB, "used": 2220 * MIB}
    return dataclasses.replace(before(name), **{**changed, **changes})


def report(start=None, end=None, *, peak=1300 * MIB, exact=True, host=None, **options):
    """Return the report of a cell on one device. ``peak`` is the peak of each allocator counter; None if unknown."""
    start, end = start or before(), end or after()
    low, high = host or (HostReading(200 * MIB, 300 * MIB, total=24_000 * MIB),) * 2
    peaks = {} if peak is None else {end.name: PeakCounters(peak, peak, peak, peak, exact=exact)}
    options = {"seconds": 2.31, "cell": 7, **options}
    label = MeasurementLabel(
        *(options.pop(name, default) for name, default in (("code", ""), ("cell", None), ("cell_id", None)))
    )
    start, end = Reading(1.0, {start.name: start}, low), Reading(3.0, {end.name: end}, high)
    return build_report(start, end, peaks, label=label, **options)


def imbalance(reading):
    """Return the memory in use minus the sum of its parts: 0 in every valid reading, None if a part is unknown."""
    if reading.used is None or reading.reserved is None or reading.outside is None:
        return None
    if reading.process is not None and reading.others is None:
        return None
    parts = (
        reading.driver_reserved,
        reading.allocated,
        reading.pending,
        reading.cached,
        reading.outside,
        reading.others,
        reading.unattributed,
    )
    return reading.used - sum(part or 0 for part in parts)


def waterfall_imbalance(waterfall):
    """Return the sum of the absolute errors in bytes between the steps and the differences of the known totals."""
    steps = waterfall.steps
    totals = [i for i, step in enumerate(steps) if step.kind == "total" and step.amount is not None]
    return sum(
        abs(steps[start].amount - steps[end].amount - sum(step.amount or 0 for step in steps[start + 1 : end]))
        for start, end in itertools.pairwise(totals)
    )
