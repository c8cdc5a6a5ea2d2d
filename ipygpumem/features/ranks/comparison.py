"""Compare several processes: the spread of each value, the process that deviates most, and the usage of devices."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from statistics import median

from ipygpumem.core.device_names import HOST
from ipygpumem.core.reading import DeviceReading
from ipygpumem.core.units import difference
from ipygpumem.features.history.model import ReportRow, report_rows
from ipygpumem.features.ranks.model import RankPeak, RankResult

RankRow = tuple[RankResult, ReportRow | None]

METRICS = {"held": "held", "peak": "peak", "outside": "outside PyTorch", "host_peak": "host peak", "seconds": "time"}
"""Fields of `ReportRow` to compare, with their labels."""
_SLOW_FACTOR, _SLOW_SECONDS = 1.5, 1.0
_MAX_LINES = 20


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of a value over all processes and devices on which it is known.

    Attributes:
        metric: Name of the value. All values are in bytes, except for ``seconds``.
        lowest, median, highest: Lowest value, median and highest value.
        lowest_owner: Pair (process, device) with the lowest value.
        highest_owner: Pair (process, device) with the highest value.
    """

    metric: str
    lowest: float
    lowest_owner: tuple[str, str] = field(metadata={"key": "lowest_of"})
    median: float
    highest: float
    highest_owner: tuple[str, str] = field(metadata={"key": "highest_of"})


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """Memory usage of one device, which several processes may share. Sizes are in bytes; unknown values are None.

    Attributes:
        users: Names of the processes that use the device.
        used: Memory in use on the device in the latest reading, including memory that the driver reserves.
        by_users: Total memory of ``users``, read at the end of the measurement of each process.
        others: Memory of other processes; also None if the readings of ``users`` contradict each other because they
            were taken at different times.
    """

    host: str
    uuid: str
    users: tuple[str, ...]
    used: int | None
    total: int | None
    by_users: int | None
    others: int | None


@dataclass(frozen=True, slots=True)
class RankComparison:
    """Comparison of the peaks of a typical rank and of the rank that deviates most from it, by line of code.

    Attributes:
        outlier: Name of the rank that deviates most.
        typical: Name of the rank whose memory by line of code is closest to the median of all ranks.
        outlier_peak, typical_peak: Requested memory at the peaks of these ranks, in bytes.
        lines: Tuples (label, bytes in the typical rank, bytes in the outlier) of lines with different sizes, in
            descending order of the difference.
        compared_count: Number of ranks with a snapshot.
        similar_count: Number of ranks with the same lines and sizes as the typical rank, including the typical rank.
    """

    outlier: str = field(metadata={"key": "odd"})
    typical: str
    outlier_peak: int = field(metadata={"key": "odd_peak"})
    typical_peak: int
    lines: tuple[tuple[str, int, int], ...]
    compared_count: int = field(metadata={"key": "compared"})
    similar_count: int = field(metadata={"key": "alike"})


def rank_rows(results: Iterable[RankResult]) -> list[RankRow]:
    return [(result, row) for result in results for row in (report_rows(result.report) if result.report else [None])]


def spread_of(metric: str, rows: Iterable[tuple[str, ReportRow]], at_least: int = 1) -> Spread | None:
    """The result is None if fewer than ``at_least`` rows contain the value. ``rows`` contains pairs (process, row)."""
    values = [(value, (name, row.device)) for name, row in rows if (value := getattr(row, metric)) is not None]
    if len(values) < at_least:
        return None
    middle = median(value for value, _ in values)
    return Spread(metric, *min(values, key=itemgetter(0)), middle, *max(values, key=itemgetter(0)))


def spreads(rows: Iterable[RankRow]) -> list[Spread]:
    """Values that fewer than two rows contain are omitted. If all rows are for the host, ``host_peak`` is omitted."""
    known_rows = [(result.name, row) for result, row in rows if row is not None]
    host_only = all(row.device == HOST for _, row in known_rows)
    metrics = [metric for metric in METRICS if not (host_only and metric == "host_peak")]  # the same as peak
    return [spread for metric in metrics if (spread := spread_of(metric, known_rows, at_least=2)) is not None]


def slow_ranks(results: Iterable[RankResult]) -> tuple[float, dict[str, float]]:
    """Return the median duration of the measurements in seconds, and the durations of slow ranks by rank.

    A rank is slow if its duration exceeds the median by more than 50% and by more than 1 s.
    """
    times = {result.name: result.report.seconds for result in results if result.report is not None}
    middle = median(times.values()) if times else 0.0
    limit = max(middle * _SLOW_FACTOR, middle + _SLOW_SECONDS)
    return middle, {name: times[name] for name in sorted(times, key=lambda name: -times[name]) if times[name] > limit}


def device_usage(results: Iterable[RankResult]) -> list[DeviceUsage]:
    """Devices are identified by host and UUID. Devices without a CUDA context or a known UUID are omitted."""
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
    other_memory = difference(by_users, difference(newest.driver_reserved or 0, newest.used))
    if other_memory is not None and other_memory < 0:  # one process freed memory before the other was read
        other_memory = None
    names = tuple(name for _, name, _ in readings)
    return DeviceUsage(host, uuid, names, newest.used, newest.total, by_users, other_memory)


def compare_ranks(results: Iterable[RankResult]) -> RankComparison | None:
    peaks = {result.name: peak for result in results if (peak := result.highest) is not None}
    if len(peaks) <= 1:
        return None
    sums = {name: _bytes_by_line(peak) for name, peak in peaks.items()}
    sizes: defaultdict[str, list[int]] = defaultdict(list)
    for lines_of_rank in sums.values():
        for label, nbytes in lines_of_rank.items():
            sizes[label].append(nbytes)
    # ranks of which each has other lines must not take time in proportion to the square of their number
    middle = {label: _median(nonzero_sizes, len(sums)) for label, nonzero_sizes in sizes.items()}
    distance_from_zero = sum(map(abs, middle.values()))
    distance = {
        name: distance_from_zero
        + sum(abs(nbytes - middle[label]) - abs(middle[label]) for label, nbytes in lines_of_rank.items())
        for name, lines_of_rank in sums.items()
    }
    typical = min(distance, key=distance.__getitem__)
    outlier = max((name for name in distance if name != typical), key=distance.__getitem__)
    labels = sorted(sums[typical].keys() | sums[outlier].keys())
    lines = [(label, sums[typical].get(label, 0), sums[outlier].get(label, 0)) for label in labels]
    lines = [line for line in lines if line[1] != line[2]]
    lines.sort(key=lambda line: -abs(line[2] - line[1]))  # equal differences stay sorted by label
    similar_count = sum(lines_of_rank == sums[typical] for lines_of_rank in sums.values())
    requested = peaks[outlier].requested, peaks[typical].requested
    return RankComparison(outlier, typical, *requested, tuple(lines[:_MAX_LINES]), len(sums), similar_count)


def _median(nonzero_sizes: Sequence[int], count: int) -> float:
    """Return the median of ``count`` sizes, of which the missing ones are zero."""
    zeros = count - len(nonzero_sizes)
    return 0 if 2 * zeros > count else median([*nonzero_sizes, *[0] * zeros])


def _bytes_by_line(peak: RankPeak) -> dict[str, int]:
    """Lines without memory are omitted."""
    sums: Counter[str] = Counter()
    for line in (*peak.lines, peak.rest):
        sums[line.label] += line.amount
    return {label: nbytes for label, nbytes in sums.items() if nbytes}
