"""Compute the memory usage of a tracked model by phase, kind and module, and the effect of activation checkpointing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.introspection import attempt
from ipygpumem.core.units import many, size
from ipygpumem.features.modules.attribution import DDP, AttributedAllocations, Mask
from ipygpumem.features.modules.hooks import cause_recompilation
from ipygpumem.features.modules.model import MEMORY_KINDS, MemoryKind, MemoryKindUsage, ModuleRow, ModuleTree
from ipygpumem.features.modules.storages import ModuleInfo, repeated_modules
from ipygpumem.features.modules.tracker import ModuleTracker
from ipygpumem.features.recording_analysis import (
    DeviceRecording,
    EventLookup,
    RecordingAnalysisCollector,
    allocator_bytes,
)
from ipygpumem.snapshot.model.timeline import Ints
from ipygpumem.snapshot.scaling.edits import ModuleCall, StepEdit, checkpoint
from ipygpumem.snapshot.scaling.size_model import SizeModel
from ipygpumem.snapshot.scaling.step import StepRecording
from ipygpumem.snapshot.scaling.step_predictor import StepPredictor
from ipygpumem.snapshot.scaling.step_requests import InitialState, StepRequests

_COLUMNS: tuple[tuple[str, MemoryKind], ...] = (
    ("parameters", "parameters"),
    ("buffers", "buffers"),
    ("gradients", "gradients"),
    ("optimizer", "optimizer state"),
    ("activations", "activations"),
)
_WRAPPER_NOTES = {
    DDP: "the gradient buckets are counted as memory outside the model",
    "FullyShardedDataParallel": "the sharded parameters are stored together and attributed to the wrapped module",
}


class ModulesCollector(RecordingAnalysisCollector):
    section = "modules"

    def __init__(self, tracker: ModuleTracker) -> None:
        self.observer = self._tracker = tracker

    def part(self, recording: DeviceRecording) -> ModuleTree:
        tracker, timeline = self._tracker, recording.timeline
        lookup = EventLookup(timeline, recording.recorder)
        allocations = AttributedAllocations(recording.snapshot, timeline, lookup, tracker)
        at_peak = allocations.alive(timeline.requested.peak()[0])
        at_end = allocations.alive(len(timeline.trace) - 1)
        parts = []
        for kind in MEMORY_KINDS:
            rows = allocations.of_kind(kind)
            parts.append(MemoryKindUsage(kind, allocations.total(at_peak & rows), allocations.total(at_end & rows)))
        advice = attempt(lambda: checkpointing_note(recording, allocations, lookup, tracker)) or ""
        peak_bytes, end_bytes = allocator_bytes(recording.report, timeline)
        _, rounding, pending, allocated = zip(peak_bytes, end_bytes, strict=True)
        return ModuleTree(
            recording.report.name,
            tracker.phases.of_device(timeline.device),
            tuple(parts),
            tuple(_module_rows(allocations, at_peak)),
            rounding,
            pending,
            allocated,
            (*_notes(tracker), *([advice] if advice else [])),
        )


def _notes(tracker: ModuleTracker) -> tuple[str, ...]:
    notes = [tracker.problem] if tracker.problem else []
    if not tracker.calls:
        notes.append(
            "no module of the model was called; calls to copies of the model and to compiled functions are not tracked"
        )
    if any(module.compiled for module in tracker.modules) and cause_recompilation():
        notes.append("this version of PyTorch recompiles modules for each measurement: upgrade PyTorch to avoid this")
    return tuple(notes)


def _module_rows(allocations: AttributedAllocations, at_peak: Mask) -> Iterator[ModuleRow]:
    modules = allocations.modules
    columns: dict[str, list[int]] = {}
    for column, kind in _COLUMNS:
        rows = allocations.of_kind(kind)
        when_largest = allocations.alive(allocations.highest(rows)[0])
        columns[column] = _with_submodules(modules, allocations.by_module(rows & when_largest))
    own_peak = allocations.by_module(at_peak)
    peak = _with_submodules(modules, own_peak)
    temporary = allocations.of_kind("forward, temporary", "recomputed")
    counts = _with_submodules(modules, [1] * len(modules))
    unknown: set[int] = set()  # modules in compiled code whose memory usage is unknown
    for index, module in enumerate(modules):
        if module.parent in unknown or (module.compiled and module.compiled != "inside"):
            unknown.add(index)
        if module.compiled == "compiled" and not allocations.resolved.isdisjoint(range(index, index + counts[index])):
            unknown.discard(index)
        # the indices of submodules follow the index of their parent
        inside = (allocations.module >= index) & (allocations.module < index + counts[index])
        row = ModuleRow(
            path=module.path,
            type=module.type,
            depth=module.path.count(".") + 1 if module.path else 0,
            calls=allocations.calls[index],
            **{column: sizes[index] for column, sizes in columns.items()},
            temporary=allocations.highest(temporary & inside)[1],
            peak=peak[index],
            own=own_peak[index],
            note=_note(module, allocations.recomputed[index], unknown=index in unknown),
        )
        inside_unknown = module.parent in unknown and module.compiled == "inside"
        yield replace(row, activations=None, temporary=None, peak=None, own=None) if inside_unknown else row


def _note(module: ModuleInfo, recomputed: int, *, unknown: bool) -> str:
    notes = [_WRAPPER_NOTES[module.type]] if module.type in _WRAPPER_NOTES else []
    if module.compiled == "compiled":
        notes.append("compiled: the memory usage of the submodules is unknown" if unknown else "compiled")
    elif module.compiled == "inside":
        notes.append("in compiled code")
    if recomputed:
        times = f" {recomputed:,} times" if recomputed > 1 else ""
        notes.append(f"recomputed{times} during backward")
    return "; ".join(notes)


def _with_submodules(modules: list[ModuleInfo], sizes: list[int]) -> list[int]:
    sizes = sizes.copy()
    for index in range(len(sizes) - 1, 0, -1):  # submodules have higher indices than their parent
        sizes[modules[index].parent] += sizes[index]
    return sizes


_MIN_SAVED = 0.05  # smallest relative reduction of the peak for which activation checkpointing is suggested
_MAX_ALLOCATIONS = 200_000
"""Maximum number of allocations in a recording that is replayed. The replay then takes about a second."""


def checkpointing_note(
    recording: DeviceRecording, allocations: AttributedAllocations, lookup: EventLookup, tracker: ModuleTracker
) -> str:
    """Return a sentence on the peak with activation checkpointing of the repeated modules.

    The sentence is empty if the peak would be at most 5% lower, or cannot be predicted.
    """
    snapshot, timeline = recording.snapshot, recording.timeline
    places = {module.path: place for place, module in enumerate(allocations.modules)}
    blocks = []
    for index in repeated_modules(tracker.modules):
        place = places[tracker.modules[index].path]
        if allocations.calls[place] == 1 and not allocations.recomputed[place]:
            blocks.append(index)
    has_backward = any(name == "backward" for name, _, _ in tracker.spans)
    if not blocks or not has_backward or len(allocations.kind) > _MAX_ALLOCATIONS:
        return ""
    step = StepRecording(snapshot, timeline.device)
    parameters = timeline.allocations.size[allocations.of_kind("parameters")]
    converted = np.isin(2 * step.sizes, parameters)  # possibly by autocast, which keeps them during the forward pass
    model = SizeModel.fit(((1, 2),), np.stack([step.sizes, np.where(converted, 1, 2) * step.sizes], axis=1))
    scaled = StepPredictor(model, StepRequests(step, InitialState.at(snapshot, timeline.device, step.first)))
    edit = StepEdit(scaled)
    has_activations = [
        checkpoint(edit, call) for call in _calls(blocks, scaled.step_requests, lookup, tracker, converted)
    ]
    before, after = scaled.predict(1).allocated, edit.apply().predict(1).allocated
    if not any(has_activations) or before - after <= _MIN_SAVED * before:
        return ""
    lists = Counter(tracker.modules[index].path.rpartition(".")[0] for index in blocks)
    names = " and ".join(f"{many(count, 'module')} in {name or 'the model'}" for name, count in lists.items())
    return (
        f"activation checkpointing (torch.utils.checkpoint) of the {names} would lower the peak by "
        f"{size(before - after)} ({1 - after / before:.0%}) to {size(after)}"
    )


def _calls(
    blocks: list[int], requests: StepRequests, lookup: EventLookup, tracker: ModuleTracker, converted: Mask
) -> list[ModuleCall]:
    events = np.asarray(requests.events, np.int64)
    rows, allocations = requests.step.rows, requests.step.timeline.allocations

    def boundary(event: int) -> int:
        return int(np.searchsorted(events, event, side="right"))

    def numbers(call: int) -> Ints:
        event, addresses = lookup.event(tracker.calls[call].at), tracker.values.get(call, [])
        alive = (allocations.start[rows] <= event) & (allocations.end[rows] > event)
        return np.flatnonzero(alive & np.isin(allocations.address[rows], addresses))

    calls: dict[int, list[int]] = {index: [] for index in blocks}
    for number, call in enumerate(tracker.calls):
        if call.module in calls and call.graph is None and "backward" not in call.phases:
            calls[call.module].append(number)
    backward = boundary(min(lookup.event(begin) for name, begin, _ in tracker.spans if name == "backward"))
    result = []
    for index, (first, last) in calls.items():
        begin, end = (boundary(lookup.event(tracker.calls[number].at)) for number in (first, last))
        outputs = numbers(last)
        inside = (requests.start >= begin) & (requests.start < end) & (requests.end >= end)
        inside[outputs] = False
        frees = requests.end[inside & (requests.end >= backward) & (requests.end < len(requests.operations))]
        if len(frees):
            autocast = bool(converted[inside].any())
            first_use = _operation_before(requests.operations, backward, int(frees.min()))
            result.append(ModuleCall(index, begin, end, first_use, numbers(first), outputs, autocast, 0.0))
    return result


def _operation_before(operations: NDArray[np.int32], first: int, free: int) -> int:
    """Return the first event of the operation that ends with the event ``free``, but at least ``first``."""
    while free > first and operations[free - 1] < 0:
        free -= 1
    while free > first and (operations[free - 1] >= 0 or operations[free - 1] == ~operations[free - 2]):
        free -= 1 if operations[free - 1] >= 0 else 2  # a workspace is freed immediately
    return max(free, first)
