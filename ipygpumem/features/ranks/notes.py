"""Notes about several processes: missing reports, slow ranks, versions, clocks, and the notes in their reports."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ipygpumem.core.device_names import HOST
from ipygpumem.core.tables import Table
from ipygpumem.core.units import duration, many
from ipygpumem.features.history.table import HOST_NOTE
from ipygpumem.features.outside.table import outside_sentence
from ipygpumem.features.ranks.skew import slow_ranks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ipygpumem.core.report import Report
    from ipygpumem.features.ranks.model import RankInfo, RankResult
    from ipygpumem.features.ranks.skew import RankRow

_MAX_NAMES = 8
_SAME_TIME = 1.0
"""Differences of clocks and start times below this number of seconds are ignored."""


def join_names(names: Sequence[str]) -> str:
    """Join the first eight names with commas, and append the number of remaining names."""
    more = f" and {len(names) - _MAX_NAMES:,} more" if len(names) > _MAX_NAMES else ""
    return f"{', '.join(names[:_MAX_NAMES])}{more}"


def names_by_text(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the names that belong to each text, joined by `join_names`."""
    names = defaultdict(list)
    for text, name in pairs:
        names[text].append(name)
    return {text: join_names(names_of_text) for text, names_of_text in names.items()}


def notes_tables(results: Iterable[RankResult], role: str, limit: int) -> list[Table]:
    """Return a table of the reports' notes with the ranks that they apply to, or no table if there are no notes."""
    reports = ((result.name, result.report) for result in results if result.report is not None)
    names = names_by_text((note, name) for name, report in reports for note in _notes(report))
    lines = [f"{role} {joined}: {note}" for note, joined in names.items()]
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


def rank_notes(results: Sequence[RankResult], rows: Sequence[RankRow], role: str) -> Iterator[str]:
    """Yield the notes to display below the table of ranks."""
    lost = [result.name for result in results if result.report is None]
    if lost and not (len(lost) == len(results) and all(result.peaks for result in results)):
        yield f"no report from {role} {join_names(lost)}"
    median, slow = slow_ranks(results)
    if slow:
        slowest = join_names([f"{name} ({duration(seconds)})" for name, seconds in slow.items()])
        yield f"much slower than the median of {duration(median)}: {role} {slowest}"
    origins = [(result.name, result.origin) for result in results if result.origin is not None]
    versions = names_by_text((origin.version, name) for name, origin in origins if origin.version)
    if len(versions) > 1:
        parts = [f"{version} on {role} {names}" for version, names in versions.items()]
        yield f"different versions of ipygpumem: {'; '.join(parts)}"
    started = [(name, origin) for name, origin in origins if origin.began]
    yield from _clock_notes([origin for _, origin in started])
    yield from _late_start_notes(started, role)
    if any(row is not None and row.device == HOST for _, row in rows):
        yield HOST_NOTE
    yield from dict.fromkeys(result.note for result in results if result.report is not None and result.note)


def _clock_notes(origins: Iterable[RankInfo]) -> Iterator[str]:
    clocks = {info.host: abs(info.clock) for info in origins if info.clock and abs(info.clock) >= _SAME_TIME}
    if clocks:
        hosts, seconds = join_names(list(clocks)), duration(max(clocks.values()))
        yield f"clocks differ by up to {seconds} ({hosts}), so start times are those of the shared directory's clock"


def _late_start_notes(origins: Sequence[tuple[str, RankInfo]], role: str) -> Iterator[str]:
    first = min((info.start for _, info in origins), default=0.0)
    delays = sorted(((info.start - first, name) for name, info in origins), reverse=True)
    late = [f"{name} by {duration(seconds)}" for seconds, name in delays if seconds >= _SAME_TIME]
    if late:
        several_clocks = len({info.host for _, info in origins}) > 1 and all(info.clock is None for _, info in origins)
        condition = ", if the clocks of the hosts agree" if several_clocks else ""
        yield f"started after the first {role}{condition}: {role} {join_names(late)}"
