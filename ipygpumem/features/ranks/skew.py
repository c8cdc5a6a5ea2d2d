"""Several processes side by side: how far they lie apart, which one is odd, and the cards that they share.

Peaks of several processes are never added: they were not at one time.
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
    "cards",
    "compare_ranks",
    "rank_rows",
    "skews",
    "slow",
]

FIGURES = ("held", "peak", "outside", "host_peak", "seconds")
_SLOW, _SECOND = 1.5, 1.0


@dataclass(frozen=True, slots=True)
class Skew:
    """One figure over all rows that know it: bytes, but for ``seconds``.

    ``highest_of`` and ``lowest_of``: (member, device).
    """

    figure: str
    lowest: float
    lowest_of: tuple[str, str]
    middle: float
    highest: float
    highest_of: tuple[str, str]
    known: int


@dataclass(frozen=True, slots=True)
class DeviceUsage:
    """One card, told once however many processes use it. Bytes; what is not known is None.

    Attributes:
        host: Its machine.
        uuid: The card.
        label: Its model.
        users: (member, device, what that process has of it), each at its own end.
        used: All that is taken of the card, the driver's reserve included: the newest reading.
        total: The card's size.
        others: What is neither the driver's nor one of these processes'; None also where the readings, taken one after
            the other, do not fit together.
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
    """The rank that differs most from the others, against a typical one: at the peak, by line of code.

    Attributes:
        odd: The member that differs most.
        typical: The member that differs least from the middle of all.
        odd_peak, typical_peak: Requested bytes.
        lines: (label, bytes of the typical one, bytes of the odd one), the largest difference first.
        compared: How many members were.
        alike: How many of them have just the typical one's lines and bytes.
    """

    odd: str
    typical: str
    odd_peak: int
    typical_peak: int
    lines: tuple[tuple[str, int, int], ...]
    compared: int
    alike: int


def rank_rows(members: Iterable[RankResult]) -> list[tuple[RankResult, ReportRow | None]]:
    """A row for each member and device of its process; None stands for a member without a report."""
    rows: list[tuple[RankResult, ReportRow | None]] = []
    for member in members:
        found = report_rows(member.report) if member.report is not None else [None]
        rows += [(member, row) for row in found]
    return rows


def skews(rows: Sequence[tuple[RankResult, ReportRow | None]]) -> list[Skew]:
    """Each figure that two rows know or more."""
    found = []
    alone = all(row is None or row.device == HOST for _, row in rows)
    for figure in FIGURES:
        if alone and figure == "host_peak":  # the rows' own peak
            continue
        known = [
            (value, (member.name, row.device))
            for member, row in rows
            if row is not None and (value := getattr(row, figure)) is not None
        ]
        if len(known) > 1:
            lowest, highest = min(known, key=_value), max(known, key=_value)
            middle = median(value for value, _ in known)
            found.append(Skew(figure, lowest[0], lowest[1], middle, highest[0], highest[1], len(known)))
    return found


def _value(pair: tuple[float, tuple[str, str]]) -> float:
    return pair[0]


def slow(members: Iterable[RankResult]) -> list[tuple[RankResult, float]]:
    """Members that took half as long again as the middle one, and a second more; each with that middle's seconds."""
    done = [member for member in members if member.report is not None]
    times = {member.name: member.report.seconds for member in done if member.report is not None}
    if len(times) <= 1:
        return []
    middle = median(times.values())
    late = [one for one in done if times[one.name] > max(middle * _SLOW, middle + _SECOND)]
    return [(one, middle) for one in sorted(late, key=lambda one: -times[one.name])]


def cards(members: Iterable[RankResult]) -> list[DeviceUsage]:
    """The cards that these processes have a context on: the same UUID on the same machine is the same card."""
    users: dict[tuple[str, str], list[tuple[RankResult, str]]] = defaultdict(list)
    for member in members:
        for device in member.devices:
            card = None if member.origin is None else member.origin.card(device.name)
            if card is not None and card.uuid:
                users[member.host, card.uuid].append((member, device.name))
    return [_books(host, uuid, found) for (host, uuid), found in users.items()]


def _books(host: str, uuid: str, found: list[tuple[RankResult, str]]) -> DeviceUsage:
    ends = []
    for member, name in found:
        if member.report is not None:
            ends.append((member.report.time + member.report.seconds, member, name, member.report.devices[name].after))
    newest = max(ends, key=lambda end: end[0])[3]
    own = tuple((member.name, name, after.process) for _, member, name, after in ends)
    known = [amount for _, _, amount in own if amount is not None]
    others = None
    if newest.used is not None and len(known) == len(own):
        rest = newest.used - (newest.driver_reserved or 0) - sum(known)
        others = rest if rest >= 0 else None  # one gave memory back before the other was read
    origin = found[0][0].origin
    card = None if origin is None else origin.card(found[0][1])
    return DeviceUsage(host, uuid, "" if card is None else card.label, own, newest.used, newest.total, others)


def compare_ranks(members: Iterable[RankResult], most: int = 20) -> Difference | None:
    """Which rank differs, and by which line of code: what their recordings held at each one's highest peak.

    Args:
        members: Those without a recording are passed over.
        most: Lines in the answer.

    Returns:
        None where fewer than two have a recording. Of two neither is odd: the second is told against the first.
    """
    sums: dict[str, dict[str, int]] = {}
    peaks: dict[str, int] = {}
    for member in members:
        peak = member.highest
        if peak is not None:
            sums[member.name], peaks[member.name] = _by_line((*peak.lines, peak.rest)), peak.requested
    if len(sums) <= 1:
        return None
    labels = sorted({label for lines in sums.values() for label in lines})
    middle = {label: median(lines.get(label, 0) for lines in sums.values()) for label in labels}
    far = {name: sum(abs(lines.get(label, 0) - middle[label]) for label in labels) for name, lines in sums.items()}
    typical = min(far, key=lambda name: far[name])
    odd = max((name for name in far if name != typical), key=lambda name: far[name])
    one, other = sums[typical], sums[odd]
    lines = [(label, one.get(label, 0), other.get(label, 0)) for label in labels if one.get(label) != other.get(label)]
    lines.sort(key=lambda line: (-abs(line[2] - line[1]), line[0]))
    alike = sum(lines == one for lines in sums.values())
    return Difference(odd, typical, peaks[odd], peaks[typical], tuple(lines[:most]), len(sums), alike)


def _by_line(lines: Iterable[CodeLine]) -> dict[str, int]:
    sums: dict[str, int] = defaultdict(int)
    for line in lines:
        if line.amount:
            sums[line.label] += line.amount
    return dict(sums)
