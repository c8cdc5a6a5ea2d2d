"""Lists of reports that can be converted to data frames and written to files."""

from __future__ import annotations

import csv
import dataclasses
import io
import operator
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import check_argument
from ipygpumem.core.files import check_path, import_library, write_file
from ipygpumem.core.report import Report
from ipygpumem.core.text import csv_text
from ipygpumem.core.units import many
from ipygpumem.features.history.compact_list import CompactList
from ipygpumem.features.history.model import ReportRow, previous_run_note, report_rows
from ipygpumem.measurement.plan import Collector, CompletedMeasurement, with_notes
from ipygpumem.measurement.runtime import current

if TYPE_CHECKING:
    from ipygpumem.features.history.load import ReportLog

MAX_REPORTS = 10_000  # maximum number of reports that a session keeps (about 1 MB); logs are not limited
_MAX_DETAILED = 100
"""Maximum number of reports whose sections on lines and modules are kept, which can be large."""
_MAX_REPORTS_PER_RUN = 50
"""Maximum number of reports kept for each run of a cell, because code in a cell can measure many statements."""

_Path = str | os.PathLike[str]

_TYPES = {field.name: str(field.type).removesuffix(" | None") for field in dataclasses.fields(ReportRow)}
COLUMNS = tuple(_TYPES)  # columns of all tables: the fields of `ReportRow`
_PANDAS_TYPES = {"int": "Int64", "float": "float64", "bool": "boolean", "str": "object", "Trust": "object"}


class Reports(Sequence["Report"]):
    """A sequence of reports: ``reports[-1]``, ``reports.cell(7)``, ``reports.cell("a1b")``.

    A session keeps its newest 10,000 reports. `Report.lines` and `Report.modules` are kept only in the newest 100.
    Older reports are compressed in memory, so that each access to one of them may return another, equal object.

    Attributes:
        dropped: Number of older reports that have been discarded.
        faults: Messages about skipped reports if the list was loaded from a file.
    """

    def __init__(self, reports: Iterable[Report] = (), *, limit: int | None = MAX_REPORTS) -> None:
        self._reports: CompactList[Report] = CompactList(_MAX_DETAILED, compresses=limit is not None)
        self._runs: dict[str, tuple[list[Report], list[Report]]] = {}
        """Reports of each cell's current run and of its previous run, by cell ID."""
        self._log: ReportLog | None = None
        self._limit = limit
        self.dropped = 0
        self.faults: tuple[str, ...] = ()
        for report in reports:
            self.append(report)

    def append(self, report: Report) -> None:
        """Append a report, and write it to the log if there is one. If the list is full, discard the oldest report."""
        if not isinstance(report, Report):  # calling check_argument for every report would take longer
            check_argument("report", report, Report, "a Report")
        reports = self._reports
        if self._limit is not None:
            self._remove_details()
        reports.append(report)
        if report.cell_id is not None:
            current, _ = self._runs[report.cell_id] = self._runs_of(report)
            if len(current) < _MAX_REPORTS_PER_RUN:
                current.append(report)
        if self._limit is not None and len(reports) > self._limit:
            self._remove_from_runs(reports.popleft())
            self.dropped += 1
        if self._log is not None:
            self._log.write(report)

    def _remove_details(self) -> None:
        if len(self._reports) < _MAX_DETAILED:
            return
        report = self._reports[-_MAX_DETAILED]
        if report.lines or report.modules:
            self._remove_from_runs(report)
            self._reports[-_MAX_DETAILED] = dataclasses.replace(report, lines=(), modules=())

    def _runs_of(self, report: Report) -> tuple[list[Report], list[Report]]:
        current, previous = self._runs.get(report.cell_id or "", ([], []))
        return ([], current) if current and current[-1].cell != report.cell else (current, previous)

    def _remove_from_runs(self, report: Report) -> None:
        for reports in self._runs.get(report.cell_id or "", ()):
            reports[:] = [stored for stored in reports if stored != report]

    def earlier(self, report: Report) -> Report | None:
        """Return the report of the same measurement in the cell's previous run, or None if there is no such report.

        This method must be called before `append`, because reports are matched by their position in the run.
        """
        current, previous = self._runs_of(report)
        return previous[len(current)] if len(current) < len(previous) else None

    @property
    def log(self) -> str | None:
        """Path of the file to which each new report is appended as a line of JSON; None if there is no log.

        Assigning a path raises `OptionError` if the file is not writable, or is not empty and does not start with a
        report.
        """
        return None if self._log is None else str(self._log.path)

    @log.setter
    def log(self, path: _Path | None) -> None:
        if path is not None:
            from ipygpumem.features.history.load import ReportLog

            self._log = ReportLog(path)
        else:
            self._log = None

    def __len__(self) -> int:
        return len(self._reports)

    def __iter__(self) -> Iterator[Report]:
        return iter(self._reports)

    def __reversed__(self) -> Iterator[Report]:
        return reversed(self._reports)

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return [self._reports[position] for position in range(*index.indices(len(self)))]
        return self._reports[operator.index(index)]

    def cell(self, key: int | str) -> Report:
        """Return the newest report of a cell.

        Args:
            key: Number in ``In [n]``, or cell ID.

        Raises:
            KeyError: There is no report of this cell.
        """
        for report in reversed(self._reports):
            if key is not None and key in (report.cell, report.cell_id):
                return report
        raise KeyError(f"no report for cell {key!r}")

    def rows(self) -> list[ReportRow]:
        """Return one row per report and device in use, or per report for the host if no device is in use."""
        return [row for report in self for row in report_rows(report)]

    def to_pandas(self) -> Any:
        """Return a pandas DataFrame with one row per report and device.

        Sizes are in bytes and have dtype Int64. Unknown values are NA. ``time`` contains timestamps in UTC.

        Raises:
            OptionError: pandas is not installed.
        """
        return data_frame(self.rows())

    def to_csv(self, path: _Path | None = None) -> str | None:
        """Write one row per report and device to a CSV file, or return the CSV text if ``path`` is None.

        ``time`` is in seconds since the Unix epoch. Unknown values are empty.

        Raises:
            OptionError: The file cannot be written.
        """
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        rows = ([getattr(row, name) for name in COLUMNS] for row in self.rows())
        writer.writerows([csv_text(value) if isinstance(value, str) else value for value in row] for row in rows)
        return _write_or_return(text.getvalue(), path, "reports.csv")

    def to_json(self, path: _Path | None = None) -> str | None:
        """Write all reports to a JSON file for `load_reports`, or return the JSON text if ``path`` is None.

        Raises:
            OptionError: The file cannot be written.
        """
        items = ",".join(f"\n{report.to_json()}" for report in self)
        return _write_or_return(f"[{items}\n]\n", path, "reports.json")

    def to_parquet(self, path: _Path) -> None:
        """Write one row per report and device to a Parquet file. ``time`` is in seconds since the Unix epoch.

        Raises:
            OptionError: The file cannot be written or pyarrow is not installed.
        """
        arrow, parquet = import_library("pyarrow", "Parquet files"), import_library("pyarrow.parquet", "Parquet files")
        target = check_path(path, "table", "reports.parquet")
        types = {"int": arrow.int64(), "float": arrow.float64(), "bool": arrow.bool_()}
        schema = arrow.schema([(name, types.get(_TYPES[name], arrow.string())) for name in COLUMNS])
        data = io.BytesIO()
        parquet.write_table(arrow.table(_columns(self.rows()), schema=schema), data)
        write_file(target, data.getvalue())

    def __repr__(self) -> str:
        return f"<{many(len(self), 'report')}, newest last: {self[-3:]}>"


def data_frame(rows: Iterable[ReportRow]) -> Any:
    pandas = import_library("pandas", "data frames")
    columns = {name: pandas.Series(data, dtype=_PANDAS_TYPES[_TYPES[name]]) for name, data in _columns(rows).items()}
    columns["time"] = pandas.to_datetime(columns["time"], unit="s", utc=True)
    return pandas.DataFrame(columns)


def _columns(rows: Iterable[ReportRow]) -> dict[str, list[Any]]:
    rows = list(rows)
    return {name: [getattr(row, name) for row in rows] for name in COLUMNS}


def _write_or_return(text: str, path: _Path | None, example: str) -> str | None:
    if path is None:
        return text
    write_file(check_path(path, "table", example), text.encode())
    return None


def load_reports(path: _Path, *, strict: bool = True) -> Reports:
    """Load the reports from a log (see ``GPUMem.log``) or from a file written by `Reports.to_json`.

    Args:
        path: Path of the file.
        strict: Whether to raise an error for an invalid report, such as a line that is truncated because of a crash. If
            false, invalid reports are skipped, and `Reports.faults` contains a message about each.

    Raises:
        ReportError: The file cannot be read, or ``strict`` is true and a report is invalid. The message contains the
            position of the report.
    """
    faults: list[str] = []
    from ipygpumem.features.history.load import read_reports  # on first use, as below: to save memory

    reports = Reports(read_reports(path, None if strict else faults), limit=None)
    reports.faults = tuple(faults)
    return reports


class HistoryCollector(Collector):
    """Collector that adds each report to the session, with a note on the previous run (see `previous_run_note`)."""

    section = "history"

    def __init__(self, threshold: Callable[[], int], *, always: bool = False) -> None:
        self._reports = session_reports()
        self._threshold = threshold
        self._always = always

    def collect(self, report: Report, outcome: CompletedMeasurement) -> Report:  # noqa: ARG002 (needs no recording)
        previous = self._reports.earlier(report)
        if previous is not None:
            note = previous_run_note(report, previous, self._threshold(), always=self._always)
            report = report if note is None else with_notes(report, note)
        self._reports.append(report)
        return report


def session_reports() -> Reports:
    return current().state(Reports)
