"""The report and the snapshot of a rank as files, and the identity of the rank.

A report at the start of the measurement distinguishes ranks that were killed from ranks that are missing.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import platform
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ipygpumem.core.errors import OptionError
from ipygpumem.core.files import absolute_path, check_path, temporary_file, write_file
from ipygpumem.core.report import Report
from ipygpumem.core.version import __version__
from ipygpumem.features.ranks.model import MAX_RANKS, DeviceInfo, RankInfo, RankResult
from ipygpumem.measurement.allocation_history import recording_problem
from ipygpumem.measurement.runtime import current
from ipygpumem.sources.host import process_start

REPORT, SNAPSHOT = ".json", ".pickle"
_CLOCK_TOLERANCE = 1.0  # clock differences below this number of seconds are ignored, because file timestamps are coarse
_DIGITS = 5
_UNSAFE = re.compile(r"[^A-Za-z0-9.-]")


class RankFiles:
    """The report and the snapshot of this process in the directory of a run, which is created if necessary.

    If ``rank`` is None, the rank is read from torch.distributed or the environment. If ``record`` is true and
    allocation history can be recorded, a snapshot is written. Raises `OptionError` if the rank is invalid or the
    directory is not writable.
    """

    def __init__(self, directory: str | os.PathLike[str], rank: int | None = None, *, record: bool = True) -> None:
        if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < MAX_RANKS):
            raise OptionError(f"rank must be an integer from 0 to {MAX_RANKS - 1:,}, but got {rank!r}")
        if not isinstance(directory, (str, bytes, os.PathLike)) or not os.fsdecode(directory).strip():
            raise OptionError(f"rank_reports must be a path to a directory, but got {directory!r}")
        self._directory = make_directory(os.fsdecode(directory))
        self._rank = rank
        self._no_snapshot_reason = (recording_problem() or "") if record else ""
        self._record = record and not self._no_snapshot_reason
        self._info = current_rank_info(rank=rank)
        for extension, kind in ((REPORT, "report"), (SNAPSHOT, "snapshot")):
            check_path(self._path(extension), kind, f"rank_00000{extension}")

    @property
    def snapshot(self) -> Path | None:
        return self._path(SNAPSHOT) if self._record else None

    def _path(self, extension: str) -> Path:
        info = self._info
        process = _UNSAFE.sub("_", f"{info.host}-{info.pid}")
        return self._directory / f"rank_{process if info.rank is None else f'{info.rank:0{_DIGITS}}'}{extension}"

    def write_start(self) -> None:
        """Write a report that marks this rank as started. It is replaced by `write_report`."""
        self._info = current_rank_info(rank=self._rank, clock=self._clock_difference(), began=time.time())
        self._write(RankResult("", "running", self._info))

    def _clock_difference(self) -> float | None:
        """Return by how many seconds the clock of the shared file system is ahead of this host's; None if unknown.

        Differences below one second are returned as 0.
        """
        before = time.time()
        with contextlib.suppress(OSError), temporary_file(self._directory / "clock") as file:
            difference = os.fstat(file.fileno()).st_mtime - (before + time.time()) / 2
            return round(difference, 3) if abs(difference) >= _CLOCK_TOLERANCE else 0.0
        return None

    def update_rank(self) -> bool:
        """Read the rank again, because torch.distributed may now be initialized. Return False in a forked process."""
        before = self._info
        if os.getpid() != before.pid:
            return False
        info = current_rank_info(rank=self._rank, clock=before.clock, began=before.began)
        if info.rank is None:  # the process group no longer exists
            info = replace(info, rank=before.rank, world=before.world)
        first_report = self._path(REPORT)
        self._info = info
        if self._path(REPORT) != first_report:
            with contextlib.suppress(OSError):
                first_report.unlink()
        return True

    def write_report(self, report: Report) -> str:
        """Write the report. Return an error message if this fails, otherwise an empty string."""
        path = None if report.recording is None else report.recording.path
        note = self._no_snapshot_reason and f"no snapshot: {self._no_snapshot_reason}"
        try:
            self._write(RankResult("", "done", self._info, report, note=note, snapshot=path))
        except OptionError as error:
            return str(error)
        return ""

    def _write(self, result: RankResult) -> None:
        write_file(self._path(REPORT), f"{json.dumps(result.to_dict())}\n".encode())


def make_directory(name: str) -> Path:
    path = absolute_path(name)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OptionError(f"cannot create the directory {name!r}: {error.strerror or error}") from error
    check_path(path / "rank_00000.json", "report")
    return path


_VARIABLES = (
    ("RANK", "WORLD_SIZE"),  # torchrun, accelerate
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
)


class FallbackRank:
    """Rank of this process if no launcher has set one, such as the engine ID of an ipyparallel engine."""

    rank: int | None = None


def rank_and_world(environment: Mapping[str, str] = os.environ) -> tuple[int | None, int | None]:
    distributed = sys.modules.get("torch.distributed")
    with contextlib.suppress(Exception):  # the process group may be shutting down
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank()), int(distributed.get_world_size())
    for rank, world in _VARIABLES:
        number = _number(environment.get(rank, ""))
        if number is not None:
            return number, _number(environment.get(world, ""))
    return current().state(FallbackRank).rank, None


def _number(text: str) -> int | None:
    valid = text.isascii() and text.isdecimal() and len(text) < len("16777216")
    return int(text) if valid else None


def current_rank_info(*, rank: int | None = None, clock: float | None = None, began: float = 0.0) -> RankInfo:
    """Devices are included only if CUDA is initialized."""
    number, world = rank_and_world()
    monitor = current().monitor
    monitor.find_devices()
    return RankInfo(
        rank=number if rank is None else rank,
        world=world,
        host=platform.node(),
        pid=os.getpid(),
        version=__version__,
        devices=tuple(DeviceInfo(gpu.name, gpu.uuid, gpu.label, gpu.total) for gpu in monitor.devices.values()),
        clock=clock,
        began=began,
        launch=launch_ids(),
    )


def launch_ids(environment: Mapping[str, str] = os.environ) -> tuple[tuple[str, str], ...]:
    """Return pairs (kind, ID) that distinguish this launch of the ranks from other launches."""
    ids = {"process": f"{os.getpid()} {process_start(os.getpid())}"}
    elastic = environment.get("TORCHELASTIC_RUN_ID")
    if elastic and elastic != "none":  # torchrun's default if no run ID is given
        ids["elastic"] = elastic
    job = environment.get("SLURM_JOB_ID")
    if job:
        ids["job"] = f"{job}.{environment.get('SLURM_STEP_ID', '')}".rstrip(".")
    address, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    if address and port:
        ids["master"] = f"{address}:{port}"
    # ranks started manually or by srun have different parent processes
    if elastic or multiprocessing.parent_process() is not None:
        ids["parent"] = f"{os.getppid()} {process_start(os.getppid())}"
    return tuple(ids.items())
