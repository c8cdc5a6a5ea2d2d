"""Analysis of a recording for the report sections ``lines`` and ``modules``, including compiled code."""

from __future__ import annotations

import linecache
import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.errors import RecordingError
from ipygpumem.core.report import DeviceReport, Report
from ipygpumem.measurement.measurement import MeasuredCode
from ipygpumem.measurement.plan import Collector, CompletedMeasurement, with_notes
from ipygpumem.measurement.recorder import AllocationRecorder
from ipygpumem.measurement.runtime import EventPosition
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.model.stacks import Frame
from ipygpumem.snapshot.model.timeline import Timeline

if TYPE_CHECKING:
    from ipygpumem.measurement.compiled_graphs import CompiledGraph, GraphNode


class EventLookup:
    """Mapping from positions in the sequence of allocation events to indices of recorded events.

    The constructor raises `RecordingError` if the allocator's counters do not match the recorded events.
    """

    def __init__(self, timeline: Timeline, recorder: AllocationRecorder, *, complete: bool = True) -> None:
        device, trace = timeline.device, timeline.trace
        counted = trace.events(Action.ALLOC, Action.FREE_REQUESTED)
        # a free request is followed by its completion, unless a stream still uses the block
        next_event = np.minimum(counted + 1, len(trace) - 1)
        completed = (
            (trace.action[counted] == Action.FREE_REQUESTED)
            & (trace.action[next_event] == Action.FREE_COMPLETED)
            & (trace.address[next_event] == trace.address[counted])
        )
        self._last = np.where(completed, next_event, counted)
        self._device = device
        self._first = recorder.end_position.get(device, 0) - len(counted)
        begin = recorder.begin_position.get(device, 0)
        # events from the program's recording are selected by time, and the first may be slightly earlier
        wrong = self._first != begin if recorder.history.own else self._first > begin
        if wrong if complete else self._first < begin:
            raise RecordingError(
                f"cuda:{device}: the allocator's counters do not match the recorded events because the program reset "
                "the counters, or because another thread allocated memory at the end of the recording"
            )

    def contains(self, position: EventPosition) -> bool:
        return position.get(self._device, 0) >= self._first

    def event(self, position: EventPosition) -> int:
        """Return the index of the last event before a position, or -1 if there is none."""
        count = min(position.get(self._device, 0) - self._first, len(self._last))
        return int(self._last[count - 1]) if count > 0 else -1

    def events(self, positions: Sequence[EventPosition]) -> NDArray[np.int64]:
        return np.fromiter((self.event(position) for position in positions), np.int64, len(positions))


THREAD_FILE = "threading.py"  # suffix of the outermost file name in the stacks of threads started from Python


@dataclass(frozen=True, slots=True)
class DeviceRecording:
    """Recorded events of one device during a measurement. ``timeline`` contains its events in ``snapshot``."""

    report: DeviceReport
    snapshot: Snapshot
    timeline: Timeline
    recorder: AllocationRecorder
    code: MeasuredCode


class RecordingAnalysisCollector(Collector):
    """Base class of collectors that compute one section of the report from the recorded events of each device."""

    reads_recording = True

    def collect(self, report: Report, outcome: CompletedMeasurement) -> Report:
        """Return the report with results for each device that was used, or for the first device if none was used.

        If the recording is missing because of a problem, the report contains a note instead.
        """
        snapshot, recorder = outcome.snapshot, outcome.recorder
        if snapshot is None or recorder is None:
            if not outcome.problem:
                return report
            return with_notes(report, f"this report has no {self.section}: {outcome.problem}")
        parts = []
        for device in report.devices.values():
            timeline = device_timeline(snapshot, device)
            if timeline is not None:
                parts.append(self.part(DeviceRecording(device, snapshot, timeline, recorder, outcome.code)))
        section: dict[str, Any] = {self.section: tuple(part for part in parts if part.uses_memory) or tuple(parts[:1])}
        return replace(report, **section)

    def part(self, recording: DeviceRecording) -> Any:
        raise NotImplementedError


def device_timeline(snapshot: Snapshot, report: DeviceReport) -> Timeline | None:
    index = int(report.name.rpartition(":")[2])
    return snapshot.timelines[index] if index < len(snapshot.timelines) else None


def allocator_bytes(
    report: DeviceReport, timeline: Timeline
) -> tuple[tuple[int, int | None, int | None, int | None], tuple[int, int, int, int]]:
    """Return tuples ``(requested, rounding, pending, allocated)`` in bytes for the peak and for the end.

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
    """Return the file of each stack's outermost frame, from which callers infer the thread.

    The last item is None, so that the index -1, which means that there is no stack, selects it.
    """
    stacks = snapshot.stacks
    roots: list[str | None] = []
    for frame, parent in zip(stacks.node_frame.tolist(), stacks.node_parent.tolist(), strict=True):
        # parents precede their children
        roots.append(roots[parent] if parent >= 0 else stacks.frames[frame].file)
    return np.array([*(roots[leaf] if leaf >= 0 else None for leaf in stacks.leaf.tolist()), None], object)


_GENERATED_FILE = re.compile(r"[/\\]c[a-z2-7]{51}\.py$|^<eval_with_key>|^fx_generated_")
"""Pattern for the names of files with code generated by Inductor, which contain a hash, and by torch.fx."""
_OPERATIONS = re.compile(r"# .*Source Nodes: \[(.*?)\]")
_ALLOCATION = re.compile(r"\s*(buf\d+) = empty_strided")
_REUSE = re.compile(r"\s*(buf\d+) = (?:reinterpret_tensor\()?(buf\d+)\b")
_ONE_OUTPUT = re.compile(r"extern_kernels\.|torch\.ops\.|triton_tem_")
_NO_OPERATION = re.compile(r"\s*(#|del |assert_|\w*stream\d+ = |buf\d+ = (empty_strided|buf|reinterpret_tensor))")


class CompiledCode:
    """The code generated by torch.compile that occurs in the stacks of a snapshot."""

    def __init__(self, snapshot: Snapshot) -> None:
        stacks = self._stacks = snapshot.stacks
        generated = [bool(_GENERATED_FILE.search(frame.file)) for frame in stacks.frames]
        frames: list[int] = []  # innermost generated frame by node
        for frame, parent in zip(stacks.node_frame.tolist(), stacks.node_parent.tolist(), strict=True):
            frames.append(frame if generated[frame] else frames[parent] if parent >= 0 else -1)
        leaves = np.append(stacks.leaf, -1)  # the last element is for events without a stack
        self.frame_of_stack = np.asarray([*frames, -1], np.int64)[leaves]
        """Index of the innermost generated frame of each stack; -1 if there is none."""

    def operations(self, graph: CompiledGraph, stack: int) -> list[GraphNode]:
        frame = int(self.frame_of_stack[stack])
        return [] if frame < 0 else _operations(graph, self._stacks.frames[frame])


def _operations(graph: CompiledGraph, frame: Frame) -> list[GraphNode]:
    names = [graph.node_of_line.get(frame.line, "")] if frame.file == graph.file else _source_nodes(frame)
    return [graph.nodes[name] for name in names if name in graph.nodes]


@cache
def _source_nodes(frame: Frame) -> tuple[str, ...]:
    """Return the operation names in Inductor's comment above the kernel that uses the memory allocated by a line.

    If the kernel has one output, only the last name is returned. The result is empty if there is no such comment.
    """
    lines = linecache.getlines(frame.file)
    if not 0 < frame.line <= len(lines):
        return ()
    kernel = frame.line - 1
    allocation = _ALLOCATION.match(lines[kernel])
    if allocation is not None:
        kernel = _first_use(allocation[1], lines, frame.line)
    for line in reversed(lines[:kernel]):
        names = _OPERATIONS.search(line)
        if names is not None:
            operations = tuple(names[1].split(", "))
            # the others are views of the kernel's inputs; a fused kernel may have several outputs
            return operations[-1:] if _ONE_OUTPUT.search(lines[kernel]) else operations
        if not _NO_OPERATION.match(line):
            break
    return ()


def _first_use(buffer: str, lines: list[str], start: int) -> int:
    for number in range(start, len(lines)):
        renamed = _REUSE.match(lines[number])
        if renamed is not None and renamed[2] == buffer:
            buffer = renamed[1]
        elif re.search(rf"\b{buffer}\b", lines[number]) and not _NO_OPERATION.match(lines[number]):
            return number
    return 0
