"""Reports of several processes side by side: workers of Dask or Ray, a pool, ranks that sent theirs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.report import Report
from ipygpumem.display.html import html_tables
from ipygpumem.display.table import text_tables
from ipygpumem.features.history import export
from ipygpumem.features.history.model import Entry, moved_entries
from ipygpumem.features.history.table import merged_tables

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["Merged", "Spread", "merge_reports"]


@dataclass(frozen=True, slots=True)
class Spread:
    """How far a figure lies apart: the highest and the lowest, in bytes, each with (source, device)."""

    highest: int
    highest_of: tuple[str, str]
    lowest: int
    lowest_of: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Merged:
    """Reports by source. Peaks are never added: they were not at one time, and two sources may be on one card.

    Attributes:
        reports: By source; None for one that sent nothing.
    """

    reports: dict[str, Report | None]

    @property
    def lost(self) -> tuple[str, ...]:
        """Sources that sent nothing."""
        return tuple(name for name, report in self.reports.items() if report is None)

    @property
    def rows(self) -> list[tuple[str, Entry]]:
        """A row for each source and device that moved."""
        sent = ((name, report) for name, report in self.reports.items() if report is not None)
        return [(name, row) for name, report in sent for row in moved_entries([report])]

    def spread(self, figure: str = "peak") -> Spread | None:
        """The highest and the lowest of ``held``, ``peak`` or ``outside``; None where nobody knows it.

        Raises:
            OptionError: There is no such figure.
        """
        if figure not in {"held", "peak", "outside"}:
            raise OptionError(f"{figure!r} is no figure: held, peak or outside")
        known = [(getattr(row, figure), (name, row.device)) for name, row in self.rows]
        known = [one for one in known if one[0] is not None]
        if not known:
            return None
        (highest, highest_of), (lowest, lowest_of) = max(known), min(known)
        return Spread(highest, highest_of, lowest, lowest_of)

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame, with a first column ``source``.

        Raises:
            OptionError: pandas is not installed.
        """
        frame = export.frame(row for _, row in self.rows)
        frame.insert(0, "source", [name for name, _ in self.rows])
        return frame

    def __str__(self) -> str:
        return text_tables(merged_tables(self.rows, self.lost))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 (IPython's signature)
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return html_tables(merged_tables(self.rows, self.lost))


def merge_reports(reports: Mapping[str, Report | None] | Iterable[Report | None]) -> Merged:
    """Put reports of several processes side by side.

    Args:
        reports: By a name of each source (a worker, a rank); without names they are numbered from 0. None stands for a
            source that was lost: the others are told all the same.

    Raises:
        OptionError: Something else than reports, or two sources of one name.
    """
    if isinstance(reports, Report):
        raise OptionError("merge_reports takes several reports, by name or in a list")
    found: dict[str, Report | None] = {}
    for key, report in reports.items() if isinstance(reports, Mapping) else enumerate(reports):
        name = str(key)
        if name in found:
            raise OptionError(f"two sources are called {name}: give each another name")
        found[name] = report
        if report is not None and not isinstance(report, Report):
            raise OptionError(f"{name} is a {type(report).__name__}, not a report")
    return Merged(found)
