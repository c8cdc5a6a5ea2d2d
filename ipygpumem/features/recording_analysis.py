"""Base class of collectors that analyze a recording, for the report sections ``lines`` and ``modules``."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.report import DeviceReport, Report
from ipygpumem.measurement.measurement import MeasuredCode
from ipygpumem.measurement.plan import Collector, Outcome, with_notes
from ipygpumem.measurement.recorder import Recorder
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.timeline import Timeline

THREAD_FILE = "threading.py"
"""Suffix of the outermost file name in the stacks of threads started from Python."""


@dataclass(frozen=True, slots=True)
class DeviceRecording:
    """The recorded events of one device during a measurement."""

    report: DeviceReport
    snapshot: Snapshot
    timeline: Timeline
    recorder: Recorder
    code: MeasuredCode


class RecordingAnalysisCollector(Collector):
    """Base class of collectors that compute one section of the report from the recorded events of each device."""

    reads_recording = True

    def collect(self, report: Report, outcome: Outcome) -> Report:
        """Return the report with results for each device that was used, or for the first device if none was used."""
        snapshot, recorder = outcome.snapshot, outcome.recorder
        if snapshot is None or recorder is None:
            if not outcome.problem:
                return report
            return with_notes(report, f"no {self.section} in this report: {outcome.problem}")
        parts = []
        for device in report.devices.values():
            timeline = device_timeline(snapshot, device)
            if timeline is not None:
                parts.append(self.part(DeviceRecording(device, snapshot, timeline, recorder, outcome.code)))
        section: dict[str, Any] = {self.section: tuple(part for part in parts if part.uses_memory) or tuple(parts[:1])}
        return replace(report, **section)

    def part(self, recording: DeviceRecording) -> Any:
        """Return the results for one device."""
        raise NotImplementedError


def device_timeline(snapshot: Snapshot, report: DeviceReport) -> Timeline | None:
    """Return the recorded events of a device, or None if no events were recorded."""
    index = int(report.name.rpartition(":")[2])
    return snapshot.timelines[index] if index < len(snapshot.timelines) else None


def allocator_bytes(
    report: DeviceReport, timeline: Timeline
) -> tuple[tuple[int, int | None, int | None, int | None], tuple[int, int, int, int]]:
    """Return two tuples ``(requested, rounding, pending, allocated)`` in bytes, for the peak and for the end.

    The allocator's counter ``allocated`` is the total of the other values. ``pending`` is the size of freed blocks that
    another stream still uses, as a negative number. If only an upper bound of the peak is known, all values at the peak
    except ``requested`` are None.
    """
    peak, end = timeline.requested.peak()[1], int(timeline.requested.bytes[-1])
    active, allocated = report.after.active or 0, report.after.allocated or 0
    at_end = end, active - end, allocated - active, allocated
    if report.high is None or not report.high.exact:
        return (peak, None, None, None), at_end
    high = report.high
    return (peak, high.active - peak, high.allocated - high.active, high.allocated), at_end


def outermost_files(snapshot: Snapshot) -> NDArray[Any]:
    """Return, for each stack, the file of its outermost frame, which identifies the thread; None for an empty stack.

    The last element is None. It represents events without a stack, whose stack index is -1.
    """
    stacks = snapshot.stacks
    roots: list[str | None] = []
    for frame, parent in zip(stacks.node_frame.tolist(), stacks.node_parent.tolist(), strict=True):
        # parents precede their children
        roots.append(roots[parent] if parent >= 0 else stacks.frames[frame].file)
    return np.array([*(roots[leaf] if leaf >= 0 else None for leaf in stacks.leaf.tolist()), None], object)
