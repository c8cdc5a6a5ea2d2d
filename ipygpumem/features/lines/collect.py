"""Compute the memory usage of each line of source code from a recording.

An allocation or free is attributed to each line of its Python stack, so that the values of a line include those of the
functions that it calls. PyTorch's backward threads have no Python stack; their events are attributed to the line that
waited for the backward pass. Events in compiled code are attributed to the line of the last operation for which the
memory was allocated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from ipygpumem.features import recording_analysis
from ipygpumem.features.lines.model import DeviceLines, LineUsage, SourceLine, SourceListing
from ipygpumem.features.lines.source_code import SourceCode, SourceRegion, enclosing_functions
from ipygpumem.measurement.compiled_graphs import GraphCall, GraphCallRecorder
from ipygpumem.measurement.observers import BackwardPass
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.columns import Action, IndexByValue
from ipygpumem.snapshot.model.timeline import Ints, Timeline

Line = tuple[str, int]

_TIME_MAGIC_FILES = ("<timed exec>", "<timed eval>")


class LinesCollector(recording_analysis.RecordingAnalysisCollector):
    section = "lines"

    def __init__(self, functions: Sequence[SourceRegion], *, all_functions: bool) -> None:
        self._functions = tuple(functions)
        self._all_functions = all_functions
        self.observer = self._graphs = GraphCallRecorder()

    def part(self, recording: recording_analysis.DeviceRecording) -> DeviceLines:
        code, timeline = recording.code, recording.timeline
        source = SourceCode(code.sources, code.numbers)
        regions = [*([] if code.block is None else [SourceRegion(*code.block)]), *self._functions]
        files = {region.file for region in regions} | (set(source.cells) if self._all_functions else set())
        events = _LineEvents(recording.snapshot, timeline, files, _time_magic_offset(regions, source))
        passes = recording.recorder.backward_passes
        if passes is not None and passes.passes:
            events.add_backward(passes.passes, recording_analysis.EventLookup(timeline, recording.recorder))
        if self._graphs.calls:
            events.add_graphs(self._graphs.calls, recording_analysis.EventLookup(timeline, recording.recorder))
        if self._all_functions:
            regions += _executed_regions(events.lines(), regions, source)
        listed_lines = {(region.file, number) for region in regions for number in region.lines}
        uses, elsewhere = events.uses(listed_lines)
        listings = []
        for region in regions:
            numbered = enumerate(source.lines(region.file)[region.first - 1 : region.last], region.first)
            lines = tuple(SourceLine(number, text, uses.get((region.file, number))) for number, text in numbered)
            if lines:
                listings.append(SourceListing(source.title(region), lines))
        peak_bytes, end_bytes = recording_analysis.allocator_bytes(recording.report, timeline)
        before = int(timeline.requested.bytes[0])
        return DeviceLines(recording.report.name, tuple(listings), before, elsewhere, *end_bytes, *peak_bytes)


def _time_magic_offset(regions: Sequence[SourceRegion], source: SourceCode) -> dict[str, Line]:
    """Map IPython's file names for code in a ``%%time`` cell to the cell's file and the line number of ``%%time``."""
    if not regions or regions[0].name:
        return {}
    cell = regions[0].file
    for number, line in enumerate(source.lines(cell), 1):
        if line.startswith("%%time"):
            return dict.fromkeys(_TIME_MAGIC_FILES, (cell, number))
        if line.strip() and not line.startswith("%%"):
            break
    return {}


def _executed_regions(
    lines: Iterable[Line], listed_regions: Sequence[SourceRegion], source: SourceCode
) -> list[SourceRegion]:
    whole_cells = {region.file for region in listed_regions if not region.name}
    lines_by_file: dict[str, list[int]] = {}
    for file, number in lines:
        if file in source.cells and file not in whole_cells:
            lines_by_file.setdefault(file, []).append(number)
    regions: list[SourceRegion] = []
    for file in source.cells:
        numbers = lines_by_file.get(file, ())
        functions = enclosing_functions(file, numbers, source)
        if all(any(number in function.lines for function in functions) for number in numbers):
            regions += functions
        else:
            regions.append(SourceRegion(file, 1, len(source.lines(file))))
    return [region for region in regions if region not in listed_regions]


class _LineEvents:
    """The events of a device, grouped by the set of lines in their stacks. There are far fewer sets than events."""

    def __init__(self, snapshot: Snapshot, timeline: Timeline, files: set[str], offsets: Mapping[str, Line]) -> None:
        self._snapshot = snapshot
        self._timeline = timeline
        self._files = files
        self._offsets = offsets
        self._line_numbers = IndexByValue()
        self._sets = IndexByValue()
        self._sets[()] = 0
        trace = timeline.trace
        set_of_stack = np.append(self._sets_of_stacks(), 0)  # the last element is for events without a stack
        self._events = trace.events(Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
        self._event_set = set_of_stack[trace.stack[self._events]]

    def _locate(self, file: str, number: int) -> Line | None:
        file, offset = self._offsets.get(file, (file, 0))
        return (file, number + offset) if file in self._files and number else None

    def _sets_of_stacks(self) -> Ints:
        stacks = self._snapshot.stacks
        line_of_frame = np.full(len(stacks.frames) + 1, -1, np.int64)
        for number, frame in enumerate(stacks.frames):
            line = self._locate(frame.file, frame.line)
            if line is not None:
                line_of_frame[number] = self._line_numbers[line]
        node_lines = line_of_frame[stacks.node_frame].tolist()
        node_sets: list[tuple[int, ...]] = []
        for line, parent in zip(node_lines, stacks.node_parent.tolist(), strict=True):  # parents before their children
            callers = node_sets[parent] if parent >= 0 else ()
            node_sets.append(callers if line < 0 or line in callers else (*callers, line))
        set_numbers = [self._sets[tuple(sorted(lines))] for lines in node_sets]
        return np.where(stacks.leaf < 0, 0, np.asarray([*set_numbers, 0], np.int64)[stacks.leaf])

    def add_backward(self, passes: Sequence[BackwardPass], places: recording_analysis.EventLookup) -> None:
        roots = recording_analysis.outermost_files(self._snapshot)
        for backward in passes:
            lines = {self._locate(file, number) for file, number in backward.stack} - {None}
            waiting = {self._line_numbers[line] for line in lines}
            positions = [places.event(backward.begin), places.event(backward.end)]
            during = np.arange(*np.searchsorted(self._events, positions, side="right"))
            root = roots[self._timeline.trace.stack[self._events[during]]]
            own_root = backward.stack[-1][0]
            in_backward_thread = [
                name is None or (name != own_root and not name.endswith(recording_analysis.THREAD_FILE))
                for name in root
            ]
            during = during[in_backward_thread]
            sets_before = self._event_set[during]
            line_sets = list(self._sets)
            for number in np.unique(sets_before).tolist():
                extended = self._sets[tuple(sorted({*line_sets[number], *waiting}))]
                self._event_set[during[sets_before == number]] = extended

    def add_graphs(self, calls: Sequence[GraphCall], places: recording_analysis.EventLookup) -> None:
        code = recording_analysis.CompiledCode(self._snapshot)
        stacks = self._timeline.trace.stack[self._events]
        for call in calls:
            positions = [places.event(call.begin), places.event(call.end)]
            during = np.arange(*np.searchsorted(self._events, positions, side="right"))
            for stack in np.unique(stacks[during]).tolist():
                operations = code.operations(call.graph, stack)
                lines = self._compiled_lines(stack, operations[-1].stack) if operations else []
                if lines:
                    line_set = self._sets[tuple(sorted({self._line_numbers[line] for line in lines}))]
                    self._event_set[during[stacks[during] == stack]] = line_set

    def _compiled_lines(self, stack: int, operation: list[tuple[str, int, str]]) -> list[Line]:
        lines = [line for line in (self._locate(file, number) for file, number, _ in operation) if line is not None]
        if not lines:
            return []
        function = operation[0][0], operation[0][2]
        for frame in self._snapshot.stacks.stack(stack):
            if (frame.file, frame.name.rpartition(".")[2]) == function:
                function = "", ""  # the compiled function, whose current line is unknown
                continue
            line = self._locate(frame.file, frame.line)
            if line is not None:
                lines.append(line)
        return lines

    def lines(self) -> list[Line]:
        sets, lines = list(self._sets), list(self._line_numbers)
        occurring = {line for number in np.unique(self._event_set).tolist() for line in sets[number]}
        return [lines[number] for number in sorted(occurring)]

    def uses(self, listed_lines: set[Line]) -> tuple[dict[Line, LineUsage], LineUsage | None]:
        """Return the memory usage of each line, and the memory usage of all events that belong to no listed line.

        The second item is None if there are no such events.
        """
        events, sets = self._events, self._event_set
        trace, allocations = self._timeline.trace, self._timeline.allocations
        usage = self._timeline.requested.bytes
        allocates, frees = (trace.action[events] == action for action in (Action.ALLOC, Action.FREE_REQUESTED))
        alive = np.flatnonzero((allocations.end == len(trace)) & (allocations.start >= 0))
        allocated_by = sets[np.searchsorted(events, allocations.start[alive])]
        size = trace.size[events]
        # by line set: allocated, allocations, freed, frees, kept; then the highest usage and the last event
        sums = np.zeros((len(self._sets), 5), np.int64)
        for column, line_sets, amounts in (
            (0, sets[allocates], size[allocates]),
            (1, sets[allocates], 1),
            (2, sets[frees], size[frees]),
            (3, sets[frees], 1),
            (4, allocated_by, allocations.size[alive]),
        ):
            np.add.at(sums[:, column], line_sets, amounts)
        highest = np.full((len(self._sets), 2), -1, np.int64)
        np.maximum.at(highest[:, 0], sets, np.maximum(usage[events], usage[events + 1]))
        np.maximum.at(highest[:, 1], sets, events)
        # by line; the last row is for the sets without a listed line
        elsewhere = len(self._line_numbers)
        listed_numbers = {number for line, number in self._line_numbers.items() if line in listed_lines}
        pairs = [(number, line) for lines, number in self._sets.items() for line in lines]
        pairs += [(number, elsewhere) for lines, number in self._sets.items() if listed_numbers.isdisjoint(lines)]
        set_numbers, line_numbers = np.asarray(pairs, np.int64).reshape(-1, 2).T
        line_sums = np.zeros((elsewhere + 1, 5), np.int64)
        np.add.at(line_sums, line_numbers, sums[set_numbers])
        line_highest = np.full((elsewhere + 1, 2), -1, np.int64)
        np.maximum.at(line_highest, line_numbers, highest[set_numbers])
        uses = [
            LineUsage(int(usage[last + 1]), peak if totals[1] else None, *totals) if last >= 0 else None
            for totals, (peak, last) in zip(line_sums.tolist(), line_highest.tolist(), strict=True)
        ]
        return {line: use for line, use in zip(self._line_numbers, uses, strict=False) if use}, uses[-1]
