"""Tables of several processes: the figures of each, their spread, the devices they share, the one that differs most."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ipygpumem.core.device_names import HOST
from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.units import VISIBLE, change_text, duration, level_text, pair, size
from ipygpumem.features.ranks.remarks import join_names, notes_tables, rank_remarks
from ipygpumem.features.ranks.skew import compare_ranks, device_usage, rank_rows, skews

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.features.history.model import ReportRow
    from ipygpumem.features.ranks.model import RankResult
    from ipygpumem.features.ranks.skew import DeviceUsage, Difference, Skew

    _Row = tuple[RankResult, ReportRow | None]

__all__ = ["DEFAULT_ROWS", "ranks_tables"]

DEFAULT_ROWS = 32
"""Rows of each table, unless the user asks for another number."""
_UUID_DIGITS = 8
_MAX_LINES = 8
_FIGURES = {"held": "held", "peak": "peak", "outside": "outside PyTorch", "host_peak": "host peak", "seconds": "time"}
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
_STATES = {
    "running": "started, but left no report: killed, or still running",
    "late": "still running",
    "died": "died",
    "missing": "no report",
    "absent": "not monitored",
}
_EQUAL_TIMES, _SHORT_TIME = 1.1, 0.1
"""Times that differ by less than this factor are equal; a difference below this many seconds is not mentioned."""


def ranks_tables(
    results: Sequence[RankResult], role: str = "rank", *, by: str = "rank", limit: int = DEFAULT_ROWS, code: str = ""
) -> list[Table]:
    """All tables about several processes, each with at most ``limit`` rows.

    ``role`` is ``rank`` or ``engine``. ``by`` is ``rank``, which keeps the order, or ``held``, ``peak``, ``outside`` or
    ``time``, highest first. ``code`` is the code that they ran, if it has to be shown.
    """
    rows = rank_rows(results)
    figures = _figures_table(results, rows, role, by, limit)
    tables = [replace(figures, title=f"{figures.title} ran: {code}") if code else figures]
    spreads = [spread for spread in skews(rows) if not _is_negligible(spread)]
    if spreads:
        tables.append(_skew_table(spreads, role))
    devices = device_usage(results)
    if devices:
        tables.append(_device_table(devices, role, limit))
    difference = compare_ranks(results)
    if difference is not None:
        tables.append(_difference_table(difference, role))
    return [*tables, *notes_tables(results, role, limit)]


def _figures_table(results: Sequence[RankResult], rows: Sequence[_Row], role: str, by: str, limit: int) -> Table:
    hosts = list(dict.fromkeys(result.host for result in results if result.host))
    several = len(hosts) > 1
    largest = max((row.peak or 0 for _, row in rows if row is not None), default=0) or 1
    columns = _COLUMNS if any(row is not None and row.device != HOST for _, row in rows) else _HOST_COLUMNS
    if all(row is None for _, row in rows):
        columns = {}
    body = tuple(
        TableRow(
            result.name,
            (*((result.host,) if several else ()), *(_cell(column, result, row) for column in columns)),
            1,
            bar=None if row is None else max(row.peak or 0, 0) / largest,
            remark=_outcome(result, row),
        )
        for result, row in _sorted(rows, by)[:limit]
    )
    title = f"{len(results):,} {role}{'' if len(results) == 1 else 's'}"
    where = f" on {len(hosts):,} hosts" if several else f" on {hosts[0]}" if hosts else ""
    header = (*(("host",) if several else ()), *columns.values())
    remarks = (f"{len(rows) - limit:,} more rows not shown",) if len(rows) > limit else ()
    return Table(title + where, header, body, (*remarks, *rank_remarks(results, rows, role)))


def _sorted(rows: Sequence[_Row], by: str) -> Sequence[_Row]:
    if by == "rank":
        return rows
    figure = "seconds" if by == "time" else by

    def descending(pair: _Row) -> float:
        value = None if pair[1] is None else getattr(pair[1], figure)
        return float("inf") if value is None else -value

    return sorted(rows, key=descending)


def _cell(column: str, result: RankResult, row: ReportRow | None) -> str:
    if row is None or (row.device == HOST and column in {"cache", "outside"}):
        return ""
    if column == "device":
        facts = result.device_facts(row.device)
        return row.device if facts is None or not facts.uuid else f"{row.device} {_short_uuid(facts.uuid)}"
    if column == "seconds":
        return duration(row.seconds)
    value = getattr(row, column)
    if column in {"allocated", "cache"}:
        return level_text(value)
    at_most = "at most " if column == "peak" and row.peak_trust == "bound" else ""
    whole_device = "~" if column == "outside" and row.outside_trust == "device" else ""
    return f"{at_most}{whole_device}{change_text(value)}"


def _short_uuid(uuid: str) -> str:
    return uuid.removeprefix("GPU-")[:_UUID_DIGITS]


def _outcome(result: RankResult, row: ReportRow | None) -> str:
    if row is not None:
        return "out of memory" if row.ooms else "failed" if row.success is False else ""
    parts = [] if result.note and result.state == "missing" else [_STATES.get(result.state, result.state)]
    if result.note:
        parts.append(result.note)
    if result.highest is not None:
        parts.append(f"recorded peak {size(result.highest.requested)}")
    return ", ".join(parts)


def _skew_table(spreads: Sequence[Skew], role: str) -> Table:
    several = len({device for spread in spreads for _, device in (spread.lowest_of, spread.highest_of)}) > 1

    def name(rank_and_device: tuple[str, str]) -> str:
        return ", ".join(rank_and_device) if several else rank_and_device[0]

    body = tuple(
        TableRow(
            _FIGURES[spread.figure],
            (
                _figure(spread.figure, spread.lowest),
                name(spread.lowest_of),
                _figure(spread.figure, spread.median),
                _figure(spread.figure, spread.highest),
                name(spread.highest_of),
            ),
            1,
            remark=_ratio(spread),
        )
        for spread in spreads
        if not _is_equal(spread)
    )
    equal = [_FIGURES[spread.figure] for spread in spreads if _is_equal(spread)]
    remarks = (f"equal on all: {', '.join(equal)}",) if equal else ()
    return Table("imbalance", ("lowest", role, "median", "highest", role) if body else (), body, remarks)


def _is_equal(spread: Skew) -> bool:
    if spread.figure == "seconds":
        return spread.highest <= spread.median * _EQUAL_TIMES
    return spread.highest - spread.lowest < VISIBLE


def _is_negligible(spread: Skew) -> bool:
    """Whether times differ, but by too little to mention."""
    return spread.figure == "seconds" and spread.highest - spread.lowest < _SHORT_TIME and not _is_equal(spread)


def _ratio(spread: Skew) -> str:
    ratio = "" if spread.median <= 0 else f"{spread.highest / spread.median:.1f}"
    return "" if ratio in {"", "1.0"} else f"highest is {ratio} times the median"


def _figure(figure: str, value: float) -> str:
    return duration(value) if figure == "seconds" else change_text(round(value))


def _device_table(devices: Sequence[DeviceUsage], role: str, limit: int) -> Table:
    several = len({device.host for device in devices}) > 1
    body = tuple(
        TableRow(
            f"{device.host}  {_short_uuid(device.uuid)}" if several else _short_uuid(device.uuid),
            (join_names([name for name, _, _ in device.users]), _used(device), _own(device), level_text(device.others)),
            1,
            bar=None if device.used is None or not device.total else device.used / device.total,
            remark=f"shared by {len(device.users)} processes, counted once" if len(device.users) > 1 else "",
        )
        for device in devices[:limit]
    )
    remarks = (f"{len(devices) - limit:,} more devices not shown",) if len(devices) > limit else ()
    header = (f"{role}s", "used", f"by these {role}s", "other processes")
    return Table("devices at the end of the measurements", header, body, remarks)


def _used(device: DeviceUsage) -> str:
    if device.used is None or device.total is None:
        return level_text(device.used)
    return pair(device.used, device.total)


def _own(device: DeviceUsage) -> str:
    sizes = [nbytes for _, _, nbytes in device.users]
    return "unknown" if None in sizes else size(sum(nbytes or 0 for nbytes in sizes))


def _difference_table(difference: Difference, role: str) -> Table:
    title = "at the peak, by line of code"
    if not difference.lines:
        return Table(f"{title}: all {difference.compared:,} recordings are equal", (), ())
    odd, typical = f"{role} {difference.odd}", f"{role} {difference.typical}"
    only_two = difference.compared == len((odd, typical))
    body = [
        TableRow(label, (_size(typical_bytes), _size(odd_bytes), change_text(odd_bytes - typical_bytes)), 1)
        for label, typical_bytes, odd_bytes in difference.lines[:_MAX_LINES]
    ]
    peaks = difference.typical_peak, difference.odd_peak
    body.append(TableRow("peak, requested", (*map(size, peaks), change_text(peaks[1] - peaks[0])), 0))
    more = len(difference.lines) - _MAX_LINES
    remarks = [f"{more:,} more lines differ"] if more > 0 else []
    if not only_two:
        remarks.append(f"{difference.alike:,} of {difference.compared:,} recordings are equal to that of {typical}")
    comparison = f"{odd} compared with {typical}" if only_two else f"{odd} differs most, {typical} is the most typical"
    return Table(f"{title}: {comparison}", (typical, odd, "change"), tuple(body), tuple(remarks))


def _size(count: int) -> str:
    return size(count) if count else "0"
