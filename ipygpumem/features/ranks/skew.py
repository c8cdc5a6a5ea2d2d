"""Compare several processes: the spread of their values, the process that differs most, and shared devices.

Peaks of several processes are not added up because they occur at different times.
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

METRICS = {"held": "held", "peak": "peak", "outside": "outside PyTorch", "host_peak": "host peak", "seconds": "time"}
"""Fields of `ReportRow` to compare, with their labels."""
_SLOW_FACTOR, _SLOW_SECONDS = 1.5, 1.0


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of a value over all processes and devices on which it is known, in bytes except for ``seconds``.

    ``highest_of`` and ``lowest_of`` are pairs (process, device).
    """

    metric: str
    lowest: float
    lowest_of: tuple[str, str]
    median: float
    highest: float
    highest_of: tuple[str, str]


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """Memory usage of one device, which several processes may share. Sizes are in bytes; None means unknown.

    Attributes:
        users: Names of the processes that use the device.
        used: Memory in use on the device, including the driver's, in the latest reading.
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
    """Comparison of the peaks, by line of code, of the rank that differs most (``odd``) and a typical rank.

    Attributes:
        typical: The rank closest to the median of all ranks. Peaks are requested memory in bytes.
        lines: (label, bytes of the typical rank, bytes of the odd rank), the largest difference first.
        alike: Number of the ``compared`` ranks with the same lines and sizes as the typical rank.
    """

    odd: str
    typical: str
    odd_peak: int
    typical_peak: int
    lines: tuple[tuple[str, int, int], ...]
    compared: int
    alike: int


def rank_rows(results: Iterable[RankResult]) -> list[RankRow]:
    """Return pairs of a rank and a row, one per device, or (rank, None) for a rank without a report."""
    return [
        (result, row) for result in results for row in ([None] if result.report is None else report_rows(result.report))
    ]


def spread_of(metric: str, rows: Iterable[tuple[str, ReportRow]], at_least: int = 1) -> Spread | None:
    """Return the spread of a value over pairs (process, row); None if fewer than ``at_least`` rows contain it."""
    values = [(value, (name, row.device)) for name, row in rows if (value := getattr(row, metric)) is not None]
    if len(values) < at_least:
        return None
    middle = median(value for value, _ in values)
    return Spread(metric, *min(values, key=itemgetter(0)), middle, *max(values, key=itemgetter(0)))


def spreads(rows: Iterable[RankRow]) -> list[Spread]:
    """Return the spread of each value that at least two rows contain."""
    reported = [(result.name, row) for result, row in rows if row is not None]
    host_only = all(row.device == HOST for _, row in reported)
    metrics = [metric for metric in METRICS if not (host_only and metric == "host_peak")]  # the same as peak
    return [spread for metric in metrics if (spread := spread_of(metric, reported, at_least=2)) is not None]


def slow_ranks(results: Iterable[RankResult]) -> tuple[float, dict[str, float]]:
    """Return the median duration, and the durations of ranks that took at least 50 % and one second longer."""
    times = {result.name: result.report.seconds for result in results if result.report is not None}
    middle = median(times.values()) if times else 0.0
    limit = max(middle * _SLOW_FACTOR, middle + _SLOW_SECONDS)
    return middle, {name: times[name] for name in sorted(times, key=lambda name: -times[name]) if times[name] > limit}


def device_usage(results: Iterable[RankResult]) -> list[DeviceUsage]:
    """Return the devices on which the processes have a context, identified by host and UUID."""
    readings: dict[tuple[str, str], list[tuple[float, str, DeviceReading]]] = defaultdict(list)
    for result in results:
        if result.report is None:
            continue
        end = result.report.time + result.report.seconds
        for device in result.report.devices.values():
            info = result.device_info(device.name)
            if info is not None and info.uuid and device.after.context:
                readings[result.host, info.uuid].append((end, result.name, device.after))
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
    """Find the rank whose highest recorded peak differs most, and list at most ``limit`` lines that differ.

    Return None if fewer than two ranks have a snapshot. If there are two, compare the second with the first.
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
    lines.sort(key=lambda line: -abs(line[2] - line[1]))  # equal differences stay sorted by label
    alike = sum(lines_of_rank == sums[typical] for lines_of_rank in sums.values())
    requested = peaks[odd].requested, peaks[typical].requested
    return Difference(odd, typical, *requested, tuple(lines[:limit]), len(sums), alike)


def _bytes_by_line(peak: RankPeak) -> Counter[str]:
    sums: Counter[str] = Counter()
    for line in (*peak.lines, peak.rest):
        sums[line.label] += line.amount
    return sums
