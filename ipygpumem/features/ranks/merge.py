"""Reports of several processes side by side: workers of Dask or Ray, a process pool, ranks that sent their reports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.report import Report
from ipygpumem.core.tables import Table, TableRow, html_tables, text_tables
from ipygpumem.core.units import VISIBLE
from ipygpumem.features.history import export
from ipygpumem.features.history.model import ReportRow, changed_rows
from ipygpumem.features.history.table import row_figures, row_outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Merged", "Spread", "merge_reports"]


@dataclass(frozen=True, slots=True)
class Spread:
    """The highest and the lowest value of a figure, in bytes, each with its (source, device)."""

    highest: int
    highest_of: tuple[str, str]
    lowest: int
    lowest_of: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Merged:
    """Reports by source. Peaks are never added up: they occur at different times, and sources may share a device.

    Attributes:
        reports: By source; None for a source without a report.
    """

    reports: dict[str, Report | None]

    @property
    def lost(self) -> tuple[str, ...]:
        """Sources without a report."""
        return tuple(name for name, report in self.reports.items() if report is None)

    @property
    def rows(self) -> list[tuple[str, ReportRow]]:
        """A row for each source and each device that it changed."""
        reported = ((name, report) for name, report in self.reports.items() if report is not None)
        return [(name, row) for name, report in reported for row in changed_rows([report])]

    def spread(self, figure: str = "peak") -> Spread | None:
        """The highest and the lowest ``held``, ``peak`` or ``outside``; None if it is unknown everywhere.

        Raises:
            OptionError: There is no such figure.
        """
        if figure not in {"held", "peak", "outside"}:
            raise OptionError(f"unknown figure {figure!r}: expected held, peak or outside")
        values = [(getattr(row, figure), (name, row.device)) for name, row in self.rows]
        values = [value for value in values if value[0] is not None]
        if not values:
            return None
        (highest, highest_of), (lowest, lowest_of) = max(values), min(values)
        return Spread(highest, highest_of, lowest, lowest_of)

    def to_pandas(self) -> Any:
        """The rows as a pandas DataFrame, with ``source`` as the first column.

        Raises:
            OptionError: pandas is not installed.
        """
        frame = export.data_frame(row for _, row in self.rows)
        frame.insert(0, "source", [name for name, _ in self.rows])
        return frame

    def __str__(self) -> str:
        return text_tables(_tables(self.rows, self.lost))

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002 (IPython's signature)
        printer.text(str(self))

    def _repr_html_(self) -> str:
        return html_tables(_tables(self.rows, self.lost))


def merge_reports(reports: Mapping[str, Report | None] | Iterable[Report | None]) -> Merged:
    """Put the reports of several processes side by side.

    Args:
        reports: Reports by the name of their source (a worker, a rank); without names they are numbered from 0. None
            stands for a source that sent no report.

    Raises:
        OptionError: A value is not a report, or two sources have the same name.
    """
    if isinstance(reports, Report):
        raise OptionError("merge_reports takes several reports, in a dictionary or a list")
    by_source: dict[str, Report | None] = {}
    for key, report in reports.items() if isinstance(reports, Mapping) else enumerate(reports):
        name = str(key)
        if name in by_source:
            raise OptionError(f"two sources are named {name}: give each source its own name")
        by_source[name] = report
        if report is not None and not isinstance(report, Report):
            raise OptionError(f"{name} is a {type(report).__name__}, not a report")
    return Merged(by_source)


def _tables(rows: Sequence[tuple[str, ReportRow]], lost: Sequence[str]) -> list[Table]:
    """A row for each source and device, with the highest and the lowest peak marked."""
    peaks = [row.peak for _, row in rows if row.peak is not None]
    largest = max(peaks, default=0) or 1
    body = tuple(
        TableRow(
            source,
            (row.device, *row_figures(row)),
            1,
            bar=max(row.peak or 0, 0) / largest,
            remark=", ".join(remark for remark in (_peak_rank(row, peaks), row_outcome(row)) if remark),
        )
        for source, row in rows
    )
    sources = len({source for source, _ in rows})
    remarks = (f"no report from {', '.join(lost)}",) if lost else ()
    title = f"{sources:,} source{'' if sources == 1 else 's'}"
    return [Table(title, ("device", "held", "peak", "outside", "time") if rows else (), body, remarks)]


def _peak_rank(row: ReportRow, peaks: Sequence[int]) -> str:
    if row.peak is None or max(peaks) - min(peaks) < VISIBLE:
        return ""
    return "highest peak" if row.peak == max(peaks) else "lowest peak" if row.peak == min(peaks) else ""
