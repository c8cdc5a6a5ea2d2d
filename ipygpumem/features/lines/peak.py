"""The lines of code that allocated the memory in use at a device's peak."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ipygpumem.features.lines.model import CodeLine, PeakLines
from ipygpumem.snapshot.export.text import clip
from ipygpumem.snapshot.queries.live_set import LiveSet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.core.report import DeviceReport, Report
    from ipygpumem.snapshot import Snapshot
    from ipygpumem.snapshot.queries.groups import Group

__all__ = ["code_lines", "largest_lines", "lines_at_peak", "lines_reaching_peak", "peak_lines"]

_LINES_SHOWN = 5
_LABEL_WIDTH = 90


def code_lines(live: LiveSet) -> tuple[CodeLine, ...]:
    """Group live blocks by the line of the user's code that allocated them, the largest group first."""
    return tuple(CodeLine(_label(group), group.bytes, group.count) for group in live.by("line"))


def lines_at_peak(snapshot: Snapshot, device: int) -> tuple[CodeLine, ...]:
    """Return the lines that allocated the memory in use at the peak of a device, the largest first."""
    return code_lines(snapshot.peak(device).live)


def lines_reaching_peak(snapshot: Snapshot, device: int) -> tuple[CodeLine, ...]:
    """Return the lines whose allocation raised the memory in use to its peak."""
    peak = snapshot.peak(device)
    timeline = peak.live.timeline
    rows = peak.live.rows[timeline.allocations.start[peak.live.rows] == peak.event]
    return code_lines(LiveSet(snapshot, timeline, peak.event, rows))


def largest_lines(lines: Sequence[CodeLine], limit: int) -> tuple[tuple[CodeLine, ...], CodeLine]:
    """Split lines into the first ``limit`` and the sum of all others."""
    rest = lines[limit:]
    total = CodeLine("other lines", sum(line.amount for line in rest), sum(line.blocks for line in rest))
    return tuple(lines[:limit]), total


def peak_lines(snapshot: Snapshot, report: Report) -> tuple[PeakLines, ...]:
    """Return the lines at the peak of each device, with the difference to the allocator's counters.

    The snapshot is the complete recording of the measurement, without dropped events. Devices without an exact peak or
    without recorded stacks are left out.
    """
    peaks = (_peak_of_device(snapshot, device) for device in report.devices.values())
    return tuple(peak for peak in peaks if peak is not None)


def _peak_of_device(snapshot: Snapshot, device: DeviceReport) -> PeakLines | None:
    index = int(device.name.rpartition(":")[2])
    if device.high is None or not device.high.exact or index >= len(snapshot.timelines):
        return None
    counters = device.high
    lines = lines_at_peak(snapshot, index)
    if not any(line.known for line in lines):
        return None
    largest, rest = largest_lines(lines, _LINES_SHOWN)
    return PeakLines(
        device.name,
        largest,
        rest,
        rounding=counters.active - snapshot.timelines[index].requested.peak()[1],
        pending=counters.allocated - counters.active,
        allocated=counters.allocated,
    )


def _label(group: Group) -> str:
    if group.line is None:
        return group.label
    place = re.sub(r"\bIn\[(\d+)\]", r"In [\1]", group.label.removesuffix(f" {group.name}"))
    function = "" if _is_top_level(group.name or "") else f" {group.name}()"
    return clip(f"{place}{function}: {group.source}" if group.source else f"{place}{function}", _LABEL_WIDTH)


def _is_top_level(name: str) -> bool:
    return name == "<module>" or name.startswith("<cell line:")  # the latter in IPython 7.34 and 8
