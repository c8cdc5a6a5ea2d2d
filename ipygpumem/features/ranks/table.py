"""Tables of several processes: memory usage, spreads of values, devices, the process that deviates most, and notes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ipygpumem.core.device_names import HOST
from ipygpumem.core.report import Report
from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.units import VISIBLE, change_text, duration, many, pair, size, usage_text
from ipygpumem.features.history.model import SORT_COLUMNS, ReportRow
from ipygpumem.features.history.table import HOST_NOTE, descending, row_cells, row_outcome
from ipygpumem.features.outside.table import outside_sentence
from ipygpumem.features.ranks import DEFAULT_ROWS
from ipygpumem.features.ranks import comparison as ranks
from ipygpumem.features.ranks.model import RankInfo, RankResult

_UUID_DIGITS = 8
_MAX_LINES = 8
_MAX_NAMES = 8
_SAME_TIME = 1.0  # differences between clocks, or between start times, below this number of seconds are ignored
_HEADER = ("device", "held", "peak", "allocated", "cached", "outside", "time")
_HOST_HEADER = ("device", "held", "peak", "resident", "time")
_STATES = {
    "running": "started, but wrote no report (killed or still running)",
    "late": "still running",
    "died": "died",
    "missing": "no report",
    "absent": "not monitored",
}
_SIMILAR_TIMES, _SHORT_TIME = 1.1, 0.1
"""Durations are similar if the longest is at most ``_SIMILAR_TIMES`` times the median, or if the difference between the
longest and the shortest is less than ``_SHORT_TIME`` seconds."""


def ranks_tables(
    results: Sequence[RankResult], role: str = "rank", *, by: str = "rank", limit: int = DEFAULT_ROWS, code: str = ""
) -> list[Table]:
    """Return the tables for several processes.

    ``role`` is the term for a process, such as ``rank``. Rows are sorted by the column ``by`` in descending order;
    ``"rank"`` keeps the order of ``results``. ``limit`` is the maximum number of rows per table. ``code`` is the label
    of the code that was run, or empty.
    """
    rows = ranks.rank_rows(results)
    usage = _usage_table(results, rows, role, by, limit)
    tables = [replace(usage, title=f"{usage.title} ran: {code}") if code else usage]
    if spreads := ranks.spreads(rows):
        tables.append(_spread_table(spreads, role))
    if devices := ranks.device_usage(results):
        tables.append(_device_table(devices, role, limit))
    if comparison := ranks.compare_ranks(results):
        tables.append(_comparison_table(comparison, role))
    return [*tables, *_notes_tables(results, role, limit)]


def _usage_table(results: Sequence[RankResult], rows: Sequence[ranks.RankRow], role: str, by: str, limit: int) -> Table:
    hosts = list(dict.fromkeys(result.host for result in results if result.host))
    known_rows = [row for _, row in rows if row is not None]
    largest = max((row.peak or 0 for row in known_rows), default=0) or 1
    header = () if not known_rows else _HOST_HEADER if all(row.device == HOST for row in known_rows) else _HEADER
    if by != "rank":
        rows = sorted(rows, key=lambda rank_row: descending(getattr(rank_row[1], SORT_COLUMNS[by], None)))
    body = tuple(
        TableRow(
            result.name,
            (*([result.host] if len(hosts) > 1 else ()), *_cells(result, row, len(header))),
            1,
            bar=None if row is None else max(row.peak or 0, 0) / largest,
            note=_missing_reason(result) if row is None else row_outcome(row),
        )
        for result, row in rows[:limit]
    )
    title = many(len(results), role)
    where = f" on {len(hosts):,} hosts" if len(hosts) > 1 else f" on {hosts[0]}" if hosts else ""
    notes = (f"not shown: {many(len(rows) - limit, 'more row')}",) if len(rows) > limit else ()
    header = ("host", *header) if len(hosts) > 1 else header
    return Table(title + where, header, body, (*notes, *_rank_notes(results, rows, role)))


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
    parts = [] if result.note and result.state in {"missing", "died"} else [_STATES.get(result.state, result.state)]
    if result.note:
        parts.append(result.note)
    if result.highest is not None:
        parts.append(f"peak in the snapshot: {size(result.highest.requested)}")
    return ", ".join(parts)


def _spread_table(spreads: Sequence[ranks.Spread], role: str) -> Table:
    several = len({device for spread in spreads for _, device in (spread.lowest_owner, spread.highest_owner)}) > 1
    rows, similar_labels = [], []
    for spread in spreads:
        label = ranks.METRICS[spread.metric]
        if _is_similar(spread):
            similar_labels.append(label)
            continue
        values, is_time = (spread.lowest, spread.median, spread.highest), spread.metric == "seconds"
        lowest, middle, highest = (duration(value) if is_time else change_text(round(value)) for value in values)
        names = [", ".join(owner) if several else owner[0] for owner in (spread.lowest_owner, spread.highest_owner)]
        cells = (lowest, names[0], middle, highest, names[1])
        ratio = "1.0" if spread.median <= 0 else f"{spread.highest / spread.median:.1f}"
        rows.append(TableRow(label, cells, 1, note="" if ratio == "1.0" else f"highest: {ratio} times the median"))
    notes = (f"similar for all {role}s: {', '.join(similar_labels)}",) if similar_labels else ()
    return Table("spread", ("lowest", role, "median", "highest", role) if rows else (), tuple(rows), notes)


def _is_similar(spread: ranks.Spread) -> bool:
    difference = spread.highest - spread.lowest
    if spread.metric == "seconds":
        return difference < _SHORT_TIME or spread.highest <= spread.median * _SIMILAR_TIMES
    return difference < VISIBLE


def _device_table(devices: Sequence[ranks.DeviceUsage], role: str, limit: int) -> Table:
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


def _used(device: ranks.DeviceUsage) -> str:
    if device.used is None or device.total is None:
        return usage_text(device.used)
    return pair(device.used, device.total)


def _comparison_table(comparison: ranks.RankComparison, role: str) -> Table:
    title = "memory at the peak, by line of code"
    if not comparison.lines:
        return Table(f"{title}: the same in all {comparison.compared_count:,} recordings", (), ())
    outlier, typical = f"{role} {comparison.outlier}", f"{role} {comparison.typical}"
    body = [
        TableRow(
            label,
            (*(size(nbytes) if nbytes else "0" for nbytes in line_sizes), change_text(line_sizes[1] - line_sizes[0])),
            1,
        )
        for label, *line_sizes in comparison.lines[:_MAX_LINES]
    ]
    peaks = comparison.typical_peak, comparison.outlier_peak
    body.append(TableRow("peak (requested)", (*map(size, peaks), change_text(peaks[1] - peaks[0])), 0))
    omitted_count = len(comparison.lines) - _MAX_LINES
    notes = [f"not shown: {many(omitted_count, 'more line')} with different sizes"] if omitted_count > 0 else []
    names = f"{outlier} compared with {typical}"
    if comparison.compared_count > len(peaks):
        names = f"{outlier} deviates most; {typical} is the most typical"
        similar_count, other_count = comparison.similar_count - 1, comparison.compared_count - 1
        notes.append(f"{typical} has the same lines and sizes as {similar_count:,} of {other_count:,} other {role}s")
    return Table(f"{title}: {names}", (typical, outlier, "change"), tuple(body), tuple(notes))


def join_names(names: Sequence[str], role: str = "") -> str:
    """Join the first eight names, preceded by the role and followed by the number of remaining names."""
    start = f"{role}{'s' if len(names) > 1 else ''} " if role else ""
    suffix = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return f"{start}{', '.join(names[:_MAX_NAMES])}{suffix}"


def names_by_text(pairs: Iterable[tuple[str, str]], role: str = "") -> dict[str, str]:
    names = defaultdict(list)
    for text, name in pairs:
        names[text].append(name)
    return {text: join_names(names_of_text, role) for text, names_of_text in names.items()}


def _notes_tables(results: Iterable[RankResult], role: str, limit: int) -> list[Table]:
    reports = ((result.name, result.report) for result in results if result.report is not None)
    names = names_by_text(((note, name) for name, report in reports for note in _notes(report)), role)
    lines = [f"{joined}: {note}" for note, joined in names.items()]
    if len(lines) > limit:
        lines[limit:] = [f"not shown: {many(len(lines) - limit, 'more note')}"]
    return [Table(f"notes by {role}", (), (), tuple(lines))] if lines else []


def _notes(report: Report) -> Iterator[str]:
    yield from report.notes
    yield from filter(None, map(outside_sentence, report.libraries))
    if report.recording is not None and report.recording.error:
        yield f"no snapshot: {report.recording.error}"
    if report.profile is not None:
        yield from report.profile.sentences()


def _rank_notes(results: Sequence[RankResult], rows: Sequence[ranks.RankRow], role: str) -> Iterator[str]:
    lost_names = [result.name for result in results if result.report is None]
    if lost_names and not (len(lost_names) == len(results) and all(result.peaks for result in results)):
        yield f"no report from {join_names(lost_names, role)}"
    median, slow = ranks.slow_ranks(results)
    if slow:
        slowest = join_names([f"{name} ({duration(seconds)})" for name, seconds in slow.items()], role)
        yield f"much slower than the median of {duration(median)}: {slowest}"
    origins = [(result.name, result.origin) for result in results if result.origin is not None]
    versions = names_by_text(((origin.version, name) for name, origin in origins if origin.version), role)
    if len(versions) > 1:
        parts = [f"{version} on {names}" for version, names in versions.items()]
        yield f"different versions of ipygpumem: {'; '.join(parts)}"
    started_ranks = [(name, origin) for name, origin in origins if origin.began]
    yield from _clock_notes([origin for _, origin in started_ranks])
    yield from _late_start_notes(started_ranks, role)
    if any(row is not None and row.device == HOST for _, row in rows):
        yield HOST_NOTE
    yield from dict.fromkeys(result.note for result in results if result.report is not None and result.note)


def _clock_notes(origins: Iterable[RankInfo]) -> Iterator[str]:
    clocks = {info.host: abs(info.clock) for info in origins if info.clock and abs(info.clock) >= _SAME_TIME}
    if clocks:
        hosts, seconds = join_names(list(clocks)), duration(max(clocks.values()))
        yield (
            "start times refer to the clock of the shared file system, from which the clocks of these hosts differ "
            f"by up to {seconds}: {hosts}"
        )


def _late_start_notes(origins: Sequence[tuple[str, RankInfo]], role: str) -> Iterator[str]:
    first = min((info.start for _, info in origins), default=0.0)
    delays = sorted(((info.start - first, name) for name, info in origins), reverse=True)
    late = [f"{name} by {duration(seconds)}" for seconds, name in delays if seconds >= _SAME_TIME]
    if late:
        several_clocks = len({info.host for _, info in origins}) > 1 and all(info.clock is None for _, info in origins)
        condition = ", if the clocks of the hosts agree" if several_clocks else ""
        yield f"started later than the earliest {role}{condition}: {join_names(late, role)}"
