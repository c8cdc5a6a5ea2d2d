"""Comparison of several processes: the spread of their figures, the one that differs most, the devices they share.

Peaks of several processes are never added up, because they occur at different times.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from operator import itemgetter
from statistics import median
from typing import TYPE_CHECKING

from ipygpumem.core.device_names import HOST
from ipygpumem.core.units import difference
from ipygpumem.features.history.model import ReportRow, report_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ipygpumem.core.reading import DeviceReading
    from ipygpumem.features.ranks.model import RankPeak, RankResult

    RankRow = tuple[RankResult, ReportRow | None]

FIGURES = {"held": "held", "peak": "peak", "outside": "outside PyTorch", "host_peak": "host peak", "seconds": "time"}
"""The figures that are compared, fields of `ReportRow`, with their labels."""
_SLOW_FACTOR, _SLOW_SECONDS = 1.5, 1.0


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of a figure over all processes and devices that have it: bytes, except for ``seconds``.

    ``highest_of`` and ``lowest_of`` are (process, device).
    """

    figure: str
    lowest: float
    lowest_of: tuple[str, str]
    median: float
    highest: float
    highest_of: tuple[str, str]


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """One device, counted once however many processes use it. Sizes are in bytes; None means unknown.

    Attributes:
        users: Names of these processes.
        used: All memory in use on the device, including the driver's, in the newest reading.
        by_users: Memory of these processes, each at the end of its measurement.
        others: Memory of other processes; None also if the readings, taken at different times, contradict each other.
    """

    host: str
    uuid: str
    users: tuple[str, ...]
    used: int | None
    total: int | None
    by_users: int | None
    others: int | None


@dataclass(frozen=True, slots=True)
class Difference:
    """The rank that differs most from the others, compared with a typical one at the peak, by line of code.

    Attributes:
        typical: The rank that is closest to the median of all; peaks are in requested bytes.
        lines: (label, bytes of the typical rank, bytes of the odd rank), the largest difference first.
        alike: How many of the ``compared`` ranks have the same lines and bytes as the typical rank.
    """

    odd: str
    typical: str
    odd_peak: int
    typical_peak: int
    lines: tuple[tuple[str, int, int], ...]
    compared: int
    alike: int


def rank_rows(results: Iterable[RankResult]) -> list[RankRow]:
    """A row for each rank and each of its devices; None for a rank without a report."""
    return [
        (result, row) for result in results for row in ([None] if result.report is None else report_rows(result.report))
    ]


def spread_of(figure: str, rows: Iterable[tuple[str, ReportRow]], at_least: int = 1) -> Spread | None:
    """The spread of a figure over (process, row); None if fewer than ``at_least`` rows have it."""
    values = [(value, (name, row.device)) for name, row in rows if (value := getattr(row, figure)) is not None]
    if len(values) < at_least:
        return None
    middle = median(value for value, _ in values)
    return Spread(figure, *min(values, key=itemgetter(0)), middle, *max(values, key=itemgetter(0)))


def spreads(rows: Iterable[RankRow]) -> list[Spread]:
    """The spread of each figure that at least two rows have."""
    reported = [(result.name, row) for result, row in rows if row is not None]
    host_only = all(row.device == HOST for _, row in reported)
    figures = [figure for figure in FIGURES if not (host_only and figure == "host_peak")]  # the same as peak
    return [spread for figure in figures if (spread := spread_of(figure, reported, at_least=2)) is not None]


def slow_ranks(results: Iterable[RankResult]) -> tuple[float, dict[str, float]]:
    """The median of the seconds that the ranks took, and those of the ranks that took 50 % and one second longer."""
    times = {result.name: result.report.seconds for result in results if result.report is not None}
    middle = median(times.values()) if times else 0.0
    limit = max(middle * _SLOW_FACTOR, middle + _SLOW_SECONDS)
    return middle, {name: times[name] for name in sorted(times, key=lambda name: -times[name]) if times[name] > limit}


def device_usage(results: Iterable[RankResult]) -> list[DeviceUsage]:
    """The devices that the processes have a context on. The same UUID on the same machine is the same device."""
    readings: dict[tuple[str, str], list[tuple[float, str, DeviceReading]]] = defaultdict(list)
    for result in results:
        if result.report is None:
            continue
        end = result.report.time + result.report.seconds
        for device in result.report.devices.values():
            facts = result.device_facts(device.name)
            if facts is not None and facts.uuid and device.after.context:
                readings[result.host, facts.uuid].append((end, result.name, device.after))
    return [_usage(host, uuid, of_device) for (host, uuid), of_device in readings.items()]


def _usage(host: str, uuid: str, readings: Sequence[tuple[float, str, DeviceReading]]) -> DeviceUsage:
    newest = max(readings, key=itemgetter(0))[2]
    sizes = [reading.process for _, _, reading in readings if reading.process is not None]
    by_users = sum(sizes) if len(sizes) == len(readings) else None
    others = difference(by_users, difference(newest.driver_reserved or 0, newest.used))
    if others is not None and others < 0:  # one process freed memory before the other was read
        others = None
    names = tuple(name for _, name, _ in readings)
    return DeviceUsage(host, uuid, names, newest.used, newest.total, by_users, others)


def compare_ranks(results: Iterable[RankResult], limit: int = 20) -> Difference | None:
    """Find the rank that differs most at its highest recorded peak, and by at most ``limit`` lines of code.

    Returns None if fewer than two ranks have a recording. Of two ranks, the second is compared with the first.
    """
    peaks = {result.name: peak for result in results if (peak := result.highest) is not None}
    if len(peaks) <= 1:
        return None
    sums = {name: _bytes_by_line(peak) for name, peak in peaks.items()}
    labels = sorted(set().union(*sums.values()))
    middle = {label: median(lines[label] for lines in sums.values()) for label in labels}
    distance = {name: sum(abs(lines[label] - middle[label]) for label in labels) for name, lines in sums.items()}
    typical = min(distance, key=distance.__getitem__)
    odd = max((name for name in distance if name != typical), key=distance.__getitem__)
    lines = [(label, sums[typical][label], sums[odd][label]) for label in labels]
    lines = [line for line in lines if line[1] != line[2]]
    lines.sort(key=lambda line: -abs(line[2] - line[1]))  # of equal differences by label
    alike = sum(lines_of_rank == sums[typical] for lines_of_rank in sums.values())
    requested = peaks[odd].requested, peaks[typical].requested
    return Difference(odd, typical, *requested, tuple(lines[:limit]), len(sums), alike)


def _bytes_by_line(peak: RankPeak) -> Counter[str]:
    sums: Counter[str] = Counter()
    for line in (*peak.lines, peak.rest):
        sums[line.label] += line.amount
    return sums
