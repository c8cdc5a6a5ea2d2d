"""Read reports from logs, JSON files and notebooks, which may be truncated or malicious, and append them to logs."""

from __future__ import annotations

import json
import os
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from ipygpumem.core.errors import OptionError, ReportError, check_argument, first_line
from ipygpumem.core.files import check_path, open_for_appending, open_regular_file
from ipygpumem.core.report import Report, code_label
from ipygpumem.core.serialization import SCHEMA, check_schema, mapping
from ipygpumem.core.text import printable
from ipygpumem.core.units import many, size
from ipygpumem.features.commands.output import print_error
from ipygpumem.features.history.model import MIME, ReportRow, changed_rows, rows_from_summary

_MAX_JSON_BYTES = 1 << 29  # maximum size of a file that contains a single JSON value
_MAX_LINE_BYTES = 1 << 26
_MAX_REPORTS = 1_000_000
_MAX_FAULTS = 1000
_PEEK_BYTES = 1 << 16
_NOTEBOOK_FORMAT = 4


@dataclass(frozen=True, slots=True)
class SessionRows:
    """The report rows of one session, log or notebook.

    Attributes:
        name: Name of the file, or ``this session``.
        faults: Messages about invalid parts of the file, which were skipped.
        dropped: Number of older reports that the session has discarded.
    """

    name: str
    rows: Sequence[ReportRow]
    faults: tuple[str, ...] = ()
    dropped: int = 0


def read_reports(path: str | os.PathLike[str], faults: list[str] | None) -> Iterator[Report]:
    """Yield the reports in a log or JSON file.

    Messages about invalid reports are appended to ``faults``. Raises `ReportError` if the file cannot be read, or if a
    report is invalid and ``faults`` is None.
    """
    check_argument("path", path, (str, bytes, os.PathLike), "the name of a file")
    name = printable(os.fsdecode(path))
    with open_file(path) as file:
        is_list = file.peek(_PEEK_BYTES).lstrip()[:1] == b"["  # type: ignore[attr-defined]
        for count, (position, text) in enumerate(_list_items(file, name) if is_list else _lines(file, name)):
            if count == _MAX_REPORTS:
                raise ReportError(f"{name}: the file contains more than {_MAX_REPORTS:,} reports")
            try:
                data = _parse_json(text) if isinstance(text, bytes) else text
                check_schema(mapping(data, ""), SCHEMA)
                report = Report.from_dict(data)
            except ReportError as error:
                if faults is None:
                    raise ReportError(f"{name}: {position}: {error}") from None
                _add_fault(faults, f"{name}: {position}: {error}")
            else:
                yield report


def _add_fault(faults: list[str], message: str) -> None:
    if len(faults) < _MAX_FAULTS:
        faults.append(message)
    elif len(faults) == _MAX_FAULTS:
        faults.append(f"{message} (further errors are not listed)")


def _lines(file: IO[bytes], name: str) -> Iterator[tuple[str, bytes]]:
    for number, line in enumerate(iter(lambda: file.readline(_MAX_LINE_BYTES + 1), b""), 1):
        if len(line) > _MAX_LINE_BYTES:
            raise ReportError(f"{name}: line {number} is longer than {size(_MAX_LINE_BYTES)}")
        if line.strip():
            yield f"line {number}", line


def _list_items(file: IO[bytes], name: str) -> Iterator[tuple[str, Any]]:
    try:
        items = read_json(file, _MAX_JSON_BYTES)
    except ReportError as error:
        raise ReportError(f"{name}: {error}") from None
    yield from ((f"report {number}", item) for number, item in enumerate(items, 1))


def read_json(file: IO[bytes], limit: int) -> Any:
    """``limit`` is in bytes. NaN and infinity are invalid."""
    length = os.fstat(file.fileno()).st_size  # a read of ``limit`` bytes would allocate them also for a small file
    text = file.read(min(length, limit) + 1)
    if len(text) > limit:
        raise ReportError(f"the file is larger than {size(limit)}")
    return _parse_json(text)


def _parse_json(text: bytes) -> Any:
    try:
        return json.loads(text.decode("utf-8-sig").rstrip(), parse_constant=_reject_constant)
    except UnicodeDecodeError:
        raise ReportError("the text is not valid UTF-8") from None
    except RecursionError:
        raise ReportError("the JSON data is nested too deeply") from None
    except json.JSONDecodeError as error:
        truncated = error.pos >= len(error.doc) > 0 or error.msg.startswith("Unterminated string")
        raise ReportError("the JSON data is incomplete" if truncated else f"invalid JSON: {error.msg}") from None
    except ValueError as error:  # a number has thousands of digits
        raise ReportError(f"invalid JSON: {first_line(error)}") from None


def _reject_constant(constant: str) -> NoReturn:
    raise ReportError(f"invalid JSON: {constant} is not allowed")


def open_file(path: str | os.PathLike[str]) -> IO[bytes]:
    text = os.fsdecode(path)
    name = printable(text)
    try:
        return open_regular_file(os.path.expanduser(text))  # noqa: PTH111 (Path raises for an unknown user)
    except OSError as error:
        raise ReportError(f"{name}: {error.strerror or 'cannot be read'}") from None
    except ValueError:
        raise ReportError(f"{name}: not a valid file name") from None


def starts_with_report(path: Path) -> bool:
    with open_file(path) as file:
        line = file.readline(_PEEK_BYTES).lstrip()
    return not line or (line.startswith(b'{"schema": ') and b'"code": ' in line)


def read_rows(path: str | os.PathLike[str]) -> SessionRows:
    """Read a log, a JSON file or a notebook. Invalid parts are skipped and listed in `SessionRows.faults`.

    Raises `ReportError` if the file cannot be read, or is a log or JSON file that contains only invalid reports.
    """
    if _is_notebook(path):
        return read_notebook(path)
    faults: list[str] = []
    rows = changed_rows(read_reports(path, faults))
    if faults and not rows:
        raise ReportError(faults[0])
    return SessionRows(_file_name(path), rows, tuple(faults))


def _is_notebook(path: str | os.PathLike[str]) -> bool:
    if os.fsdecode(path).lower().endswith(".ipynb"):
        return True
    with open_file(path) as file:
        start = file.read(_PEEK_BYTES).split()
    return start[:2] == [b"{", b'"cells":']


def read_notebook(path: str | os.PathLike[str]) -> SessionRows:
    """Read the measurements from the output metadata of an executed notebook."""
    faults: list[str] = []
    name = printable(os.fsdecode(path))
    with open_file(path) as file:
        try:
            rows = list(_notebook_rows(read_json(file, _MAX_JSON_BYTES), faults))
        except ReportError as error:
            raise ReportError(f"{name}: {error}") from None
    return SessionRows(_file_name(path), rows, tuple(f"{name}: {fault}" for fault in faults))


def _notebook_rows(data: Any, faults: list[str]) -> Iterator[ReportRow]:
    cells = data.get("cells") if isinstance(data, dict) else None
    if not isinstance(cells, list) or data.get("nbformat") != _NOTEBOOK_FORMAT:
        raise ReportError("not an nbformat 4 notebook")
    for number, cell in enumerate(cells, 1):
        if not isinstance(cell, dict):
            _add_fault(faults, f"cell {number} is not a JSON object")
            continue
        summaries = list(_summaries(cell))
        code = _code(cell) if summaries else ""
        for summary in summaries:
            try:
                yield from _cell_rows(cell, summary, code)
            except ReportError as error:
                _add_fault(faults, f"cell {number}: {error}")


def _summaries(cell: dict[str, Any]) -> Iterator[Any]:
    outputs = cell.get("outputs")
    for output in outputs if isinstance(outputs, list) else ():
        metadata = output.get("metadata") if isinstance(output, dict) else None
        if isinstance(metadata, dict) and MIME in metadata:
            yield metadata[MIME]


def _code(cell: dict[str, Any]) -> str:
    source = cell.get("source")
    if isinstance(source, list):
        source = "".join(line for line in source if isinstance(line, str))
    return code_label(source) if isinstance(source, str) else ""


def _cell_rows(cell: dict[str, Any], summary: Any, code: str) -> Iterator[ReportRow]:
    cell_id = cell.get("id")
    rows = rows_from_summary(summary, cell_id=cell_id if isinstance(cell_id, str) else None, code=code)
    rows.sort(key=lambda row: (len(row.device), row.device))
    yield from [row for row in rows if row.changed] or rows[:1]


def _file_name(path: str | os.PathLike[str]) -> str:
    return printable(Path(os.fsdecode(path)).name)


def short_names(first: str, second: str) -> tuple[str, str]:
    names = _file_name(first), _file_name(second)
    return names if names[0] != names[1] else (printable(first), printable(second))


_MAX_UNWRITTEN = 1000
"""Maximum number of reports kept in memory while the log is not writable, for example because the disk is full."""


class ReportLog:
    """Log file to which several processes and threads can append reports.

    The constructor raises `OptionError` if the file is not writable, or is not empty and does not start with a report.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = check_path(path, "log", "session.jsonl")
        self._unwritten: deque[bytes] = deque(maxlen=_MAX_UNWRITTEN)
        self._dropped = 0
        self._last_error = ""
        self._process, self._lock = os.getpid(), threading.RLock()
        try:
            appendable = not self.path.exists() or starts_with_report(self.path)
        except (OSError, ReportError) as error:
            raise OptionError(f"cannot append to {path}: {error}") from error
        if not appendable:
            raise OptionError(f"{path} is not a log: reports can be appended only to a new file or an existing log")

    def write(self, report: Report) -> None:
        """Append a report. If this fails, keep the report and append it together with the next report.

        A failure is reported on stderr unless its cause is the same as before. At most 1,000 reports are kept.
        """
        if self._process != os.getpid():  # another thread may have held the lock when this process was forked
            self._process, self._lock = os.getpid(), threading.RLock()
            self._unwritten.clear()
        with self._lock:
            if len(self._unwritten) == _MAX_UNWRITTEN:
                self._dropped += 1
            self._unwritten.append(f"{report.to_json()}\n".encode())
            try:
                _append(self.path, b"".join(self._unwritten))
            except OSError as error:
                reason = error.strerror or str(error)
                if reason != self._last_error:
                    self._last_error = reason
                    kept = "reports are kept in memory until the log is writable"
                    print_error(OptionError(f"cannot write the log {self.path}: {reason}; {kept}"))
                return
            if self._dropped:
                dropped = many(self._dropped, "report")
                print_error(OptionError(f"the log {self.path} lacks {dropped} because it was not writable"))
            self._unwritten.clear()
            self._last_error, self._dropped = "", 0


def _append(path: Path, data: bytes) -> None:
    with open_for_appending(path) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":  # another process ended while it wrote a line
                data = b"\n" + data
        written = 0
        try:
            while written < len(data):
                written += file.write(data[written:])
        except OSError:
            if file.seek(0, os.SEEK_END) == size + written:  # no other process has appended in the meantime
                file.truncate(size)
            raise
