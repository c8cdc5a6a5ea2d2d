"""From a measurement's own recording to the lines that held its peak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.errors import SnapshotError
from ipygpumem.features.lines.model import CodeLine, PeakLines
from ipygpumem.snapshot import Snapshot

if TYPE_CHECKING:
    from ipygpumem.core.report import DeviceReport, Report
    from ipygpumem.snapshot.queries.groups import Group

__all__ = ["peak_lines"]

_MOST = 5
_WIDTH = 90


def peak_lines(report: Report) -> list[PeakLines]:
    """Each device's peak by line, read from the file that the measurement has just written.

    Empty where nothing was recorded, or no stacks; and where events are missing, for then it would not add up.
    """
    recording = report.recording
    if recording is None or recording.path is None or recording.dropped or recording.error:
        return []
    try:
        snapshot = Snapshot.load(recording.path)
        found = (_device(snapshot, device) for device in report.devices.values())
        return [lines for lines in found if lines is not None]
    except SnapshotError:  # somebody else has written there since
        return []


def _device(snapshot: Snapshot, device: DeviceReport) -> PeakLines | None:
    index = int(device.name.rpartition(":")[2])
    if device.high is None or not device.high.exact or index >= len(snapshot.timelines):
        return None
    counters = device.high.counters
    peak = snapshot.peak(index)
    groups = peak.live.by("line")
    if not any(group.line is not None for group in groups):
        return None
    lines = tuple(CodeLine(_label(group), group.bytes, group.count) for group in groups[:_MOST])
    others = groups[_MOST:]
    rest = CodeLine("other lines", sum(group.bytes for group in others), sum(group.count for group in others))
    return PeakLines(
        device.name,
        lines,
        rest,
        rounding=counters.active - peak.requested,
        pending=counters.allocated - counters.active,
        allocated=counters.allocated,
    )


def _label(group: Group) -> str:
    text = f"{group.label}: {group.source}" if group.source else group.label
    return text if len(text) <= _WIDTH else text[: _WIDTH - 1] + "…"
