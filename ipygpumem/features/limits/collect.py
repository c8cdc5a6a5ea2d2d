"""A broken limit in words: what was measured, by which line, and who holds the most now."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ipygpumem.core.errors import GPUMemLimitExceeded

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.core.report import Report
    from ipygpumem.features.limits.model import ExceededLimit
    from ipygpumem.snapshot import Snapshot
    from ipygpumem.snapshot.queries.groups import Group

__all__ = ["limit_error"]

_CELL = re.compile(r"In\[(\d+)\](:\d+)(?: (.+))?")
_HOLDERS = 3
_WIDTH = 80


def limit_error(report: Report, snapshot: Snapshot | None, *, recorded: bool = True) -> GPUMemLimitExceeded:
    """The exception for a report with excesses: one line that says it all.

    ``recorded`` False: nothing was meant to be recorded, and it says how to learn the line.
    """
    cell = "" if report.cell is None else f"In [{report.cell}]: "
    parts = []
    for excess in report.excesses:
        line = None if snapshot is None else _line(excess, snapshot)
        parts.append(f"{excess}{f' ({line})' if line else ''}")
    holders = _holders() if any(excess.where != "host" for excess in report.excesses) else []
    if holders:
        parts.append(f"largest holders now: {', '.join(holders)}")
    if not recorded and any(excess.kind in {"peak", "held"} and excess.where != "host" for excess in report.excesses):
        parts.append("%%gpumem --limit on this cell names the line")
    return GPUMemLimitExceeded(cell + "; ".join(parts), report.excesses)


def _line(excess: ExceededLimit, snapshot: Snapshot) -> str | None:
    """The line that reached the peak, or that made most of what is held."""
    index = int(excess.where.rpartition(":")[2]) if excess.where != "host" else -1
    if not 0 <= index < len(snapshot.timelines) or not len(snapshot.timelines[index].trace):
        return None
    if excess.kind == "held":
        made = _named(snapshot.leaks(device=index).by("line"))
        return None if made is None else f"most of it by {_label(made)}"
    if excess.kind != "peak":
        return None
    from ipygpumem.snapshot.queries.live_set import LiveSet

    peak = snapshot.peak(index)
    timeline = snapshot.timelines[index]
    rows = peak.live.rows[timeline.allocations.start[peak.live.rows] == peak.event]
    reached = _named(LiveSet(snapshot, timeline, peak.event, rows).by("line"))
    most = _named(peak.live.by("line"))
    texts = [] if reached is None else [f"reached by {_label(reached)}"]
    if most is not None and (reached is None or most.label != reached.label):
        texts.append(f"most of it by {_label(most)}")
    return "; ".join(texts) or None


def _named(groups: Sequence[Group]) -> Group | None:
    """The largest group that is a line of somebody's code."""
    return next((group for group in groups if group.line is not None), None)


def _label(group: Group) -> str:
    match = _CELL.fullmatch(group.label)
    # as in the tables of this session
    function = "" if match is None or match[3] in {None, "<module>"} else f" {match[3]}()"
    label = group.label if match is None else f"In [{match[1]}]{match[2]}{function}"
    text = f"{label}: {group.source}" if group.source else label
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"


def _holders() -> list[str]:
    """The largest holders of this process by name; none where they cannot be told."""
    try:
        from ipygpumem.features.holders.collect import holders
    except ImportError:
        return []
    try:
        return [str(one) for one in holders().largest(_HOLDERS)]
    except Exception:
        return []
