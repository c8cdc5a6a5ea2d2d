"""Tables of several processes: their memory usage, imbalances, devices, and the process that deviates most."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ipygpumem.core.device_names import HOST
from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.units import VISIBLE, change_text, duration, many, pair, size, usage_text
from ipygpumem.features.history.table import row_cells, row_outcome
from ipygpumem.features.ranks.notes import join_names, notes_tables, rank_notes
from ipygpumem.features.ranks.skew import METRICS, compare_ranks, device_usage, rank_rows, spreads

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.features.history.model import ReportRow
    from ipygpumem.features.ranks.model import RankResult
    from ipygpumem.features.ranks.skew import DeviceUsage, RankComparison, RankRow, Spread

DEFAULT_ROWS = 32
"""Default maximum number of rows per table."""
_UUID_DIGITS = 8
_MAX_LINES = 8
_HEADER = ("device", "held", "peak", "allocated", "cached", "outside", "time")
_HOST_HEADER = ("device", "held", "peak", "resident", "time")
_STATES = {
    "running": "started, but wrote no report: killed or still running",
    "late": "still running",
    "died": "died",
    "missing": "no report",
    "absent": "not monitored",
}
_SIMILAR_TIMES, _SHORT_TIME = 1.1, 0.1
"""Factor and number of seconds; durations that differ by less than either of them are considered similar."""


def ranks_tables(
    results: Sequence[RankResult], role: str = "rank", *, by: str = "rank", limit: int = DEFAULT_ROWS, code: str = ""
) -> list[Table]:
    """Create the tables for several processes.

    Args:
        results: Results of the processes.
        role: Term for a process, such as ``rank``.
        by: Order of the rows: ``rank`` for that of the results, or ``held``, ``peak``, ``outside`` or ``time``, in
            descending order.
        limit: Maximum number of rows per table.
        code: Label of the code that was run, or an empty string.
    """
    rows = rank_rows(results)
    usage = _usage_table(results, rows, role, by, limit)
    tables = [replace(usage, title=f"{usage.title} ran: {code}") if code else usage]
    if listed := spreads(rows):
        tables.append(_spread_table(listed, role))
    if devices := device_usage(results):
        tables.append(_device_table(devices, role, limit))
    if comparison := compare_ranks(results):
        tables.append(_comparison_table(comparison, role))
    return [*tables, *notes_tables(results, role, limit)]


def _usage_table(results: Sequence[RankResult], rows: Sequence[RankRow], role: str, by: str, limit: int) -> Table:
    hosts = list(dict.fromkeys(result.host for result in results if result.host))
    reported = [row for _, row in rows if row is not None]
    largest = max((row.peak or 0 for row in reported), default=0) or 1
    header = () if not reported else _HOST_HEADER if all(row.device == HOST for row in reported) else _HEADER
    body = tuple(
        TableRow(
            result.name,
            (*([result.host] if len(hosts) > 1 else ()), *_cells(result, row, len(header))),
            1,
            bar=None if row is None else max(row.peak or 0, 0) / largest,
            note=_missing_reason(result) if row is None else row_outcome(row),
        )
        for result, row in _sorted(rows, by)[:limit]
    )
    title = many(len(results), role)
    where = f" on {len(hosts):,} hosts" if len(hosts) > 1 else f" on {hosts[0]}" if hosts else ""
    notes = (f"not shown: {many(len(rows) - limit, 'more row')}",) if len(rows) > limit else ()
    header = ("host", *header) if len(hosts) > 1 else header
    return Table(title + where, header, body, (*notes, *rank_notes(results, rows, role)))


def _sorted(rows: Sequence[RankRow], by: str) -> Sequence[RankRow]:
    if by == "rank":
        return rows
    metric = "seconds" if by == "time" else by

    def descending(rank_row: RankRow) -> float:
        value = getattr(rank_row[1], metric, None)
        return float("inf") if value is None else -value

    return sorted(rows, key=descending)


def _cells(result: RankResult, row: ReportRow | None, columns: int) -> Sequence[str]:
    if row is None:
        return ("",) * columns
    info = result.device_info(row.device)
    device = row.device if info is None or not info.uuid else f"{row.device} {_short_uuid(info.uuid)}"
    held, peak, outside, time = row_cells(row)
    if columns == len(_HOST_HEADER):
        return (device, held, peak, usage_text(row.allocated), time)
    cached = "" if row.device == HOST else usage_text(row.cache)
    return (device, held, peak, usage_text(row.allocated), cached, outside, time)


def _short_uuid(uuid: str) -> str:
    return uuid.removeprefix("GPU-")[:_UUID_DIGITS]


def _missing_reason(result: RankResult) -> str:
    parts = [] if result.note and result.state == "missing" else [_STATES.get(result.state, result.state)]
    if result.note:
        parts.append(result.note)
    if result.highest is not None:
        parts.append(f"recorded peak {size(result.highest.requested)}")
    return ", ".join(parts)


def _spread_table(listed: Sequence[Spread], role: str) -> Table:
    several = len({device for spread in listed for _, device in (spread.lowest_of, spread.highest_of)}) > 1
    rows, similar = [], []
    for spread in listed:
        label = METRICS[spread.metric]
        if _is_similar(spread):
            similar.append(label)
            continue
        values = (spread.lowest, spread.median, spread.highest)
        lowest, middle, highest = (
            duration(value) if spread.metric == "seconds" else change_text(round(value)) for value in values
        )
        lowest_name, highest_name = (
            ", ".join(rank_and_device) if several else rank_and_device[0]
            for rank_and_device in (spread.lowest_of, spread.highest_of)
        )
        cells = (lowest, lowest_name, middle, highest, highest_name)
        ratio = "1.0" if spread.median <= 0 else f"{spread.highest / spread.median:.1f}"
        rows.append(TableRow(label, cells, 1, note="" if ratio == "1.0" else f"highest is {ratio} times the median"))
    notes = (f"similar on all: {', '.join(similar)}",) if similar else ()
    return Table("imbalance", ("lowest", role, "median", "highest", role) if rows else (), tuple(rows), notes)


def _is_similar(spread: Spread) -> bool:
    difference = spread.highest - spread.lowest
    if spread.metric == "seconds":
        return difference < _SHORT_TIME or spread.highest <= spread.median * _SIMILAR_TIMES
    return difference < VISIBLE


def _device_table(devices: Sequence[DeviceUsage], role: str, limit: int) -> Table:
    several = len({device.host for device in devices}) > 1
    body = tuple(
        TableRow(
            f"{device.host}  {_short_uuid(device.uuid)}" if several else _short_uuid(device.uuid),
            (join_names(device.users), _used(device), usage_text(device.by_users), usage_text(device.others)),
            1,
            bar=None if device.used is None or not device.total else device.used / device.total,
            note=f"shared by {len(device.users)} processes, counted once" if len(device.users) > 1 else "",
        )
        for device in devices[:limit]
    )
    notes = (f"not shown: {many(len(devices) - limit, 'more device')}",) if len(devices) > limit else ()
    header = (f"{role}s", "used", f"by these {role}s", "other processes")
    return Table("devices at the end of the measurements", header, body, notes)


def _used(device: DeviceUsage) -> str:
    if device.used is None or device.total is None:
        return usage_text(device.used)
    return pair(device.used, device.total)


def _comparison_table(comparison: RankComparison, role: str) -> Table:
    title = "at the peak, by line of code"
    if not comparison.lines:
        return Table(f"{title}: all {comparison.compared:,} recordings are equal", (), ())
    outlier, typical = f"{role} {comparison.outlier}", f"{role} {comparison.typical}"
    body = [
        TableRow(label, (*(size(nbytes) if nbytes else "0" for nbytes in both), change_text(both[1] - both[0])), 1)
        for label, *both in comparison.lines[:_MAX_LINES]
    ]
    peaks = comparison.typical_peak, comparison.outlier_peak
    body.append(TableRow("peak, requested", (*map(size, peaks), change_text(peaks[1] - peaks[0])), 0))
    more = len(comparison.lines) - _MAX_LINES
    notes = [f"not shown: {many(more, 'more line')} with a difference"] if more > 0 else []
    names = f"{outlier} compared with {typical}"
    if comparison.compared > len(peaks):
        names = f"{outlier} deviates most, {typical} is the most typical"
        notes.append(f"{comparison.alike:,} of {comparison.compared:,} recordings are equal to that of {typical}")
    return Table(f"{title}: {names}", (typical, outlier, "change"), tuple(body), tuple(notes))
