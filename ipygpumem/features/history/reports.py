"""The reports of a session, in the order in which they were settled."""

from __future__ import annotations

import io
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice
from typing import IO, TYPE_CHECKING, Any, overload

from ipygpumem.core.errors import OptionError
from ipygpumem.core.files import check_path, replacing
from ipygpumem.features.history import export
from ipygpumem.features.history.load import read_reports
from ipygpumem.features.history.log import Log
from ipygpumem.features.history.model import entries
from ipygpumem.features.history.runs import Runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ipygpumem.core.report import Report
    from ipygpumem.features.history.model import Entry

__all__ = ["Reports", "load_reports"]

MOST = 10_000
"""Reports that a session keeps: about 30 MB. A log has them all."""
_DETAILED = 100
"""The newest reports keep their lines and modules, which may be a thousand times as large as the rest."""

_Path = str | os.PathLike[str]


class Reports(Sequence["Report"]):
    """A list of reports that also finds them by cell: ``reports[-1]``, ``reports.cell(7)``, ``reports.cell("a1b")``.

    A session keeps its newest 10,000, and the lines and modules of its newest 100.

    Args:
        reports: What is in it from the start.
        most: How many are kept; None for all.

    Attributes:
        dropped: Reports that were older, and are no longer here.
        faults: Of a file that was loaded: a sentence for each line that was passed over.
    """

    def __init__(self, reports: Iterable[Report] = (), *, most: int | None = MOST) -> None:
        self._reports: deque[Report] = deque()
        self._runs = Runs()
        self._log: Log | None = None
        self._most = most
        self.dropped = 0
        self.faults: tuple[str, ...] = ()
        for report in reports:
            self.append(report)

    def append(self, report: Report) -> None:
        """Add the newest."""
        reports = self._reports
        reports.append(report)
        self._runs.add(report)
        if self._most is not None:
            if len(reports) > self._most:
                self._runs.forget(reports.popleft())
                self.dropped += 1
            if len(reports) > _DETAILED:
                self._lighten(len(reports) - _DETAILED - 1)
        if self._log is not None:
            self._log.write(report)

    def _lighten(self, place: int) -> None:
        report = self._reports[place]
        if report.lines or report.modules:
            self._runs.forget(report)
            self._reports[place] = replace(report, lines=(), modules=())

    def earlier(self, report: Report) -> Report | None:
        """What the same cell gave when it ran before, of a report that is not in here yet; None where it did not."""
        return self._runs.earlier(report)

    @property
    def log(self) -> str | None:
        """The file to which each report is added as it settles, one line of JSON each; None for no file.

        Raises:
            OptionError: On setting it: nothing can be written there, or the file holds something else.
        """
        return None if self._log is None else str(self._log.path)

    @log.setter
    def log(self, path: _Path | None) -> None:
        self._log = None if path is None else Log(path)

    def __len__(self) -> int:
        return len(self._reports)

    def __iter__(self) -> Iterator[Report]:
        return iter(list(self._reports))

    @overload
    def __getitem__(self, index: int) -> Report: ...
    @overload
    def __getitem__(self, index: slice) -> list[Report]: ...
    def __getitem__(self, index: int | slice) -> Report | list[Report]:
        return list(self._reports)[index] if isinstance(index, slice) else self._reports[index]

    def cell(self, key: int | str) -> Report:
        """The newest report of a cell, by its In number or its front end's cell id.

        Raises:
            KeyError: That cell was not measured.
        """
        for report in reversed(self._reports):
            if key is not None and key in (report.cell, report.cell_id):
                return report
        raise KeyError(f"no report of cell {key!r}")

    def rows(self) -> list[Entry]:
        """A row for each report and device."""
        return [row for report in self for row in entries(report)]

    def to_pandas(self) -> Any:
        """A pandas DataFrame, a row for each report and device: bytes as Int64, what is unknown as NA.

        Raises:
            OptionError: pandas is not installed.
        """
        return export.frame(self.rows())

    def to_csv(self, path: _Path | None = None) -> str | None:
        """The rows of `to_pandas` as CSV: into a file, or as text.

        Raises:
            OptionError: Nothing can be written there.
        """
        text = io.StringIO()
        export.write_csv(self.rows(), text)
        if path is None:
            return text.getvalue()
        _write(path, "reports.csv", lambda file: file.write(text.getvalue().encode()))
        return None

    def to_json(self, path: _Path | None = None) -> str | None:
        """Everything, as a JSON list of `Report.to_dict`: into a file, which `load_reports` reads, or as text.

        Raises:
            OptionError: Nothing can be written there.
        """
        if path is not None:
            _write(path, "reports.json", lambda file: file.writelines(self._json()))
            return None
        return b"".join(self._json()).decode()

    def _json(self) -> Iterator[bytes]:
        yield b"["
        reports = iter(self)
        for report in islice(reports, 1):
            yield f"\n{report.to_json()}".encode()
        for report in reports:
            yield f",\n{report.to_json()}".encode()
        yield b"\n]\n"

    def to_parquet(self, path: _Path) -> None:
        """The rows of `to_pandas` as a Parquet file.

        Raises:
            OptionError: Nothing can be written there, or pyarrow is not installed.
        """
        rows = self.rows()
        _write(path, "reports.parquet", lambda file: export.write_parquet(rows, file))

    def __repr__(self) -> str:
        return f"<{len(self)} reports: {list(self._reports)[-3:]}>"


def _write(path: _Path, example: str, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file whole, or not at all."""
    target = check_path(path, "table", example)
    try:
        with replacing(target) as temporary, temporary.open("wb") as file:
            write(file)
    except OSError as error:
        raise OptionError(f"{target} was not written: {error.strerror or error}") from error


def load_reports(path: _Path, *, strict: bool = True) -> Reports:
    """The reports of a file that ``GPUMem.log`` or `Reports.to_json` wrote.

    Args:
        path: The file.
        strict: False passes over lines that are broken, as a crash may leave one; `Reports.faults` tells of them.

    Raises:
        ReportError: It cannot be read, or a line of it is no report; the message names the line.
    """
    faults: list[str] = []
    reports = Reports(read_reports(path, None if strict else faults), most=None)
    reports.faults = tuple(faults)
    return reports
