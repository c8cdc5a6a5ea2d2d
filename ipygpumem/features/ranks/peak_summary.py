"""A recording in brief: each device's peak by line and a coarse curve, some kilobytes whatever the recording was."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.features.lines.peak import largest_lines, lines_at_peak
from ipygpumem.features.ranks.model import RankPeak
from ipygpumem.snapshot import Snapshot

if TYPE_CHECKING:
    import os

    from ipygpumem.snapshot.model.timeline import Timeline

__all__ = ["brief"]

_LINES = 200
_STRETCHES = 120


def brief(path: str | os.PathLike[str]) -> tuple[RankPeak, ...]:
    """What each used device of a recording held at its peak, and how it got there.

    Raises:
        SnapshotError: The file cannot be read, is no snapshot, or a broken or dangerous one.
    """
    snapshot = Snapshot.load(path)
    return tuple(_peak(snapshot, one) for one in snapshot.timelines if len(one.trace) or one.end_reserved)


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
    """The highest level in each stretch of time, by seconds from the start, or from the first event."""
    time: Any = timeline.trace.time
    if not len(time) or time[0] < 0:
        return ()
    levels = timeline.requested.bytes
    origin = int(time[0]) if start is None else start
    edges = np.linspace(int(time[0]), int(time[-1]) + 1, _STRETCHES + 1)
    first = np.searchsorted(time, edges[:-1], side="left")
    last = np.searchsorted(time, edges[1:], side="left")
    points = []
    for left, right, edge in zip(first.tolist(), last.tolist(), edges[:-1].tolist(), strict=True):
        # levels[n] is the level before event n: the stretch begins with the one that its last event before left
        points.append((round((edge - origin) / 1e6, 6), int(levels[left : right + 1].max())))
    points.append((round((int(time[-1]) - origin) / 1e6, 6), int(levels[-1])))
    return tuple(points)
