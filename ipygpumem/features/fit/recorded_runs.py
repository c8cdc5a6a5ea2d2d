"""Recorded runs of a step, and the memory that these runs may use."""

from __future__ import annotations

import collections
import contextlib
from typing import Any, TypeAlias

from ipygpumem.core.errors import OptionError
from ipygpumem.features.fit.advice.observations import StepObservationCollector
from ipygpumem.features.fit.axes import Size, size_name
from ipygpumem.features.fit.dry.optimizer_state import OptimizerStateTracker
from ipygpumem.features.fit.dry.runner import DryRunner
from ipygpumem.features.fit.model import ProbeRole, ProbeRun
from ipygpumem.features.fit.optimizer_updates import ComputedUpdate, OptimizerUpdateReplacer
from ipygpumem.features.fit.ranks import RankCommunicator
from ipygpumem.features.fit.side_effects import SideEffects
from ipygpumem.features.fit.step_code import StepCode
from ipygpumem.features.fit.step_objects import StepObjects
from ipygpumem.features.fit.step_runner import FitError, MemoryCapacity, StepRunner
from ipygpumem.snapshot.scaling.step import StepRecording

_Updates: TypeAlias = OptimizerUpdateReplacer | OptimizerStateTracker


class RecordedRuns:
    """Runs a step at given sizes and records these runs.

    Attributes:
        code, runner, ranks, on: The arguments.
        side_effects: Writes to files and running generators in the first run of the step.
        index: Index of the device.
        capacity: Memory in bytes that PyTorch can use on the device; None before the runs.
        probes: The recorded runs.
        notes: Sentences for the user about the runs.
        collector: Observations of all recorded runs.
    """

    collector: StepObservationCollector

    def __init__(
        self, code: StepCode, runner: StepRunner | DryRunner, ranks: RankCommunicator, on: int | str | None, most: float
    ) -> None:
        self.code, self.on, self.index = code, on, 0
        self.capacity: int | None = None
        self.probes: list[ProbeRun] = []
        self.notes: list[str] = []
        self.side_effects = SideEffects()
        self.runner, self.ranks, self._most = runner, ranks, most
        self._before: dict[int, MemoryCapacity] = {}
        self._steps: list[tuple[Size, StepRecording]] = []
        self._leaves: collections.Counter[int] = collections.Counter()

    def allows_update(self, update: ComputedUpdate) -> bool:
        """Return whether an optimizer update and the state that it creates fit into the memory that a run may use."""
        return all(update.total(f"cuda:{index}") <= self._allowance(index) for index in self._before)

    def _check_lower_bound(self, objects: StepObjects, updates: _Updates) -> None:
        needed_bytes = dict.fromkeys(self._before, 0)
        for leaf in objects.tensors:
            if leaf.requires_grad and leaf.is_leaf and leaf.grad is None and leaf.device.index in needed_bytes:
                needed_bytes[leaf.device.index] += leaf.numel() * leaf.element_size()
        for update in filter(None, map(updates.prepare, objects.optimizers)):
            for index in needed_bytes:
                needed_bytes[index] += update.total(f"cuda:{index}")
        for index, nbytes in needed_bytes.items():
            if updates.skipped or nbytes > self._allowance(index):
                self.index = index
                raise self._too_large("a step of any size, with its gradients and the optimizer's state,", nbytes)

    def _choose_device(self, peaks: dict[int, Any]) -> None:
        growth = {index: peaks[index].allocated - before.allocated for index, before in self._before.items()}
        self.index = max(growth, key=growth.__getitem__)
        other_devices = [f"cuda:{index}" for index, grown in growth.items() if grown > 0 and index != self.index]
        if other_devices:
            self.notes.append(f"The step also uses {', '.join(other_devices)}, which is not predicted.")

    def _add(self, size: Size, role: ProbeRole, predicted: int | None) -> ProbeRun | FitError | None:
        __tracebackhide__ = True
        warm_up = role == "warm-up"
        try:
            with self.side_effects if warm_up else contextlib.nullcontext():
                observer = None if warm_up else self.collector.observer()
                step_run = self.runner.run(size, record=not warm_up, observer=observer)
        except FitError as refusal:
            return refusal
        if warm_up:
            self._choose_device(step_run.peaks)
            return None
        step, peaks = step_run.step(self.index), step_run.peaks[self.index]
        if not len(step.rows):
            raise OptionError(f"{self.code.text} allocates no GPU memory at size {size_name(size)}")
        self._steps.append((size, step))
        self.collector.add(step, step_run)
        self.probes.append(ProbeRun(size, role, peaks.allocated, peaks.reserved, predicted))
        used_bytes = peaks.allocated - self._before[self.index].allocated
        if len(self.probes) == 1 and used_bytes > self._allowance(self.index):
            return self._too_large(f"the run at size {size_name(size)}", used_bytes)
        return self.probes[-1]

    def _allowance(self, index: int) -> int:
        return int(self._most * self._before[index].free)

    def _too_large(self, subject: str, nbytes: int) -> FitError:
        return self._before[self.index].refusal(subject, nbytes, self._most)
