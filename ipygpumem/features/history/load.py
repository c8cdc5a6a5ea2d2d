"""Files of reports: the log's lines, or one JSON list. Read as what they may be: half-written, foreign or hostile."""

from __future__ import annotations

import json
import os
import stat
from typing import IO, TYPE_CHECKING, Any, NoReturn

from ipygpumem.core.errors import ReportError, first_line
from ipygpumem.core.from_dict import mapping, printable
from ipygpumem.core.load import check_schema, report_from
from ipygpumem.core.report import SCHEMA
from ipygpumem.core.units import size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ipygpumem.core.report import Report

__all__ = ["LARGEST", "first_line_is_report", "opened", "parsed", "read_reports"]

LARGEST = 1 << 29
"""Bytes of a file that is one JSON value."""
_LONGEST_LINE = 1 << 26
_MOST = 1_000_000
_START = 1 << 16
_BOM = "\ufeff"


def read_reports(path: str | os.PathLike[str], faults: list[str] | None) -> Iterator[Report]:
    """The reports of a file, one by one.

    Args:
        path: The file.
        faults: Gets a sentence for each broken line, which is passed over; None: such a line raises.

    Raises:
        ReportError: The file cannot be read, or is none of reports; the message begins with its name.
    """
    name = printable(os.fsdecode(path))
    with opened(path) as file:
        listed = file.peek(_START).lstrip()[:1] == b"["  # type: ignore[attr-defined]
        found = _listed(file, name) if listed else _lines(file, name)
        for count, (place, text) in enumerate(found):
            if count == _MOST:
                raise ReportError(f"{name}: more than {_MOST:,} reports")
            try:
                data = parsed(text) if isinstance(text, bytes) else text
                check_schema(mapping(data, ""), SCHEMA)
                report = report_from(data)
            except ReportError as error:
                told = f"{name}: {place}: {error}"
                if faults is None:
                    raise ReportError(told) from None
                faults.append(told)
            else:
                yield report


def _lines(file: IO[bytes], name: str) -> Iterator[tuple[str, bytes]]:
    number = 0
    while line := file.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise ReportError(f"{name}: line {number} is longer than {size(_LONGEST_LINE)}")
        if line.strip():
            yield f"line {number}", line


def _listed(file: IO[bytes], name: str) -> Iterator[tuple[str, Any]]:
    try:
        data = parsed(file.read(LARGEST + 1))
    except ReportError as error:
        raise ReportError(f"{name}: {error}") from None
    yield from ((f"report {number}", one) for number, one in enumerate(data, 1))


def parsed(text: bytes) -> Any:
    """JSON as plain data.

    Raises:
        ReportError: It is none, in one line.
    """
    if len(text) > LARGEST:
        raise ReportError(f"more than {size(LARGEST)}")
    try:
        return json.loads(text.decode().removeprefix(_BOM).rstrip(), parse_constant=_no_number)
    except UnicodeDecodeError:
        raise ReportError("not a text in UTF-8") from None
    except RecursionError:
        raise ReportError("JSON that is nested too deep") from None
    except json.JSONDecodeError as error:
        raise ReportError("broken JSON, cut off at the end" if _cut(error) else f"broken JSON: {error.msg}") from None
    except ValueError as error:  # a number of thousands of digits
        raise ReportError(f"broken JSON: {first_line(error)}") from None


def _cut(error: json.JSONDecodeError) -> bool:
    """Whether a text is the beginning of good JSON: a process died as it wrote it."""
    rest = error.doc[error.pos :]
    if error.doc.lstrip()[:1] not in {"{", "["}:
        return False
    ends = not rest or error.msg.startswith("Unterminated string") or (error.pos > 0 and rest == "-")
    words = any(word.startswith(rest) for word in ("true", "false", "null"))
    return ends or words or ("escape" in error.msg and len(rest) < len(r"\u1234"))


def _no_number(word: str) -> NoReturn:
    raise ReportError(f"broken JSON: {word} is no number")


def opened(path: str | os.PathLike[str]) -> IO[bytes]:
    """A file to read, which is no pipe or device.

    Raises:
        ReportError: It cannot be opened; the message begins with its name.
    """
    text = os.fsdecode(path)
    name = printable(text)
    try:
        file = open(os.path.expanduser(text), "rb", opener=_without_waiting)  # noqa: SIM115, PTH111 (Path raises for a user who is not there)
    except OSError as error:
        raise ReportError(f"{name}: {error.strerror or 'cannot be read'}") from None
    except ValueError:
        raise ReportError(f"{name}: no file can have this name") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ReportError(f"{name}: not a regular file: a pipe or device may have no end")
    return file


def _without_waiting(path: str, flags: int) -> int:
    """Open without waiting for somebody who writes into a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def first_line_is_report(path: Path) -> bool:
    """Whether a file begins as a log does, or is empty.

    Raises:
        ReportError: It cannot be read.
    """
    with opened(path) as file:
        line = file.readline(_START).lstrip()
    return not line or (line.startswith(b'{"schema": ') and b'"code": ' in line)
