"""Compute the memory usage of a tracked model by phase, kind and module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ipygpumem.core.introspection import attempt
from ipygpumem.features.modules.attribution import DDP, AttributedAllocations, Mask
from ipygpumem.features.modules.checkpointing import checkpointing_note
from ipygpumem.features.modules.hooks import cause_recompilation
from ipygpumem.features.modules.model import MEMORY_KINDS, MemoryKind, MemoryKindUsage, ModuleRow, ModuleTree
from ipygpumem.features.modules.storages import ModuleInfo
from ipygpumem.features.modules.tracker import ModuleTracker
from ipygpumem.features.recording_analysis import (
    DeviceRecording,
    EventLookup,
    RecordingAnalysisCollector,
    allocator_bytes,
)

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
    """Collector of the memory usage of a tracked model by phase of a training step, by kind and by module."""

    section = "modules"

    def __init__(self, tracker: ModuleTracker) -> None:
        self.observer = self._tracker = tracker

    def part(self, recording: DeviceRecording) -> ModuleTree:
        """Return the model's memory usage on a device; raise `RecordingError` if counters and events do not match."""
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
        notes.append("no module of the model was called; calls to its copies and to compiled functions are not tracked")
    if any(module.compiled for module in tracker.modules) and cause_recompilation():
        notes.append(
            "this version of PyTorch recompiles compiled modules for each measurement: upgrade PyTorch to avoid this"
        )
    return tuple(notes)


def _module_rows(allocations: AttributedAllocations, at_peak: Mask) -> Iterator[ModuleRow]:
    modules = allocations.modules
    columns: dict[str, list[int]] = {}
    for column, kind in _COLUMNS:
        rows = allocations.of_kind(kind)
        when_largest = allocations.alive(allocations.highest(rows)[0])
        columns[column] = _with_submodules(modules, allocations.by_module(rows & when_largest))
    own = allocations.by_module(at_peak)
    peak = _with_submodules(modules, own)
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
            own=own[index],
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
