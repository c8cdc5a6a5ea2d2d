"""Append each report to a file as one line of JSON, so that the log survives a crash of the process."""

from __future__ import annotations

import os
import threading
from collections import deque
from pathlib import Path

from ipygpumem.core.errors import OptionError, ReportError
from ipygpumem.core.files import check_path, open_for_appending
from ipygpumem.core.report import Report
from ipygpumem.core.units import many
from ipygpumem.features.commands.output import print_error
from ipygpumem.features.history.load import starts_with_report

_MAX_UNWRITTEN = 1000
"""Maximum number of reports kept in memory while the log is not writable, for example because the disk is full."""


class ReportLog:
    """A log file to which several processes and threads can append reports.

    Raises `OptionError` if the file cannot be written or contains data other than reports.
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
        """Append a report. If this fails, print a warning and append the report together with the next one."""
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
                    message = f"cannot write the log {self.path}: {reason}; reports are kept until the log is writable"
                    print_error(OptionError(message))
                return
            if self._dropped:
                dropped = many(self._dropped, "report")
                print_error(OptionError(f"the log {self.path} lacks {dropped} because it was not writable"))
            self._unwritten.clear()
            self._last_error, self._dropped = "", 0


def _append(path: Path, data: bytes) -> None:
    """Append data. If only part of it can be written, remove that part and raise `OSError`."""
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
