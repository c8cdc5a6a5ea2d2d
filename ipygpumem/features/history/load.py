"""Read files of reports: a log (JSON Lines) or one JSON list. The files may be truncated, unrelated or malicious."""

from __future__ import annotations

import json
import os
import stat
from typing import IO, TYPE_CHECKING, Any, NoReturn

from ipygpumem.core.errors import ReportError, first_line
from ipygpumem.core.from_dict import SCHEMA, check_schema, mapping, printable
from ipygpumem.core.report import Report
from ipygpumem.core.units import size

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


__all__ = ["MAX_JSON_BYTES", "open_regular_file", "parse_json", "read_reports", "starts_with_report"]

MAX_JSON_BYTES = 1 << 29
"""Largest file that is read as a single JSON value."""
_MAX_LINE_BYTES = 1 << 26
_MAX_REPORTS = 1_000_000
_PEEK_BYTES = 1 << 16
_BOM = "\ufeff"


def read_reports(path: str | os.PathLike[str], faults: list[str] | None) -> Iterator[Report]:
    """Read the reports of a file one by one.

    Args:
        path: The file.
        faults: Collects a message for each line that is invalid and therefore skipped; if None, such a line raises.

    Raises:
        ReportError: The file cannot be read or contains no reports; the message starts with its name.
    """
    name = printable(os.fsdecode(path))
    with open_regular_file(path) as file:
        is_list = file.peek(_PEEK_BYTES).lstrip()[:1] == b"["  # type: ignore[attr-defined]
        for count, (position, text) in enumerate(_list_items(file, name) if is_list else _lines(file, name)):
            if count == _MAX_REPORTS:
                raise ReportError(f"{name}: more than {_MAX_REPORTS:,} reports")
            try:
                data = parse_json(text) if isinstance(text, bytes) else text
                check_schema(mapping(data, ""), SCHEMA)
                report = Report.from_dict(data)
            except ReportError as error:
                message = f"{name}: {position}: {error}"
                if faults is None:
                    raise ReportError(message) from None
                faults.append(message)
            else:
                yield report


def _lines(file: IO[bytes], name: str) -> Iterator[tuple[str, bytes]]:
    number = 0
    while line := file.readline(_MAX_LINE_BYTES + 1):
        number += 1
        if len(line) > _MAX_LINE_BYTES:
            raise ReportError(f"{name}: line {number} is longer than {size(_MAX_LINE_BYTES)}")
        if line.strip():
            yield f"line {number}", line


def _list_items(file: IO[bytes], name: str) -> Iterator[tuple[str, Any]]:
    try:
        items = parse_json(file.read(MAX_JSON_BYTES + 1))
    except ReportError as error:
        raise ReportError(f"{name}: {error}") from None
    yield from ((f"report {number}", item) for number, item in enumerate(items, 1))


def parse_json(text: bytes) -> Any:
    """Parse JSON without NaN and infinity, of at most `MAX_JSON_BYTES`; a `ReportError` says what is wrong."""
    if len(text) > MAX_JSON_BYTES:
        raise ReportError(f"larger than {size(MAX_JSON_BYTES)}")
    try:
        return json.loads(text.decode().removeprefix(_BOM).rstrip(), parse_constant=_reject_constant)
    except UnicodeDecodeError:
        raise ReportError("not UTF-8 text") from None
    except RecursionError:
        raise ReportError("JSON nested too deeply") from None
    except json.JSONDecodeError as error:
        truncated = error.pos >= len(error.doc) > 0 or error.msg.startswith("Unterminated string")
        raise ReportError("incomplete JSON" if truncated else f"invalid JSON: {error.msg}") from None
    except ValueError as error:  # a number with thousands of digits
        raise ReportError(f"invalid JSON: {first_line(error)}") from None


def _reject_constant(constant: str) -> NoReturn:
    raise ReportError(f"invalid JSON: {constant} is not a number")


def open_regular_file(path: str | os.PathLike[str]) -> IO[bytes]:
    """Open a file for reading, unless it is a pipe or a device; the message of a `ReportError` starts with its name."""
    text = os.fsdecode(path)
    name = printable(text)
    try:
        file = open(os.path.expanduser(text), "rb", opener=_open_nonblocking)  # noqa: SIM115, PTH111 (Path raises for an unknown user)
    except OSError as error:
        raise ReportError(f"{name}: {error.strerror or 'cannot be read'}") from None
    except ValueError:
        raise ReportError(f"{name}: not a valid file name") from None
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise ReportError(f"{name}: not a regular file: pipes and devices are not read")
    return file


def _open_nonblocking(path: str, flags: int) -> int:
    """Open without waiting for the writer of a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def starts_with_report(path: Path) -> bool:
    """Whether a file is empty, or its first line looks like a report."""
    with open_regular_file(path) as file:
        line = file.readline(_PEEK_BYTES).lstrip()
    return not line or (line.startswith(b'{"schema": ') and b'"code": ' in line)
