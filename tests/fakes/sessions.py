"""Sessions of many cells with round values."""

from __future__ import annotations

from fakes.reports import MIB, after, before, report


def cell(number, *, held=0, peak=None, outside=0, name="cuda:0", level=100, **options):
    """Return the report of a cell. Sizes are in MiB, and ``level`` is the memory allocated before the cell."""
    peak = max(held, 0) if peak is None else peak
    start = before(name, allocated=level * MIB, active=level * MIB, reserved=(level + 2000) * MIB)
    start = _outside(start, 686)
    now = level + held
    end = after(name, allocated=now * MIB, active=now * MIB, reserved=(level + 2000) * MIB, **options.pop("end", {}))
    end = _outside(end, 686 + outside)
    options = {"cell": number, "cell_id": f"id{number}", "code": f"step({number})", **options}
    return report(start, end, peak=(level + peak) * MIB, **options)


def _outside(reading, mib):
    import dataclasses

    process = reading.reserved + mib * MIB
    used = process + reading.others + reading.driver_reserved + 9 * MIB
    return dataclasses.replace(reading, process=process, used=used)


def session(count):
    """Return the reports of several cells with different peaks."""
    return [
        cell(number, held=number % 7, peak=10 + number * 37 % 101, seconds=number / 10)
        for number in range(1, count + 1)
    ]
