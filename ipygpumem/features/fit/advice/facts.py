"""Observations of a recorded step: calls of blocks, updates of optimizers, and variables that it does not use."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import RecordingError
from ipygpumem.core.introspection import is_instance
from ipygpumem.features.fit.advice.blocks import find_blocks
from ipygpumem.features.fit.advice.observer import StepObserver
from ipygpumem.features.recording_analysis import EventLookup
from ipygpumem.snapshot.scaling.edits import ModuleCall

if TYPE_CHECKING:
    from ipygpumem.features.fit.advice.blocks import ModelBlockName
    from ipygpumem.features.fit.probes import RecordedStep
    from ipygpumem.features.fit.step_objects import StepObjects
    from ipygpumem.features.fit.update import Updates
    from ipygpumem.measurement.runtime import EventPosition
    from ipygpumem.snapshot.model.timeline import Ints
    from ipygpumem.snapshot.scaling.scaled_recording import ScaledStep
    from ipygpumem.snapshot.scaling.step import StepRecording


_MAX_ITEMS = 1000
"""Lists and dicts with at least this number of items are not searched for tensors."""


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerUpdate:
    """An update of an optimizer. Boundaries are those of `StepEdit`.

    Attributes:
        optimizer: Weak reference to the optimizer.
        begin: Boundary before the update.
        end: Boundary after the update.
        gradients: Allocations of the step that contain gradients.
        old_gradients: Blocks older than the step that contain gradients.
        state: Blocks older than the step that contain the state of the optimizer.
    """

    optimizer: weakref.ref[Any]
    begin: int
    end: int
    gradients: Ints
    old_gradients: Ints
    state: Ints


@dataclass(frozen=True, slots=True, eq=False)
class StepFacts:
    """Observations of a step.

    Attributes:
        blocks: Names of the blocks. The attribute ``block`` of each call is an index of this tuple.
        calls: Calls of blocks whose backward pass was observed.
        updates: Updates of optimizers.
        seconds: Duration of the step without the updates.
        unused: Name of each variable that the step does not use, and the allocated blocks of its tensors.
    """

    blocks: tuple[ModelBlockName, ...] = ()
    calls: tuple[ModuleCall, ...] = ()
    updates: tuple[OptimizerUpdate, ...] = ()
    seconds: float = 0.0
    unused: tuple[tuple[str, Ints], ...] = ()


class StepObservations:
    """Observations of all recorded runs of a step.

    Args:
        torch: The module torch.
        objects: Objects that the step uses.

    Attributes:
        blocks: Modules whose calls are observed.
    """

    def __init__(self, torch: Any, objects: StepObjects) -> None:
        self.blocks = find_blocks(torch, objects.instances, objects.namespaces)
        self._torch, self._objects = torch, objects
        self._recorded: dict[int, RecordedStep] = {}

    def observer(self) -> StepObserver:
        """Return an observer for a run."""
        return StepObserver(self._torch, self.blocks)

    def add(self, step: StepRecording, recorded: RecordedStep) -> None:
        """Add a recorded run."""
        self._recorded[id(step)] = recorded

    def facts(self, scaled: ScaledStep, updates: Updates) -> StepFacts:
        """Return the observations of the run from which a step is predicted."""
        states = {key: self.observer().addresses(values) for key, values in updates.states().items()}
        recorded = self._recorded[id(scaled.step_requests.step)]
        facts = find_facts(scaled, recorded, [block.name for block in self.blocks], states)
        return replace(facts, unused=self._unused(scaled.step_requests.state.state.blocks["address"]))

    def _unused(self, addresses: Ints) -> tuple[tuple[str, Ints], ...]:
        """Return the name of each variable whose tensors the step does not use, and the blocks of these tensors."""
        find, tensors = self.observer().addresses, self._objects.tensors
        used = set(find([tensors, [tensor.grad for tensor in tensors if tensor.is_leaf]]))
        result = []
        for name, value in [item for variables in self._objects.namespaces for item in variables.items()]:
            items = value if type(value) in {list, tuple} else value.values() if type(value) is dict else (value,)
            own = [item for item in items if is_instance(item, self._torch.Tensor)] if len(items) < _MAX_ITEMS else ()
            places = set(find(own)) - used if own and name[0] != "_" and name != "Out" else ()
            if places:
                result.append((name, np.flatnonzero(np.isin(addresses, [*places]))))
        return tuple(result)


def find_facts(
    scaled: ScaledStep, recorded: RecordedStep, blocks: Sequence[ModelBlockName], states: dict[int, list[int]]
) -> StepFacts:
    """Return the observations of the run from which a step is predicted.

    ``states`` contains the addresses of the state of each optimizer, by the ID of the optimizer.
    """
    observer, recorder = recorded.observer, recorded.recorder
    if observer is None or recorder is None:
        return StepFacts()
    requests = scaled.step_requests
    step = requests.step
    allocations = step.timeline.allocations
    number_of = np.full(len(allocations), -1, np.int64)
    number_of[step.rows] = np.arange(len(step.rows))
    older = np.full(len(allocations), -1, np.int64)
    for row, block in requests.older_allocations().items():
        older[row] = block
    events = np.asarray(requests.events, np.int64)
    try:
        lookup = EventLookup(step.timeline, recorder)
    except RecordingError:
        return StepFacts()

    def boundary(position: EventPosition) -> int:
        return int(np.searchsorted(events, lookup.event(position), side="right"))

    def rows(addresses: Iterable[int], position: EventPosition) -> Ints:
        event = lookup.event(position)
        alive = (allocations.start <= event) & (allocations.end > event)
        return np.flatnonzero(alive & np.isin(allocations.address, list(addresses)))

    def numbers(addresses: Iterable[int], position: EventPosition) -> Ints:
        found = number_of[rows(addresses, position)]
        return found[found >= 0]

    calls = [
        ModuleCall(
            call.block,
            boundary(call.begin),
            boundary(call.end),
            boundary(call.backward),
            numbers(call.inputs, call.begin),
            numbers(call.outputs, call.end),
            call.autocast,
            call.seconds,
        )
        for call in observer.calls
        if call.backward is not None
    ]
    updates, addresses = [], requests.state.state.blocks["address"]
    for update in observer.updates:
        if update.end is not None:
            old = older[rows(update.gradients, update.begin)]
            state = np.flatnonzero(np.isin(addresses, states.get(id(update.optimizer), [])))
            found = numbers(update.gradients, update.begin)
            places = boundary(update.begin), boundary(update.end)
            reference = weakref.ref(update.optimizer)
            updates.append(OptimizerUpdate(reference, *places, found, old[old >= 0], state))
    return StepFacts(tuple(blocks), tuple(calls), tuple(updates), observer.seconds)
