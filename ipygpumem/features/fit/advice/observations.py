"""Observations of a recorded step: calls to blocks, optimizer updates, and variables that the step does not use."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import RecordingError
from ipygpumem.core.introspection import is_exactly, is_instance
from ipygpumem.features.fit.advice.model_blocks import find_blocks
from ipygpumem.features.fit.containers import named_values
from ipygpumem.features.recording_analysis import EventLookup
from ipygpumem.snapshot.scaling.edits import ModuleCall
from ipygpumem.snapshot.scaling.step import BACKWARD
from ipygpumem.snapshot.scaling.step_requests import CreatedBlocks

if TYPE_CHECKING:
    import weakref

    from ipygpumem.features.fit.advice.model_blocks import ModelBlockName
    from ipygpumem.features.fit.advice.observer import StepObserver
    from ipygpumem.features.fit.dry.optimizer_state import OptimizerStateTracker
    from ipygpumem.features.fit.dry.runner import DryRun, DryRunner
    from ipygpumem.features.fit.optimizer_updates import OptimizerUpdateReplacer
    from ipygpumem.features.fit.step_objects import StepObjects
    from ipygpumem.features.fit.step_runner import StepRun, StepRunner
    from ipygpumem.measurement.runtime import EventPosition
    from ipygpumem.snapshot.model.timeline import Ints
    from ipygpumem.snapshot.scaling.step import StepRecording
    from ipygpumem.snapshot.scaling.step_predictor import StepPredictor


_MAX_RATIO = 3
"""Highest plausible ratio of the duration of a block to the median duration of the blocks of its type."""
_MAX_ITEMS = 1000
"""Containers with at least this many items are not searched for tensors."""


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerUpdate:
    """An optimizer update, and the allocations that it uses. Boundaries are those of `StepEdit`.

    Attributes:
        optimizer: Weak reference to the optimizer.
        begin: Boundary before the update.
        end: Boundary after the update.
        gradients: Indices of the allocations of the step that contain gradients.
        old_gradients: Indices of the memory blocks older than the step that contain gradients.
        state: Indices of the memory blocks older than the step that contain the state of the optimizer.
        created: The elements of ``state`` that the first update creates, in the order of their creation.
    """

    optimizer: weakref.ref[Any]
    begin: int
    end: int
    gradients: Ints
    old_gradients: Ints
    state: Ints
    created: Ints


@dataclass(frozen=True, eq=False)
class StepObservations:
    """Observations of a step.

    Attributes:
        blocks: Names of the model's blocks. The attribute ``block`` of each call is an index into this tuple.
        calls: Calls to blocks whose backward pass was observed.
        updates: Optimizer updates.
        seconds: Duration of the step without the updates, in seconds; 0 if it is unknown.
        unused: Names of variables that the step does not use, each with the indices of the memory blocks of its
            tensors.
        gradients: Indices of the memory blocks older than the step that contain gradients created by the runs.
        workspaces: By index of each memory block older than the step that contains the workspace of a library, the
            number of allocations that the step makes before it first uses this workspace.
    """

    blocks: tuple[ModelBlockName, ...] = ()
    calls: tuple[ModuleCall, ...] = ()
    updates: tuple[OptimizerUpdate, ...] = ()
    seconds: float = 0.0
    unused: tuple[tuple[str, Ints], ...] = ()
    gradients: Sequence[int] = ()
    workspaces: Mapping[int, int] = field(default_factory=dict)

    @cached_property
    def block_seconds(self) -> dict[int, float]:
        """Duration of the calls to each block in seconds, by block index.

        The first block of a type often takes much longer, because the kernels for this size are loaded. A duration that
        exceeds three times the median of the type is therefore replaced by the median.
        """
        result: dict[int, float] = {}
        for call in self.calls:
            result[call.block] = result.get(call.block, 0.0) + call.seconds
        for kind in {self.blocks[block].type for block in result}:
            blocks = [block for block in result if self.blocks[block].type == kind]
            median = statistics.median_low([result[block] for block in blocks])
            result |= {block: median for block in blocks if result[block] > _MAX_RATIO * median}
        return result

    @property
    def step_seconds(self) -> float:
        """Duration of the step in seconds without optimizer updates, based on `block_seconds`; 0 if it is unknown."""
        excess = sum(call.seconds for call in self.calls) - sum(self.block_seconds.values())
        return self.seconds and self.seconds - excess

    def created_blocks(self, scaled: StepPredictor) -> CreatedBlocks:
        """Return the memory blocks that the first run creates and later runs keep.

        These are the optimizer state, gradients and, in runs on fake tensors, workspaces of libraries.
        The first run creates a gradient where later runs allocate a temporary gradient that is added to the existing
        gradient. Gradients of the same size are interchangeable.
        """
        requests = scaled.step_requests
        sources = requests.retained.sources
        begins: dict[int, tuple[int, int]] = {}
        for block, count in self.workspaces.items():
            begins[block] = int(requests.start[count - 1]) + 1 if count else 0, -1
        for update in self.updates:
            for block in update.created[sources[update.created] < 0].tolist():
                begins.setdefault(block, (update.begin, -1))
        is_temporary = (requests.end < len(requests.operations)) & ~scaled.model.grows
        is_temporary &= np.asarray([phase == BACKWARD for phase in requests.step.phases], np.bool_)
        temporaries: dict[int, list[int]] = {}
        for number in np.flatnonzero(is_temporary)[::-1].tolist():
            temporaries.setdefault(int(requests.step.sizes[number]), []).append(number)
        for block in self.gradients:
            nbytes = int(requests.state.state.blocks["requested"][block])
            if sources[block] < 0 and temporaries.get(nbytes):
                number = temporaries[nbytes].pop()
                begins.setdefault(block, (int(requests.start[number]), number))
        created = sorted(((begin, block, number) for block, (begin, number) in begins.items()), key=itemgetter(0))
        boundaries, blocks, numbers = np.asarray(created, np.int64).reshape(-1, 3).T
        return CreatedBlocks(blocks, boundaries, numbers)


class StepObservationCollector:
    """Collects the recorded runs of a step, and observes the run from which the step is predicted.

    Args:
        runner: Runner of the step.
        objects: Objects that are reachable from the code of the step.

    Attributes:
        blocks: Modules whose calls are observed.
    """

    def __init__(self, runner: StepRunner | DryRunner, objects: StepObjects) -> None:
        self.blocks = find_blocks(runner.torch, objects.instances, objects.namespaces)
        self._runner, self._objects = runner, objects
        self._recorded: list[tuple[StepRecording, StepRun | DryRun]] = []

    def observer(self) -> StepObserver:
        return self._runner.observer(self.blocks)

    def add(self, step: StepRecording, step_run: StepRun | DryRun) -> None:
        self._recorded.append((step, step_run))

    def observations(
        self,
        scaled: StepPredictor,
        updates: OptimizerUpdateReplacer | OptimizerStateTracker,
        gradients: Iterable[Any] = (),
    ) -> StepObservations:
        """Return the observations of the run from which the step is predicted.

        Args:
            scaled: The prediction.
            updates: Object whose method ``states`` returns the state of the optimizers.
            gradients: Gradients that the runs have created.
        """
        requests, find = scaled.step_requests, self.observer().storage_ids
        step_run = next(run for step, run in self._recorded if step is requests.step)
        last = next(step for step, _ in self._recorded if step.snapshot is requests.state.snapshot)
        ids = last.ids[requests.state.state.blocks["row"]]
        block_of = {number: block for block, number in enumerate(ids.tolist())}

        def blocks(tensors: Any) -> Ints:
            indices = dict.fromkeys(block_of[number] for number in find(tensors) if number in block_of)
            return np.asarray([*indices], np.int64)

        states = {key: (np.sort(blocks(tensors)), blocks(new)) for key, (tensors, new) in updates.states().items()}
        observations = find_observations(scaled, step_run, [block.name for block in self.blocks], states)
        workspaces = {block_of[key]: count for key, count in step_run.workspaces.items() if key in block_of}
        return replace(
            observations, unused=self._unused(ids), gradients=blocks([*gradients]).tolist(), workspaces=workspaces
        )

    def _unused(self, ids: Ints) -> tuple[tuple[str, Ints], ...]:
        """Return names of variables whose tensors the step does not use, and the indices of their memory blocks."""
        find, tensors = self.observer().storage_ids, self._objects.tensors
        used_ids = set(find([tensors, [tensor.grad for tensor in tensors if tensor.is_leaf]]))
        result = []
        for name, value in [item for variables in self._objects.namespaces for item in named_values(variables)]:
            items = value if is_exactly(value, (list, tuple)) else value.values() if type(value) is dict else (value,)
            tensor_class = self._runner.torch.Tensor
            own_tensors = [item for item in items if is_instance(item, tensor_class)] if len(items) < _MAX_ITEMS else ()
            places = set(find(own_tensors)) - used_ids if own_tensors and name[:1] != "_" and name != "Out" else ()
            if places:
                result.append((name, np.flatnonzero(np.isin(ids, [*places]))))
        return tuple(result)


def find_observations(
    scaled: StepPredictor,
    step_run: StepRun | DryRun,
    blocks: Sequence[ModelBlockName],
    states: dict[int, tuple[Ints, Ints]],
) -> StepObservations:
    """Return the observations of the run from which the step is predicted.

    The result is empty if the run was not observed, or if the observed calls cannot be located in its events.

    Args:
        scaled: The prediction.
        step_run: The run from which the step is predicted.
        blocks: Names of the model's blocks.
        states: By optimizer ID, a tuple of the indices of the memory blocks that contain its state, and the indices of
            the blocks that its first update creates.
    """
    observer, recorder = step_run.observer, step_run.recorder
    if observer is None or recorder is None:
        return StepObservations()
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
        last_event = EventLookup(step.timeline, recorder).event
    except RecordingError:
        return StepObservations()

    def boundary(position: EventPosition) -> int:
        return int(np.searchsorted(events, last_event(position), side="right"))

    def rows(ids: Iterable[int], position: EventPosition) -> Ints:
        event = last_event(position)
        alive = (allocations.start <= event) & (allocations.end > event)
        return np.flatnonzero(alive & np.isin(step.ids, list(ids)))

    def numbers(ids: Iterable[int], position: EventPosition) -> Ints:
        allocation_numbers = number_of[rows(ids, position)]
        return allocation_numbers[allocation_numbers >= 0]

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
    updates = []
    for update in observer.updates:
        if update.end is not None:
            old = older[rows(update.gradients, update.begin)]
            empty = np.zeros(0, np.int64)
            state, created = states.get(id(update.optimizer()), (empty, empty))
            gradients = numbers(update.gradients, update.begin)
            boundaries = boundary(update.begin), boundary(update.end)
            updates.append(OptimizerUpdate(update.optimizer, *boundaries, gradients, old[old >= 0], state, created))
    return StepObservations(tuple(blocks), tuple(calls), tuple(updates), observer.seconds)
