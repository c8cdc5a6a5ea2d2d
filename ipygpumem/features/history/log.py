"""A file that gets each report as it settles: one line of JSON each, whole whatever happens to the process after it."""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError, ReportError
from ipygpumem.core.files import check_path
from ipygpumem.features.history.load import first_line_is_report

if TYPE_CHECKING:
    from pathlib import Path

    from ipygpumem.core.report import Report

__all__ = ["Log"]

_WAITING = 1000
"""Reports that wait for a disk that is full; what comes after pushes the oldest out."""


class Log:
    """Reports at the end of a file. Several processes may write into one.

    Args:
        path: A new file, or one with reports.

    Raises:
        OptionError: Nothing can be written there, or the file holds something else.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path: Path = check_path(path, "log", "session.jsonl")
        self._waiting: deque[bytes] = deque(maxlen=_WAITING)
        self._lost = 0
        self._told = ""
        try:
            fits = not self.path.exists() or first_line_is_report(self.path)
        except (OSError, ReportError) as error:
            raise OptionError(f"{path} cannot be read, and so not be added to: {error}") from error
        if not fits:
            raise OptionError(f"{path} holds no reports: the log does not add to other people's files")

    def write(self, report: Report) -> None:
        """Add a report. Never raises: what cannot be written waits for the next time, and that is said once."""
        if len(self._waiting) == _WAITING:
            self._lost += 1
        self._waiting.append(f"{report.to_json()}\n".encode())
        try:
            _append(self.path, b"".join(self._waiting))
        except OSError as error:
            reason = error.strerror or str(error)
            if reason != self._told:
                self._told = reason
                self._say(f"the log {self.path} is not written: {reason}; reports wait for it, said once")
            return
        if self._lost:
            self._say(f"the log {self.path} lacks {self._lost:,} reports: it could not be written for too long")
        self._waiting.clear()
        self._told, self._lost = "", 0

    @staticmethod
    def _say(text: str) -> None:
        if sys.stderr is not None:
            print(f"ipygpumem: {text}", file=sys.stderr)  # noqa: T201 (nothing is lost unsaid)


def _append(path: Path, data: bytes) -> None:
    """Add whole lines, or nothing.

    Raises:
        OSError: As the system says it.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o666)
    try:
        size = os.fstat(file).st_size
        if size:
            os.lseek(file, -1, os.SEEK_END)
            if os.read(file, 1) != b"\n":  # a process died half-way through a line: what follows is a line of its own
                data = b"\n" + data
        written = 0
        try:
            while written < len(data):
                written += os.write(file, data[written:])
        except OSError:
            if os.fstat(file).st_size == size + written:  # nobody else has added to it meanwhile
                os.ftruncate(file, size)
            raise
    finally:
        os.close(file)
