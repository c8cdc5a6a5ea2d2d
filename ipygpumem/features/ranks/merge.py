"""Merge the reports of several processes, such as Dask or Ray workers, the workers of a process pool, or ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ipygpumem.core.errors import OptionError, check_argument
from ipygpumem.core.report import Report
from ipygpumem.core.tables import Table, TableRepr
from ipygpumem.features.history.model import ReportRow, changed_rows
from ipygpumem.features.history.reports import data_frame
from ipygpumem.features.ranks.comparison import Spread, spread_of
from ipygpumem.features.ranks.model import RankResult
from ipygpumem.features.ranks.table import ranks_tables


@dataclass(frozen=True, slots=True)
class MergedReports(TableRepr):
    """The reports of several sources, such as workers or ranks.

    Peaks are not added up because they occur at different times, and because sources may share a device.

    Attributes:
        reports: Reports by the name of their source; None for a source without a report.
    """

    reports: dict[str, Report | None]

    @property
    def lost(self) -> tuple[str, ...]:
        """Names of the sources without a report."""
        return tuple(name for name, report in self.reports.items() if report is None)

    @property
    def rows(self) -> list[tuple[str, ReportRow]]:
        """Pairs (source, row): one for each device whose usage changed, or one for a source without changes."""
        known_reports = ((name, report) for name, report in self.reports.items() if report is not None)
        return [(name, row) for name, report in known_reports for row in changed_rows([report])]

    def spread(self, metric: str = "peak") -> Spread | None:
        """Return the spread of a value over all sources, or None if the value is unknown for all sources.

        Args:
            metric: ``"held"``, ``"peak"`` or ``"outside"``.

        Raises:
            OptionError: ``metric`` is invalid.
        """
        if metric not in {"held", "peak", "outside"}:
            raise OptionError(f"unknown metric {metric!r}: expected 'held', 'peak' or 'outside'")
        return spread_of(metric, self.rows)

    def to_pandas(self) -> Any:
        """Convert the rows to a pandas DataFrame with ``source`` as the first column.

        Raises:
            OptionError: pandas is not installed.
        """
        frame = data_frame(row for _, row in self.rows)
        frame.insert(0, "source", [name for name, _ in self.rows])
        return frame

    def tables(self) -> list[Table]:
        """Return tables of the sources, the spread of each value, the devices, and the source that deviates most."""
        results = [
            RankResult(name, "missing" if report is None else "done", report=report)
            for name, report in self.reports.items()
        ]
        return ranks_tables(results, "source")


def merge_reports(reports: Mapping[str, Report | None] | Iterable[Report | None]) -> MergedReports:
    """Merge the reports from several processes.

    Args:
        reports: Reports by the name of their source, such as a worker or a rank, or an iterable of reports, whose
            sources are numbered from 0. None represents a source that sent no report.

    Raises:
        OptionError: A value is neither a report nor None, or two sources have the same name.
    """
    if isinstance(reports, Report):
        raise OptionError("merge_reports expects several reports in a dictionary or a list, not a single report")
    check_argument("reports", reports, Iterable, "a dictionary or a list of reports")
    by_source: dict[str, Report | None] = {}
    for key, report in reports.items() if isinstance(reports, Mapping) else enumerate(reports):
        name = str(key)
        if name in by_source:
            raise OptionError(f"two sources are named {name}: source names must be unique")
        by_source[name] = report
        if report is not None and not isinstance(report, Report):
            raise OptionError(f"{name}: expected a report or None, but got {type(report).__name__}")
    return MergedReports(by_source)
