"""Remarks on several processes: missing reports, slow ranks, versions, clocks, and the notes of their reports."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.device_names import HOST
from ipygpumem.core.tables import Table
from ipygpumem.core.units import duration
from ipygpumem.features.outside.table import outside_sentences
from ipygpumem.features.ranks.skew import slow_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ipygpumem.core.report import Report
    from ipygpumem.features.history.model import ReportRow
    from ipygpumem.features.ranks.model import RankInfo, RankResult

__all__ = ["join_names", "notes_tables", "rank_remarks"]

_MAX_NAMES = 8
_MAX_CLOCKS = 4
_FOLDER_CLOCK = "start times are by the folder's clock"
_SAME_TIME = 1.0
"""Seconds by which clocks and start times may differ without a remark."""


def join_names(names: Sequence[str]) -> str:
    """Names separated by commas; of many names, the first and how many more there are."""
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"


def notes_tables(results: Iterable[RankResult], role: str, limit: int) -> list[Table]:
    """A table of the notes in the reports, each with the ranks that it applies to; empty without notes."""
    names_by_note: dict[str, list[str]] = {}
    for result in results:
        for note in () if result.report is None else _notes(result.report):
            names_by_note.setdefault(note, []).append(result.name)
    lines = [f"{role} {join_names(names)}: {note}" for note, names in names_by_note.items()]
    if len(lines) > limit:
        lines = [*lines[:limit], f"{len(lines) - limit:,} more notes not shown"]
    return [Table(f"notes by {role}", (), (), tuple(lines))] if lines else []


def _notes(report: Report) -> Iterator[str]:
    yield from report.notes
    yield from outside_sentences(report)
    if report.recording is not None and report.recording.error:
        yield f"no snapshot: {report.recording.error}"
    if report.profile is not None:
        yield from report.profile.sentences()


def rank_remarks(
    results: Sequence[RankResult], rows: Sequence[tuple[RankResult, ReportRow | None]], role: str
) -> Iterator[str]:
    """The remarks below the table of figures."""
    lost = [result.name for result in results if result.report is None]
    if lost and not (len(lost) == len(results) and all(result.peaks for result in results)):
        yield f"no report from {role} {join_names(lost)}"
    slow = slow_ranks(results)
    if slow:
        worst = [f"{result.name} ({duration(result.report.seconds)})" for result, _ in slow if result.report]
        yield f"much slower than the median of {duration(slow[0][1])}: {role} {', '.join(worst[:_MAX_NAMES])}"
    yield from _version_remarks(results, role)
    yield from _clock_remarks(results, role)
    if any(row is not None and row.device == HOST for _, row in rows):
        yield "without a GPU: held and peak are the process's resident memory"
    yield from dict.fromkeys(result.note for result in results if result.report is not None and result.note)


def _version_remarks(results: Sequence[RankResult], role: str) -> Iterator[str]:
    versions: dict[str, list[str]] = {}
    for result in results:
        if result.origin is not None and result.origin.version:
            versions.setdefault(result.origin.version, []).append(result.name)
    if len(versions) > 1:
        parts = [f"{version} on {role} {join_names(names)}" for version, names in versions.items()]
        yield f"different versions of ipygpumem: {'; '.join(parts)}"


def _clock_remarks(results: Sequence[RankResult], role: str) -> Iterator[str]:
    """Machines whose clock differs from the shared folder's, and ranks that started late by the folder's clock."""
    origins = [(result.name, result.origin) for result in results if result.origin is not None and result.origin.began]
    clocks = {info.host: info.clock for _, info in origins if info.clock is not None and abs(info.clock) >= _SAME_TIME}
    if len(clocks) > _MAX_CLOCKS:
        host = max(clocks, key=lambda host: abs(clocks[host]))
        largest = f"{duration(abs(clocks[host]))} ({host})"
        yield f"the clocks of {len(clocks):,} hosts differ from the shared folder's by up to {largest}: {_FOLDER_CLOCK}"
    else:
        for host, clock in clocks.items():
            offset = f"{duration(abs(clock))} {'behind' if clock > 0 else 'ahead of'}"
            yield f"the clock of {host} is {offset} the shared folder's: {_FOLDER_CLOCK}"
    yield from _late_remarks(origins, role)


def _late_remarks(origins: Sequence[tuple[str, RankInfo]], role: str) -> Iterator[str]:
    if not origins:
        return
    first = min(info.start for _, info in origins)
    late = sorted(
        ((info.start - first, name) for name, info in origins if info.start - first >= _SAME_TIME), reverse=True
    )
    if late:
        several_clocks = len({info.host for _, info in origins}) > 1 and all(info.clock is None for _, info in origins)
        doubt = ", if the clocks of the hosts agree" if several_clocks else ""
        delays = ", ".join(f"{name} by {duration(seconds)}" for seconds, name in late[:_MAX_NAMES])
        yield f"started after the first{doubt}: {role} {delays}"
