"""What one rank leaves in the folder of its run: a report and a snapshot, each written whole or not at all.

A first report says that the rank began. So one that is killed is told from one that never came.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError
from ipygpumem.core.files import check_path, replacing
from ipygpumem.features.ranks.model import MOST_RANKS, RankResult
from ipygpumem.features.ranks.rank_info import origin
from ipygpumem.measurement.allocation_history import History

if TYPE_CHECKING:
    from ipygpumem.core.report import Report

__all__ = ["REPORT", "SNAPSHOT", "RankFiles"]

REPORT, SNAPSHOT = ".json", ".pickle"
_FAR = 1.0
"""Seconds below which two clocks are one: the times of files are coarse."""
_WIDTH = 5
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]")


class RankFiles:
    """The files of this process in a folder.

    Args:
        folder: Made, where it is not there.
        rank: This process's rank; None asks torch.distributed and the environment.
        record: Whether a snapshot is to be written.

    Raises:
        OptionError: No rank, or nothing can be written there.
    """

    def __init__(self, folder: str | os.PathLike[str], rank: int | None = None, *, record: bool = True) -> None:
        if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or rank < 0):
            raise OptionError(f"rank is a number from 0 on, not {rank!r}")
        if rank is not None and rank >= MOST_RANKS:
            raise OptionError(f"rank is below {MOST_RANKS:,}, not {rank:,}")
        self._folder = _made(folder)
        self._rank = rank
        self.why = (History.obstacle() or "") if record else ""
        """Why there is no snapshot."""
        self._record = record and not self.why
        self._origin = origin(rank=rank)
        for ending in (REPORT, SNAPSHOT):
            check_path(self._path(ending), "report", "rank_00000.json")

    @property
    def snapshot(self) -> Path | None:
        """Where this rank's snapshot goes; None where nothing can be recorded, or should be."""
        return self._path(SNAPSHOT) if self._record else None

    def _path(self, ending: str) -> Path:
        one = self._origin
        who = f"{one.rank:0{_WIDTH}}" if one.rank is not None else _UNSAFE.sub("_", f"{one.host}-{one.pid}")
        return self._folder / f"rank_{who}{ending}"

    def begin(self) -> None:
        """Say that this rank began.

        Raises:
            OptionError: That cannot be written.
        """
        self._origin = origin(rank=self._rank, clock=self._clock(), began=time.time())
        try:
            self._write(RankResult("", "running", self._origin))
        except OSError as error:
            raise OptionError(f"nothing can be written into {self._folder}: {error.strerror or error}") from error

    def _clock(self) -> float | None:
        """How far the folder's clock is ahead: of a shared folder it is one clock for all machines."""
        probe = self._folder / f".clock.{os.getpid()}.tmp"
        try:
            before = time.time()
            probe.touch()
            found = probe.stat().st_mtime - (before + time.time()) / 2
            probe.unlink()
        except OSError:
            return None
        return round(found, 3) if abs(found) >= _FAR else 0.0

    def settle(self) -> bool:
        """Look again who this is: torch.distributed may have started meanwhile. Called before the snapshot is saved.

        Returns:
            False in a process that was forked meanwhile: these are its parent's files.
        """
        if os.getpid() != self._origin.pid:
            return False
        before, now = self._origin, origin(rank=self._rank, clock=self._origin.clock, began=self._origin.began)
        if now.rank is None:  # the process group is gone already
            now = replace(now, rank=before.rank, world=before.world)
        marker = self._path(REPORT)
        self._origin = now
        if self._path(REPORT) != marker:
            with contextlib.suppress(OSError):
                marker.unlink()
        return True

    def end(self, report: Report) -> str:
        """Write the report of the block that has ended; returns what went wrong, in words."""
        recording = report.recording
        saved = None if recording is None else recording.path
        note = self.why and f"no snapshot: {self.why}"
        member = RankResult("", "done", self._origin, report, note=note, snapshot=saved)
        try:
            self._write(member)
        except OSError as error:
            return f"{self._path(REPORT)} was not written: {error.strerror or error}"
        return ""

    def _write(self, member: RankResult) -> None:
        with replacing(self._path(REPORT)) as temporary:
            temporary.write_bytes(f"{member.to_json()}\n".encode())


def _made(folder: str | os.PathLike[str]) -> Path:
    if not isinstance(folder, (str, bytes, os.PathLike)):
        raise OptionError(f"rank_reports is a folder, not {folder!r}")
    text = os.fsdecode(folder)
    if not text.strip():
        raise OptionError("rank_reports needs a folder")
    try:
        path = Path(text).expanduser().resolve()
        path.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise OptionError(f"{text!r} cannot be a folder: {getattr(error, 'strerror', None) or error}") from error
    return path
