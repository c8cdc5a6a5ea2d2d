"""Summarize snapshots: for each device, the peak by line of code and the memory usage over time."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from ipygpumem.core.errors import OptionError, SnapshotError, first_line
from ipygpumem.core.text import printable
from ipygpumem.features.lines.peak import largest_lines, lines_at_peak
from ipygpumem.features.ranks.model import RankPeak
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.timeline import Timeline

_Summary = tuple[RankPeak, ...] | str

_LINES = 200
_INTERVALS = 120
_MIN_POOL_FILES = 4
"""Minimum number of files for which worker processes are started. Starting them takes about a second."""
_WORKER = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from ipygpumem.features.ranks.peak_summary import run_worker; run_worker()"
)


def summarize_peaks(path: str | os.PathLike[str]) -> tuple[RankPeak, ...]:
    snapshot = Snapshot.load(path)
    timelines = (timeline for timeline in snapshot.timelines if len(timeline.trace) or timeline.end_reserved)
    return tuple(_peak(snapshot, timeline) for timeline in timelines)


def _peak(snapshot: Snapshot, timeline: Timeline) -> RankPeak:
    lines, rest = largest_lines(lines_at_peak(snapshot, timeline.device), _LINES)
    start = next((cell.start_us for cell in snapshot.own.cells if cell.start_us), None)
    return RankPeak(
        device=timeline.device,
        requested=timeline.requested.peak()[1],
        events=len(timeline.trace),
        dropped=snapshot.own.dropped_of(timeline.device),
        lines=lines,
        rest=rest,
        curve=_curve(timeline, start),
        start_us=start,
    )


def _curve(timeline: Timeline, start: int | None) -> tuple[tuple[float, int], ...]:
    time: Any = timeline.trace.time
    if not len(time) or time[0] < 0:
        return ()
    usage = timeline.requested.bytes
    zero = int(time[0]) if start is None else start
    edges = np.linspace(int(time[0]), int(time[-1]) + 1, _INTERVALS + 1)
    events = np.searchsorted(time, edges, side="left").tolist()
    # usage[n] is the usage before event n, so usage[first] is the usage at the start of the interval
    highest = [int(usage[first : last + 1].max()) for first, last in pairwise(events)]
    seconds = [round((edge - zero) / 1e6, 6) for edge in (*edges[:-1].tolist(), int(time[-1]))]
    return tuple(zip(seconds, [*highest, int(usage[-1])], strict=True))


def summarize_files(files: Mapping[str, Path], workers: int) -> Iterator[tuple[str, _Summary]]:
    """Yield ``(name, summary)`` for each snapshot, or ``(name, message)`` if it cannot be read."""
    if workers <= 1 or len(files) < _MIN_POOL_FILES:
        yield from ((name, _summary(str(path))) for name, path in files.items())
        return
    processes = [_Worker() for _ in range(min(workers, len(files)))]
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for process in processes:
        idle.put(process)

    def summarize(path: Path) -> _Summary | None:
        process = idle.get()
        try:
            return process.summarize(path)
        finally:
            idle.put(process)

    pool = ThreadPoolExecutor(len(processes))
    try:
        futures = {name: pool.submit(summarize, path) for name, path in files.items()}
        summaries = {name: future.result() for name, future in futures.items()}
        for name, first in summaries.items():
            # more memory is available if no other process reads a file
            summary = processes[0].summarize(files[name]) if first is None else first
            killed = "not enough memory to read the file: the worker process was killed"
            yield name, killed if summary is None else summary
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.kill()


class _Worker:
    """A process that summarizes snapshots. It does not import modules from the current directory."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def summarize(self, path: Path) -> _Summary | None:
        """The result is None if the process was killed, for example because memory is insufficient."""
        if self._process is None:
            command = [sys.executable, "-Ic", _WORKER, json.dumps(_module_path())]
            pipe, null = subprocess.PIPE, subprocess.DEVNULL
            self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=null)  # noqa: S603
        process: Any = self._process
        try:
            process.stdin.write(f"{json.dumps(str(path))}\n".encode())
            process.stdin.flush()
            summary: _Summary = pickle.load(process.stdout)  # noqa: S301 (written by run_worker)
        except (OSError, EOFError, pickle.UnpicklingError):
            self.kill()
            return None
        return summary

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _module_path() -> list[str]:
    """Return the directories in ``sys.path`` without the current directory, which can contain malicious modules."""
    directories = [path for path in sys.path if Path(path).is_absolute()]
    return [*directories, str(Path(__file__).parents[3])]


def run_worker() -> None:
    """Write the summaries of the snapshots to stdout whose paths are read from stdin."""
    output, sys.stdout = sys.stdout.buffer, sys.stderr
    for line in sys.stdin:
        pickle.dump(_summary(json.loads(line)), output)
        output.flush()


def _summary(path: str) -> _Summary:
    try:
        return summarize_peaks(path)
    except (SnapshotError, OptionError) as error:
        message = str(error)
        for name in (path, printable(path), Path(path).name):
            message = message.removeprefix(f"{name}: ")
        return message
    except MemoryError:
        return "not enough memory to read the file"
    except Exception as error:  # a file can contain anything
        return f"cannot be read ({first_line(error)})"
