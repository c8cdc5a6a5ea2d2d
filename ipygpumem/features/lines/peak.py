"""Find the lines of code that allocated the memory in use at the peak of a device."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ipygpumem.core.report import DeviceReport, Report
from ipygpumem.core.text import clip
from ipygpumem.features.lines.model import AllocationSite, PeakLines
from ipygpumem.features.recording_analysis import allocator_bytes, device_timeline
from ipygpumem.measurement.plan import Collector, CompletedMeasurement
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.queries.groups import Group
from ipygpumem.snapshot.queries.live_set import LiveSet

_LINES_SHOWN = 5
_LABEL_WIDTH = 90


def allocation_sites(live: LiveSet) -> tuple[AllocationSite, ...]:
    return tuple(AllocationSite(_label(group), group.bytes, group.count) for group in live.by("line"))


def lines_at_peak(snapshot: Snapshot, device: int) -> tuple[AllocationSite, ...]:
    return allocation_sites(snapshot.peak(device).live)


def lines_reaching_peak(snapshot: Snapshot, device: int) -> tuple[AllocationSite, ...]:
    peak = snapshot.peak(device)
    timeline = peak.live.timeline
    rows = peak.live.rows[timeline.allocations.start[peak.live.rows] == peak.event]
    return allocation_sites(LiveSet(snapshot, timeline, peak.event, rows))


def largest_lines(lines: Sequence[AllocationSite], limit: int) -> tuple[tuple[AllocationSite, ...], AllocationSite]:
    other_lines = lines[limit:]
    total = AllocationSite(
        "other lines", sum(line.amount for line in other_lines), sum(line.blocks for line in other_lines)
    )
    return tuple(lines[:limit]), total


class PeakLinesCollector(Collector):
    section = "lines at the peak"
    reads_recording = True

    def collect(self, report: Report, outcome: CompletedMeasurement) -> Report:
        if outcome.snapshot is None or report.recording is None:
            return report
        peaks = [peak_lines(outcome.snapshot, device) for device in report.devices.values()]
        recording = replace(report.recording, peak_lines=tuple(peak for peak in peaks if peak is not None))
        return replace(report, recording=recording)


def peak_lines(snapshot: Snapshot, report: DeviceReport) -> PeakLines | None:
    timeline = device_timeline(snapshot, report)
    if timeline is None:
        return None
    _, rounding, pending, allocated = allocator_bytes(report, timeline)[0]
    lines = lines_at_peak(snapshot, timeline.device)
    if rounding is None or pending is None or allocated is None or not any(line.known for line in lines):
        return None
    return PeakLines(report.name, *largest_lines(lines, _LINES_SHOWN), rounding, pending, allocated)


def _label(group: Group) -> str:
    if group.line is None:
        return group.label
    place = re.sub(r"\bIn\[(\d+)\]", r"In [\1]", group.label.removesuffix(f" {group.name}"))
    name = group.name or ""
    if name != "<module>" and not name.startswith("<cell line:"):  # cell code in IPython 7.34 and 8
        place += f" {name}()"
    source = clip(group.source or "", _LABEL_WIDTH)  # a file can contain a long line that belongs to many groups
    return clip(f"{place}: {source}" if source else place, _LABEL_WIDTH)
