"""Memory that activation checkpointing of the repeated modules of a model would save at the peak."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.units import many, size
from ipygpumem.features.modules.attribution import AttributedAllocations, Mask
from ipygpumem.features.modules.storages import repeated_modules
from ipygpumem.features.modules.tracker import ModuleTracker
from ipygpumem.features.recording_analysis import DeviceRecording, EventLookup
from ipygpumem.snapshot.model.timeline import Ints
from ipygpumem.snapshot.scaling.edits import ModuleCall, StepEdit, checkpoint
from ipygpumem.snapshot.scaling.scaled_recording import ScaledStep
from ipygpumem.snapshot.scaling.size_model import SizeModel
from ipygpumem.snapshot.scaling.step import StepRecording
from ipygpumem.snapshot.scaling.step_requests import InitialState, StepRequests

_MIN_SAVED = 0.05
"""Share of the peak that checkpointing must save."""
_MAX_ALLOCATIONS = 200_000
"""Maximum number of allocations of a recording for it to be replayed, which takes about a second."""


def checkpointing_note(
    recording: DeviceRecording, allocations: AttributedAllocations, lookup: EventLookup, tracker: ModuleTracker
) -> str:
    """Return a sentence about the peak with checkpointing of all repeated modules; empty if it saves too little."""
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
    scaled = ScaledStep(model, StepRequests(step, InitialState.at(snapshot, timeline.device, step.first)))
    edit = StepEdit(scaled)
    changed = [checkpoint(edit, call) for call in _calls(blocks, scaled.step_requests, lookup, tracker, converted)]
    before, after = scaled.predict(1).allocated, edit.apply().predict(1).allocated
    if not any(changed) or before - after <= _MIN_SAVED * before:
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
    """Return the calls of the blocks in the forward pass."""
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
        freed = requests.end[inside & (requests.end >= backward) & (requests.end < len(requests.operations))]
        if len(freed):
            autocast = bool(converted[inside].any())
            needed = _operation_before(requests.operations, backward, int(freed.min()))
            result.append(ModuleCall(index, begin, end, needed, numbers(first), outputs, autocast, 0.0))
    return result


def _operation_before(operations: NDArray[np.int32], first: int, free: int) -> int:
    """Return the boundary, not before ``first``, at which the operation starts that ends with the event ``free``.

    An operation of the backward pass first allocates its results and workspaces, and then its arguments are freed.
    """
    while free > first and operations[free - 1] < 0:
        free -= 1
    while free > first and (operations[free - 1] >= 0 or operations[free - 1] == ~operations[free - 2]):
        free -= 1 if operations[free - 1] >= 0 else 2  # a workspace is freed at once
    return max(free, first)
