"""Comparison of several processes: the spread of their figures, the one that differs most, the devices they share.

Peaks of several processes are never added up, because they occur at different times.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from ipygpumem.core.device_names import HOST
from ipygpumem.features.history.model import ReportRow, report_rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ipygpumem.features.lines.model import CodeLine
    from ipygpumem.features.ranks.model import RankResult

__all__ = [
    "FIGURES",
    "DeviceUsage",
    "Difference",
    "Skew",
    "compare_ranks",
    "device_usage",
    "rank_rows",
    "skews",
    "slow_ranks",
]

FIGURES = ("held", "peak", "outside", "host_peak", "seconds")
_SLOW_FACTOR, _SLOW_SECONDS = 1.5, 1.0


@dataclass(frozen=True, slots=True)
class Skew:
    """The spread of one figure over all rows that have it: bytes, except for ``seconds``.

    ``highest_of`` and ``lowest_of`` are (rank, device).
    """

    figure: str
    lowest: float
    lowest_of: tuple[str, str]
    median: float
    highest: float
    highest_of: tuple[str, str]
    known: int


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """One device, counted once however many processes use it. Sizes are in bytes; None means unknown.

    Attributes:
        users: (rank, device name, bytes of that process), each at the end of its own measurement.
        used: All memory in use on the device, including the driver's, in the newest reading.
        others: Memory of other processes. Also None if the readings, which are taken at different times, contradict
            each other.
    """

    host: str
    uuid: str
    label: str
    users: tuple[tuple[str, str, int | None], ...]
    used: int | None
    total: int | None
    others: int | None


@dataclass(frozen=True, slots=True)
class Difference:
    """The rank that differs most from the others, compared with a typical one at the peak, by line of code.

    Attributes:
        odd: The rank that differs most; ``odd_peak`` in requested bytes.
        typical: The rank that is closest to the median of all; ``typical_peak`` in requested bytes.
        lines: (label, bytes of the typical rank, bytes of the odd rank), the largest difference first.
        alike: How many of them have the same lines and bytes as the typical rank.
    """

    odd: str
    typical: str
    odd_peak: int
    typical_peak: int
    lines: tuple[tuple[str, int, int], ...]
    compared: int
    alike: int


def rank_rows(results: Iterable[RankResult]) -> list[tuple[RankResult, ReportRow | None]]:
    """A row for each rank and each of its devices; None for a rank without a report."""
    rows: list[tuple[RankResult, ReportRow | None]] = []
    for result in results:
        rows += [(result, row) for row in ([None] if result.report is None else report_rows(result.report))]
    return rows


def skews(rows: Sequence[tuple[RankResult, ReportRow | None]]) -> list[Skew]:
    """The spread of each figure that at least two rows have."""
    spreads = []
    host_only = all(row is None or row.device == HOST for _, row in rows)
    for figure in FIGURES:
        if host_only and figure == "host_peak":  # the same as peak
            continue
        values = [
            (value, (result.name, row.device))
            for result, row in rows
            if row is not None and (value := getattr(row, figure)) is not None
        ]
        if len(values) > 1:
            lowest, highest = min(values, key=lambda pair: pair[0]), max(values, key=lambda pair: pair[0])
            middle = median(value for value, _ in values)
            spreads.append(Skew(figure, lowest[0], lowest[1], middle, highest[0], highest[1], len(values)))
    return spreads


def slow_ranks(results: Iterable[RankResult]) -> list[tuple[RankResult, float]]:
    """Ranks that took 50 % and at least one second longer than the median, slowest first, each with that median."""
    times = [(result.report.seconds, result) for result in results if result.report is not None]
    if len(times) <= 1:
        return []
    middle = median(seconds for seconds, _ in times)
    slow = [pair for pair in times if pair[0] > max(middle * _SLOW_FACTOR, middle + _SLOW_SECONDS)]
    return [(result, middle) for _, result in sorted(slow, key=lambda pair: -pair[0])]


def device_usage(results: Iterable[RankResult]) -> list[DeviceUsage]:
    """The devices that the processes have a context on. The same UUID on the same machine is the same device."""
    users: dict[tuple[str, str], list[tuple[RankResult, str]]] = defaultdict(list)
    for result in results:
        for device in result.devices:
            facts = result.device_facts(device.name)
            if facts is not None and facts.uuid:
                users[result.host, facts.uuid].append((result, device.name))
    return [_usage(host, uuid, of_device) for (host, uuid), of_device in users.items()]


def _usage(host: str, uuid: str, users: list[tuple[RankResult, str]]) -> DeviceUsage:
    ends = [
        (result.report.time + result.report.seconds, result.name, name, result.report.devices[name].after)
        for result, name in users
        if result.report is not None
    ]
    newest = max(ends, key=lambda end: end[0])[3]
    sizes = [after.process for _, _, _, after in ends]
    others = None
    if newest.used is not None and None not in sizes:
        rest = newest.used - (newest.driver_reserved or 0) - sum(size or 0 for size in sizes)
        others = rest if rest >= 0 else None  # one process freed memory before the other was read
    facts = users[0][0].device_facts(users[0][1])
    own = tuple((rank, name, after.process) for _, rank, name, after in ends)
    return DeviceUsage(host, uuid, "" if facts is None else facts.label, own, newest.used, newest.total, others)


def compare_ranks(results: Iterable[RankResult], limit: int = 20) -> Difference | None:
    """Find the rank that differs most at its highest recorded peak, and by at most ``limit`` lines of code.

    Returns None if fewer than two ranks have a recording. Of two ranks, the second is compared with the first.
    """
    peaks = {result.name: result.highest for result in results}
    sums = {name: _by_line((*peak.lines, peak.rest)) for name, peak in peaks.items() if peak is not None}
    requested = {name: peak.requested for name, peak in peaks.items() if peak is not None}
    if len(sums) <= 1:
        return None
    labels = sorted({label for lines in sums.values() for label in lines})
    middle = {label: median(lines.get(label, 0) for lines in sums.values()) for label in labels}
    distance = {name: sum(abs(lines.get(label, 0) - middle[label]) for label in labels) for name, lines in sums.items()}
    typical = min(distance, key=lambda name: distance[name])
    odd = max((name for name in distance if name != typical), key=lambda name: distance[name])
    usual, unusual = sums[typical], sums[odd]
    lines = [
        (label, usual.get(label, 0), unusual.get(label, 0))
        for label in labels
        if usual.get(label) != unusual.get(label)
    ]
    lines.sort(key=lambda line: (-abs(line[2] - line[1]), line[0]))
    alike = sum(lines_of_rank == usual for lines_of_rank in sums.values())
    return Difference(odd, typical, requested[odd], requested[typical], tuple(lines[:limit]), len(sums), alike)


def _by_line(lines: Iterable[CodeLine]) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for line in lines:
        if line.amount:
            sums[line.label] += line.amount
    return dict(sums)
