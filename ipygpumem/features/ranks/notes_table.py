"""What else several processes tell beside their figures: notes, files that they wrote, libraries outside PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.display.table import Table
from ipygpumem.features.outside.table import outside_sentences

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ipygpumem.core.report import Report
    from ipygpumem.features.ranks.model import RankResult

__all__ = ["named", "notes_tables"]

_NAMED = 8


def notes_tables(members: Iterable[RankResult], what: str, most: int) -> list[Table]:
    """A table of sentences, each with who says it; none where nobody has more to say than figures.

    Args:
        members: Those without a report are passed over.
        what: What one of them is called: ``rank``, ``engine``.
        most: Sentences that are shown; how many there are further is told.
    """
    said: dict[str, list[str]] = {}
    for member in members:
        for sentence in () if member.report is None else _sentences(member.report):
            said.setdefault(sentence, []).append(member.name)
    lines = [f"{what} {named(names)}: {sentence}" for sentence, names in said.items()]
    if len(lines) > most:
        lines = [*lines[:most], f"{len(lines) - most:,} further sentences are not shown"]
    return [Table(f"what each {what} says besides", (), (), tuple(lines))] if lines else []


def _sentences(report: Report) -> Iterator[str]:
    yield from report.notes
    yield from outside_sentences(report)
    if report.recording is not None and report.recording.error:
        yield f"no snapshot: {report.recording.error}"
    if report.profile is not None:
        yield from report.profile.sentences()


def named(names: Sequence[str]) -> str:
    """Names in a row; of many how many there are further."""
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return f"{', '.join(names[:_NAMED])}{more}"
