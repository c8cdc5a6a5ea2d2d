"""Several processes side by side, as tables: each one's figures, how far they lie apart, the cards, the odd one."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ipygpumem.core.device_names import HOST
from ipygpumem.core.units import duration, pair, signed, size
from ipygpumem.display.columns import VISIBLE
from ipygpumem.display.table import Table, TableRow
from ipygpumem.features.history.model import ReportRow
from ipygpumem.features.ranks.notes_table import named, notes_tables
from ipygpumem.features.ranks.skew import DeviceUsage, Difference, Skew, cards, compare_ranks, rank_rows, skews, slow

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ipygpumem.features.ranks.model import RankResult

__all__ = ["MOST", "ranks_tables"]

MOST = 32
"""Rows of each table that are shown where nobody says how many."""
_NAMED = 8
_UUID = 8
_LINES = 8
_WORDS = {"held": "held", "peak": "peak", "outside": "outside PyTorch", "host_peak": "host peak", "seconds": "time"}
_COLUMNS = {
    "device": "device",
    "held": "held",
    "peak": "peak",
    "allocated": "allocated",
    "cache": "cached",
    "outside": "outside",
    "seconds": "time",
}
_HOST_COLUMNS = {"device": "device", "held": "held", "peak": "peak", "allocated": "resident", "seconds": "time"}
_ONE = 1.0
_SLOWER, _SHORT = 1.1, 0.1
_APART = 1.0
_CLOCKS = 4
"""So many hosts with a clock of their own are named one by one."""


def ranks_tables(
    members: Sequence[RankResult], what: str = "rank", *, by: str = "rank", most: int = MOST, code: str = ""
) -> list[Table]:
    """All that is to be told of several processes.

    Args:
        members: In the order in which they are shown.
        what: What one of them is called: ``rank``, ``engine``.
        by: ``rank`` keeps the order; ``held``, ``peak``, ``outside``, ``time`` put the highest first.
        most: Rows of each table; how many there are further is told.
        code: What they ran, where that has to be said.
    """
    rows = rank_rows(members)
    figures = _figures(members, rows, what, by, most)
    tables = [replace(figures, title=f"{figures.title} ran: {code}") if code else figures]
    spread = [one for one in skews(rows) if not _brief(one)]
    if spread:
        tables.append(_skew_table(spread, what))
    books = cards(members)
    if books:
        tables.append(_cards_table(books, what, most))
    difference = compare_ranks(members)
    if difference is not None:
        tables.append(_difference_table(difference, what))
    return [*tables, *notes_tables(members, what, most)]


def _figures(
    members: Sequence[RankResult], rows: Sequence[tuple[RankResult, ReportRow | None]], what: str, by: str, most: int
) -> Table:
    hosts = list(dict.fromkeys(member.host for member in members if member.host))
    several = len(hosts) > 1
    shown = _sorted(rows, by)[:most]
    largest = max((row.peak or 0 for _, row in rows if row is not None), default=0) or 1
    columns = _COLUMNS if any(row is not None and row.device != HOST for _, row in rows) else _HOST_COLUMNS
    if all(row is None for _, row in rows):
        columns = {}
    body = tuple(
        TableRow(
            member.name,
            (*((member.host,) if several else ()), *(_cell(column, member, row) for column in columns)),
            1,
            bar=None if row is None else max(row.peak or 0, 0) / largest,
            remark=_remark(member, row),
        )
        for member, row in shown
    )
    where = f" on {len(hosts):,} hosts" if several else f" on {hosts[0]}" if hosts else ""
    header = (*(("host",) if several else ()), *columns.values())
    return Table(_several(len(members), what) + where, header, body, tuple(_said(members, rows, what, most)))


def _several(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _sorted(
    rows: Sequence[tuple[RankResult, ReportRow | None]], by: str
) -> Sequence[tuple[RankResult, ReportRow | None]]:
    if by == "rank":
        return rows
    figure = "seconds" if by == "time" else by

    def value(row: tuple[RankResult, ReportRow | None]) -> float:
        found = None if row[1] is None else getattr(row[1], figure)
        return float("inf") if found is None else -found

    return sorted(rows, key=value)


def _cell(column: str, member: RankResult, row: ReportRow | None) -> str:
    if row is None or (row.device == HOST and column in {"cache", "outside"}):
        return ""
    if column == "device":
        return _device(member, row.device)
    if column == "seconds":
        return duration(row.seconds)
    value = getattr(row, column)
    if column in {"allocated", "cache"}:
        return _level(value)
    bound = column == "peak" and row.peak_trust == "bound"
    whole = column == "outside" and row.outside_trust == "device"
    return f"{'at most ' if bound else '~' if whole else ''}{_change(value)}"


def _device(member: RankResult, name: str) -> str:
    card = None if member.origin is None else member.origin.card(name)
    return name if card is None or not card.uuid else f"{name} {_short(card.uuid)}"


def _short(uuid: str) -> str:
    """The first digits of a UUID, by which cards of one machine are told apart."""
    return uuid.removeprefix("GPU-")[:_UUID]


_STATES = {
    "running": "began, and left no report: killed, or still running",
    "late": "still running",
    "died": "died",
    "missing": "sent nothing",
    "absent": "not under watch",
}


def _remark(member: RankResult, row: ReportRow | None) -> str:
    if row is None and member.note and member.state == "missing":
        words = [member.note]
    else:
        words = [] if row is not None else [_STATES.get(member.state, member.state)]
        words += [member.note] if row is None and member.note else []
    if row is None and member.highest is not None:
        words.append(f"recorded peak {size(member.highest.requested)}")
    if row is not None and row.ooms:
        words.append("out of memory")
    elif row is not None and row.success is False:
        words.append("failed")
    return ", ".join(words)


def _said(
    members: Sequence[RankResult], rows: Sequence[tuple[RankResult, ReportRow | None]], what: str, most: int
) -> Iterable[str]:
    """What stands below the figures."""
    if len(rows) > most:
        yield f"{len(rows) - most:,} further rows are not shown"
    lost = [member.name for member in members if member.report is None]
    if lost and not (len(lost) == len(members) and all(member.peaks for member in members)):
        yield f"without a report: {what} {named(lost)}"
    late = slow(members)
    if late:
        worst = ", ".join(f"{one.name} ({duration(one.report.seconds)})" for one, _ in late[:_NAMED] if one.report)
        yield f"slow against the middle of {duration(late[0][1])}: {what} {worst}"
    yield from _versions(members, what)
    yield from _clocks(members, what)
    if any(row is not None and row.device == HOST for _, row in rows):
        yield "without a GPU: held and peak are of the process's resident memory"
    yield from dict.fromkeys(member.note for member in members if member.report is not None and member.note)


def _versions(members: Sequence[RankResult], what: str) -> Iterable[str]:
    versions: dict[str, list[str]] = {}
    for member in members:
        if member.origin is not None and member.origin.version:
            versions.setdefault(member.origin.version, []).append(member.name)
    if len(versions) > 1:
        told = "; ".join(f"{version} on {what} {named(names)}" for version, names in versions.items())
        yield f"different versions of ipygpumem: {told}"


def _clocks(members: Sequence[RankResult], what: str) -> Iterable[str]:
    """Who began late; and whose clock is another one than the folder's, which is one for all."""
    origins = [(member, member.origin) for member in members if member.origin is not None and member.origin.began]
    wrong = {one.host: one.clock for _, one in origins if one.clock is not None and abs(one.clock) >= _ONE}
    if len(wrong) > _CLOCKS:
        far = max(wrong, key=lambda host: abs(wrong[host]))
        told = f"{len(wrong):,} hosts differ from the folder's, {far} is {_apart(wrong[far])} it"
        yield f"the clocks of {told}: begins are told by the folder's"
    else:
        for host, clock in wrong.items():
            yield f"the clock of {host} is {_apart(clock)} the folder's: begins are told by the folder's"
    begins = [(one.began + (one.clock or 0.0), member.name) for member, one in origins]
    if not begins:
        return
    first = min(begins)[0]
    late = sorted(((begin - first, name) for begin, name in begins if begin - first >= _APART), reverse=True)
    if late:
        several = len({one.host for _, one in origins}) > 1 and not any(one.clock is not None for _, one in origins)
        doubt = " by clocks that may differ" if several else ""
        told = ", ".join(f"{name} by {duration(seconds)}" for seconds, name in late[:_NAMED])
        yield f"began after the first{doubt}: {what} {told}"


def _apart(clock: float) -> str:
    return f"{duration(abs(clock))} {'behind' if clock > 0 else 'ahead of'}"


def _skew_table(spread: Sequence[Skew], what: str) -> Table:
    several = len({device for one in spread for _, device in (one.lowest_of, one.highest_of)}) > 1

    def who(of: tuple[str, str]) -> str:
        return f"{of[0]}, {of[1]}" if several else of[0]

    apart = [one for one in spread if not _alike(one)]
    body = tuple(
        TableRow(
            _WORDS[one.figure],
            (
                _amount(one.figure, one.lowest),
                who(one.lowest_of),
                _amount(one.figure, one.middle),
                _amount(one.figure, one.highest),
                who(one.highest_of),
            ),
            1,
            remark=_ratio(one),
        )
        for one in apart
    )
    alike = [_WORDS[one.figure] for one in spread if _alike(one)]
    remarks = (f"alike on all: {', '.join(alike)}",) if alike else ()
    return Table("imbalance", ("lowest", what, "middle", "highest", what) if body else (), body, remarks)


def _alike(one: Skew) -> bool:
    if one.figure == "seconds":
        return one.highest <= one.middle * _SLOWER
    return one.highest - one.lowest < VISIBLE


def _brief(one: Skew) -> bool:
    """Whether it is of a time that is not worth a word: neither alike nor apart."""
    return one.figure == "seconds" and one.highest - one.lowest < _SHORT and one.highest > one.middle * _SLOWER


def _ratio(one: Skew) -> str:
    times = "" if one.middle <= 0 else f"{one.highest / one.middle:.1f}"
    return "" if times in {"", "1.0"} else f"highest is {times} times the middle"


def _amount(figure: str, value: float) -> str:
    return duration(value) if figure == "seconds" else _change(round(value))


def _cards_table(books: Sequence[DeviceUsage], what: str, most: int) -> Table:
    several = len({one.host for one in books}) > 1
    body = tuple(
        TableRow(
            f"{one.host}  {_short(one.uuid)}" if several else _short(one.uuid),
            (
                named([name for name, _, _ in one.users]),
                _used(one),
                _sum(one),
                _level(one.others),
            ),
            1,
            bar=None if one.used is None or not one.total else one.used / one.total,
            remark=f"shared by {len(one.users)} processes, counted once" if len(one.users) > 1 else "",
        )
        for one in books[:most]
    )
    more = (f"{len(books) - most:,} further cards are not shown",) if len(books) > most else ()
    return Table("cards, at each one's end", (f"{what}s", "used", "by these", "others"), body, more)


def _used(one: DeviceUsage) -> str:
    if one.used is None or one.total is None:
        return _level(one.used)
    return pair(one.used, one.total)


def _sum(one: DeviceUsage) -> str:
    amounts = [amount for _, _, amount in one.users]
    return "unknown" if None in amounts else size(sum(amount or 0 for amount in amounts))


def _difference_table(found: Difference, what: str) -> Table:
    if not found.lines:
        return Table(f"at the peak, by line of code: all {found.compared:,} recordings hold the same", (), ())
    names = f"{what} {found.odd}", f"{what} {found.typical}"
    two = 2
    if found.compared == two:
        title = f"at the peak, by line of code: {names[0]} against {names[1]}"
    else:
        title = f"at the peak, by line of code: {names[0]} differs most, {names[1]} is the most typical"
    change = found.odd_peak - found.typical_peak
    body = [
        TableRow(label, (_amount_of(typical), _amount_of(odd), _change(odd - typical)), 1)
        for label, typical, odd in found.lines[:_LINES]
    ]
    body.append(TableRow("peak, requested", (size(found.typical_peak), size(found.odd_peak), _change(change)), 0))
    rest = len(found.lines) - _LINES
    remarks = [f"{rest:,} further lines differ"] if rest > 0 else []
    if found.compared > two:
        remarks.append(f"{found.alike:,} of {found.compared:,} recordings are just like {names[1]}'s")
    return Table(title, (names[1], names[0], "change"), tuple(body), tuple(remarks))


def _amount_of(count: int) -> str:
    return size(count) if count else "0"


def _change(count: int | None) -> str:
    if count is None:
        return "unknown"
    return signed(count) if abs(count) >= VISIBLE else "0" if not count else "<0.1 MiB"


def _level(count: int | None) -> str:
    return "unknown" if count is None else size(count)
