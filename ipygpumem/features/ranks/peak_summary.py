"""Summarize snapshots: for each device, the peak by line of code and the memory usage over time."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
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
    futures = {}
    with _process_pool(workers) as pool, contextlib.suppress(BrokenProcessPool):
        for name, path in files.items():
            futures[name] = pool.submit(_summary, str(path))
    for name, path in files.items():
        try:
            yield name, futures[name].result()
        except (BrokenProcessPool, KeyError):  # a worker process was killed; it is unknown which file it was reading
            yield name, _summary_alone(path)


def _process_pool(workers: int) -> ProcessPoolExecutor:
    return ProcessPoolExecutor(workers, mp_context=get_context("spawn"))


def _summary_alone(path: Path) -> _Summary:
    with _process_pool(1) as pool:
        try:
            return pool.submit(_summary, str(path)).result()
        except BrokenProcessPool:
            return "not enough memory to read the file: the worker process was killed"


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
