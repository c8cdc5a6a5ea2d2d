"""Recorded runs of a step, their sizes, and the memory that they may use."""

from __future__ import annotations

import collections
import contextlib
import math
from collections.abc import Callable
from typing import Any, TypeAlias

from ipygpumem.core.errors import OptionError
from ipygpumem.features.fit.advice.observations import StepObservationCollector
from ipygpumem.features.fit.axes import MAX_GROWTH, Size, combined_sizes, size_name, verification_size
from ipygpumem.features.fit.dry.optimizer_state import OptimizerStateTracker
from ipygpumem.features.fit.dry.runner import DryRunner
from ipygpumem.features.fit.model import ProbeRole, ProbeRun
from ipygpumem.features.fit.optimizer_updates import ComputedUpdate, OptimizerUpdateReplacer
from ipygpumem.features.fit.ranks import RankCommunicator
from ipygpumem.features.fit.side_effects import SideEffects
from ipygpumem.features.fit.step_code import StepCode
from ipygpumem.features.fit.step_objects import StepObjects
from ipygpumem.features.fit.step_runner import FitError, MemoryCapacity, StepRunner
from ipygpumem.snapshot.scaling.growth_bounds import growing_bytes
from ipygpumem.snapshot.scaling.step import StepRecording
from ipygpumem.snapshot.scaling.step_predictor import RecordedStepPredictor

_Updates: TypeAlias = OptimizerUpdateReplacer | OptimizerStateTracker

OTHER_RANK = "another rank cannot predict the step: see the result of that rank"
MAX_ERROR = 0.02
"""Relative error of the predicted peak of a run above which the prediction is rejected."""
GROWTH = 2
"""Usual factor between the sizes of successive runs."""
_VISIBLE = 0.1
"""Minimum growth of the peak since the smallest size, as a share of the peak, at which the growth can be checked."""
_FASTEST = 4
"""Power of the size with which the peak is assumed to grow if its growth is too small to be checked."""
_SMALL_GROWTH = (1.5, 1.25, 0)
"""Smaller factors that are tried in order if the next run may need too much memory; 0 selects the next size."""
_SAFETY = 1.6
"""Factor by which quadratic growth of the peak may exceed a linear prediction from two sizes."""


class RecordedRuns:
    """Runs a step at given sizes and records these runs.

    Attributes:
        code, runner, ranks, on: The arguments.
        side_effects: Writes to files and generators that ran, as detected in the first run of the step.
        index: Index of the device whose memory usage is predicted.
        capacity: Memory in bytes that PyTorch can use on the device; None before the runs.
        probes: The recorded runs.
        notes: Sentences for the user about the runs.
        collector: Collector of the recorded runs and of their observations.
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
            self.notes.append(f"The step also uses {', '.join(other_devices)}, whose memory usage is not predicted.")

    def _add(self, size: Size, role: ProbeRole, predicted: int | None) -> ProbeRun | FitError | None:
        __tracebackhide__ = True
        warm_up = role == "warm-up"
        try:
            with self.side_effects if warm_up else contextlib.nullcontext():
                observer = None if warm_up else self.collector.observer()
                step_run = self.runner.run(size, record=not warm_up, observer=observer)
        except FitError as refusal:
            return refusal
        except StopIteration:
            advice = "create the iterator or the batch in the step, because each run takes items"
            return FitError(f"an iterator of the step has no more items in the run at size {size_name(size)}: {advice}")
        if warm_up:
            self._choose_device(step_run.peaks)
            return None
        step, peaks = step_run.step(self.index), step_run.peaks[self.index]
        if not len(step.rows):
            raise OptionError(
                f"{self.code.text} allocates no GPU memory at size {size_name(size)}: use tensors on a GPU"
            )
        self._steps.append((size, step))
        self.collector.add(step, step_run)
        self.probes.append(ProbeRun(size, role, peaks.allocated, peaks.reserved, predicted))
        used_bytes = peaks.allocated - self._before[self.index].allocated
        if len(self.probes) == 1 and used_bytes > self._allowance(self.index):
            return self._too_large(f"the run at size {size_name(size)}", used_bytes)
        return self.probes[-1]

    def _allowance(self, index: int) -> int:
        return int(self._most * self._before[index].free)

    def _too_large(self, subject: str, nbytes: int, verb: str = "needs") -> FitError:
        return self._before[self.index].refusal(subject, nbytes, self._most, verb)

    def _next_size(self, added: Callable[[Size], int], growth: int = GROWTH) -> Size:
        """Return ``growth`` times the largest size so far, or a smaller size if that run may need too much memory.

        ``added`` is a function that returns how many bytes a run at a given size may allocate. Raises `FitError` if
        even a run at the next larger size may need too much memory.
        """
        last = max(size for size, _ in self._steps)
        needed_bytes = 0
        for factor in (growth, GROWTH, *_SMALL_GROWTH):
            least = tuple(max(round(factor * value), value + 1) for value in last)
            size = tuple(axis.at_least(value) for axis, value in zip(self.code.axes, least, strict=True))
            needed_bytes = added(size)
            if size > last and self.ranks.minimum(int(needed_bytes <= self._allowance(self.index))):
                return size
        if needed_bytes <= self._allowance(self.index):
            raise FitError(OTHER_RANK)
        raise self._too_large(f"a run at size {size_name(size)}", needed_bytes, "may need up to")

    def _bound(self, size: Size) -> int:
        """Return an upper bound on the bytes that a run allocates, assuming at most quadratic growth with the size."""
        at, step = self._steps[-1]
        growth = (math.prod(combined_sizes(self.code.axes, at, size, GROWTH)[-1]) / math.prod(at)) ** 2
        used_bytes = self.probes[-1].allocated - self._before[self.index].allocated
        return used_bytes + int(growing_bytes(step, self._leaves) * (growth - 1))

    def _added(self, scaled: RecordedStepPredictor, size: Size) -> int:
        """Return an estimate of the bytes that a run allocates. It is too low only if memory usage grows very fast."""
        allocated, limit = self._before[self.index].allocated, self._allowance(self.index)
        power = 1 if len({at for at, _ in self._steps}) == GROWTH else GROWTH
        bound = scaled.bound(size, allocated + limit, power) if len(size) == 1 else 0
        predicted, smallest = scaled.allocated(size, allocated + limit), self.probes[0].allocated
        return max(int(smallest + _SAFETY * max(predicted - smallest, 0)) - allocated, bound - allocated)

    def _is_visible(self) -> bool:
        """Return whether the part of the peak that grows with the size is large enough to check a prediction."""
        constant = self.probes[0].allocated - self._before[self.index].allocated
        return bool(self.ranks.minimum(int(self._grown() >= _VISIBLE * (constant + self._grown()))))

    def _grown(self) -> int:
        return max(probe.allocated for probe in self.probes) - self.probes[0].allocated

    def _verification_size(self, scaled: RecordedStepPredictor, checked: Size) -> tuple[Size, bool]:
        before = self._before[self.index]
        limit = int((1 - MAX_ERROR) * self._most * min(before.free, (self.capacity or 0) - before.allocated))
        smallest = self.probes[0].allocated - before.allocated
        ratio = (max(limit - smallest, 1) / max(self._grown(), 1)) ** (1 / _FASTEST)
        growth_limit = MAX_GROWTH if self._is_visible() else min(max(ratio, 1), MAX_GROWTH)
        options: dict[str, Any] = {
            "limit": limit,
            "smallest": smallest,
            "growth_limit": growth_limit,
            "ranks": self.ranks,
        }
        return verification_size(scaled, self.code.axes, checked, allocated=before.allocated, **options)
