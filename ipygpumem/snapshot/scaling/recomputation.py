"""Activation checkpointing as a change to the allocations of a step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ipygpumem.snapshot.model.timeline import Ints
from ipygpumem.snapshot.scaling.edits import StepEdit


@dataclass(frozen=True, slots=True, eq=False)
class ModuleCall:
    """A call of a module in the forward pass of a step. Boundaries are those of `StepEdit`.

    Attributes:
        block: Index of the module.
        begin: Boundary at the start of the call.
        end: Boundary at the end of the call.
        backward: Boundary at which the backward pass first needs a saved tensor of the module.
        inputs: Allocations of the step that contain the arguments.
        outputs: Allocations that contain the results.
        autocast: Whether autocast was enabled.
        seconds: Duration of the call in seconds.
    """

    block: int
    begin: int
    end: int
    backward: int
    inputs: Ints
    outputs: Ints
    autocast: bool
    seconds: float


def checkpoint(edit: StepEdit, call: ModuleCall) -> bool:
    """Free the activations of a call after the forward pass, and insert their recomputation in the backward pass.

    As with ``torch.utils.checkpoint.checkpoint(use_reentrant=False)``, the recomputation ends with the last activation
    that the backward pass needs, and the arguments are kept until then. Return whether the call has activations.
    """
    requests = edit.step.step_requests
    start, end = requests.start, requests.end
    inside = np.flatnonzero((start >= call.begin) & (start < call.end))
    inside = inside[np.argsort(start[inside])]
    needed = inside[(end[inside] >= call.backward) & (end[inside] < len(requests.operations))]
    is_output = np.isin(needed, call.outputs)
    if is_output.all():
        return False
    last = int(start[needed].max()) + 1
    copied = inside[start[inside] < last]
    is_needed = np.isin(copied, needed)
    ends = np.where(is_needed, -1, np.minimum(end[copied], last) - call.begin)
    copies = edit.insert(call.backward, copied, start[copied] - call.begin, ends)
    edit.end[copies[is_needed]] = edit.original_end(copied[is_needed])
    edit.end[needed[is_output]] = edit.time(call.backward)
    activations = needed[~is_output]
    freed = np.full(len(activations), edit.time(call.end))
    if call.autocast:  # the converted parameters remain in the cache of autocast until the forward pass ends
        constant = ~edit.grows(activations)
        freed[constant] = edit.time(min(call.backward, requests.backward))
    edit.end[activations] = freed
    until = int(edit.original_end(needed).max())
    kept = call.inputs[end[call.inputs] < len(requests.operations)]
    edit.end[kept] = np.maximum(edit.end[kept], until)
    return True
