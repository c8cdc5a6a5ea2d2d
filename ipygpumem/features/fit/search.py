"""Selection of the sizes at which a step runs, so that its memory usage can be predicted and the prediction checked."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Generator
from typing import Any, TypeAlias

from ipygpumem.core.errors import SnapshotError
from ipygpumem.core.units import precise_size
from ipygpumem.core.units import size as size_text
from ipygpumem.features.fit.advice.observations import StepObservationCollector, StepObservations
from ipygpumem.features.fit.axes import (
    EXTRAPOLATION,
    Size,
    combined_sizes,
    fitted_size,
    size_name,
    third_value_sizes,
)
from ipygpumem.features.fit.dry.optimizer_state import OptimizerStateTracker
from ipygpumem.features.fit.dry.runner import DryRunner
from ipygpumem.features.fit.model import ProbeRole, ProbeRun
from ipygpumem.features.fit.optimizer_updates import OptimizerUpdateReplacer
from ipygpumem.features.fit.ranks import RankCommunicator
from ipygpumem.features.fit.recorded_runs import GROWTH, MAX_ERROR, OTHER_RANK, RecordedRuns
from ipygpumem.features.fit.state import SavedState
from ipygpumem.features.fit.step_code import StepCode
from ipygpumem.features.fit.step_objects import StepObjects
from ipygpumem.features.fit.step_runner import FitError, StepRunner
from ipygpumem.snapshot.scaling.results import PredictionFailedError
from ipygpumem.snapshot.scaling.run_selection import predict_runs, releases_once
from ipygpumem.snapshot.scaling.step import OPTIMIZER
from ipygpumem.snapshot.scaling.step_predictor import RecordedStepPredictor
from ipygpumem.snapshot.scaling.step_requests import InitialState

_Request: TypeAlias = tuple[Size, ProbeRole, "int | None"]
_Runs: TypeAlias = Generator[_Request, Any, None]
_Predicted: TypeAlias = Generator[_Request, Any, "tuple[RecordedStepPredictor, tuple[str, ...]]"]
_Updates: TypeAlias = OptimizerUpdateReplacer | OptimizerStateTracker

_MAX_GROWTH_ERROR = 0.1
"""Error, relative to the growth of the peak, above which a prediction is rejected if `_is_visible` returns True."""
_IRREGULAR = 0.1
"""Relative error of the peak of the verification below which an additional run can confirm a new prediction."""
_CHECKS = (2, 2, 4, 4, 2, 2)
"""Factors between the sizes of successive runs that check the prediction, until a run confirms it."""
_MAX_STEPS = 6
"""Maximum number of runs at increasing sizes after a run has confirmed the prediction."""
_LARGEST = 1 << 45
"""Number of bytes above which predictions and their bounds are compared without replays."""
_MAX_DIFFERENCE = 0.005
"""Difference between two runs at the same size, relative to the peak, above which the step cannot be predicted."""


class SizeSearch(RecordedRuns):
    """Selects sizes, runs a step at these sizes, and predicts the memory usage of the step from these runs.

    Attributes:
        scaled: The prediction; None if there is none.
        observations: Observations of the run from which the step is predicted.
        is_repeatable: Whether it is known that all runs at the same size allocate the same memory. If not, two runs at
            the smallest size are compared.
        other attributes: See `RecordedRuns`.
    """

    is_repeatable = False
    scaled: RecordedStepPredictor | None = None

    def __init__(
        self, code: StepCode, runner: StepRunner | DryRunner, ranks: RankCommunicator, on: int | str | None, most: float
    ) -> None:
        super().__init__(code, runner, ranks, on, most)
        self.observations = StepObservations()
        self._confirmed = 0  # size of the last run that confirmed a prediction from much smaller sizes

    def run(self, saved: SavedState, updates: _Updates) -> str:
        """Run the step at several sizes. Return the reason if the prediction fails, or an empty string."""
        __tracebackhide__ = True  # omit this function from tracebacks of errors in the step
        self.collector = StepObservationCollector(self.runner, saved.objects)
        self.side_effects.watch(saved.objects.iterators)
        probe: Any = None
        try:
            with contextlib.closing(self._runs(saved.objects, updates)) as runs:
                while (request := self._request(runs, probe)) is not None:
                    self.runner.release(saved)
                    probe = self._add(*request)  # all runs have the same call stack, by which allocations are matched
            if self.scaled is not None:
                self.observations = self.collector.observations(self.scaled, updates, saved.new_gradients())
                created = self.observations.created_blocks(self.scaled)
                once = self.runner.torch.backends.cudnn.benchmark and releases_once(self._steps)
                self.scaled = self.scaled.repeated(created, releases_once=once)
        except FitError as refusal:
            return str(refusal)
        finally:
            if updates.run:
                names = ", ".join(sorted(updates.run))
                self.notes.append(f"The update of {names} cannot be computed, so it was run and then undone.")
        return ""

    def _request(self, runs: _Runs, probe: Any) -> _Request | None:
        """Return the next run, or None after the last run. Raises `FitError` if any rank cannot predict the step."""
        request, refusal = None, probe if isinstance(probe, FitError) else None
        try:
            request = None if refusal else runs.send(probe)
        except StopIteration:
            pass
        except (FitError, PredictionFailedError, SnapshotError) as error:
            refusal = FitError(str(error))
        if not self.ranks.minimum(int(refusal is None)):
            raise refusal or FitError(OTHER_RANK)
        return request

    def _runs(self, objects: StepObjects, updates: _Updates) -> _Runs:
        """Yield the size, the role and the predicted peak of each run, and receive the resulting `ProbeRun`."""
        __tracebackhide__ = True
        self._before = {index: self.runner.available(index) for index in self.runner.devices()}
        self.index = self.runner.current_device()
        self._leaves.update(tensor.numel() * tensor.element_size() for tensor in objects.tensors if tensor.is_leaf)
        self._check_lower_bound(objects, updates)
        first = tuple(axis.first_run for axis in self.code.axes)
        yield first, "warm-up", None
        if updates.skipped:
            raise FitError("the optimizer's state and update need too much memory: run one step first")
        yield first, "fit", None
        second = self._next_size(self._bound)
        for size in combined_sizes(self.code.axes, first, second, GROWTH):
            yield size, "fit", None
        if not self.is_repeatable:
            yield first, "again", None
            self._check_repeatable(first, _MAX_DIFFERENCE)
        self.capacity = self.runner.limit(self.index, self.on)
        yield from self._checks(self._predict())
        self.capacity = self.runner.limit(self.index, self.on)

    def _check_repeatable(self, size: Size, tolerance: float) -> None:
        """Raise `FitError` if the peaks of the first and the last run at a size differ too much.

        ``tolerance``: Largest difference, as a share of the lower peak.
        """
        first, *_, last = (step for at, step in self._steps if at == size)
        difference = abs(first.own_peak - last.own_peak)
        if difference > tolerance * min(first.peak, last.peak):
            advice = "make the step allocate the same memory in each run"
            if self._searches_algorithms():
                advice += (
                    ", for example with torch.backends.cudnn.benchmark = False: cuDNN's search for fast algorithms"
                    " uses workspaces in the first run at a size"
                )
            elif len({OPTIMIZER in step.phases for _, step in self._steps}) > 1:
                advice = (
                    "update the optimizer in every run, after the gradients of all parts of the batch were added up"
                )
            runs = f"two runs at size {size_name(size)} differ by {precise_size(difference)} at their peaks"
            raise FitError(f"{runs}: {advice}")

    def _searches_algorithms(self) -> bool:
        return bool(self.runner.torch.backends.cudnn.benchmark) and not self.runner.keeps_contents

    def _predict(self, until: Size | None = None) -> RecordedStepPredictor:
        """Predict the step from all runs, or from those at sizes up to ``until``, which must include the last run."""
        step = self._steps[-1][1]
        state = InitialState.at(step.snapshot, step.device, len(step.timeline.trace) - 1)
        return predict_runs([run for run in self._steps if until is None or run[0] <= until], state)

    def _checks(self, scaled: RecordedStepPredictor) -> _Runs:
        """Yield runs that check the prediction, and set `scaled`. Raises `FitError` if they confirm no prediction."""
        scaled, reasons = yield from self._small_checks(scaled)
        check = max(size for size, _ in self._steps)
        refusals, another_path = reasons, False
        for _ in () if reasons else range(_MAX_STEPS):
            size, verifies = self._verification_size(scaled, check)
            beside = len(size) == 1 and size[0] < EXTRAPOLATION * check[0] and not self._confirmed
            if size == check or (verifies and beside and self._fitted_size()):
                break
            role: ProbeRole = "verification" if verifies else "check"
            expected, previous = scaled.predict(size).allocated, scaled
            scaled, reasons = yield from self._checked(size, role, scaled, keep=verifies)
            refusals = reasons
            middle = self.code.axes[0].at_least(-(-size[0] // GROWTH))
            irregular = abs(self.probes[-1].allocated / expected - 1) < _IRREGULAR  # otherwise, another path was taken
            another_path = verifies and not self.ranks.minimum(int(irregular))
            again = verifies and self.ranks.minimum(int(irregular and not reasons and scaled is previous))
            if again and len(size) == 1 and check[0] < middle < size[0]:
                scaled, refusals = yield from self._checked((middle,), "check", scaled, keep=True)
            if verifies or size < check or (len(size) > 1 and not self.ranks.minimum(int(not scaled.reasons))):
                break
            check = size
        far = max(size for size, _ in self._steps)[0] >= EXTRAPOLATION * max(self._confirmed, 1)
        if len(check) == 1 and far and not another_path:
            scaled, refusals = yield from self._held_out(scaled, refusals)
        new = (self.code.axes[0].at_most(max(size for size, _ in self._steps)[0] - 1) or 0,)
        is_new = new[0] > self._steps[0][0][0] and all(size != new for size, _ in self._steps)
        if self._searches_algorithms() and len(check) == 1 and is_new and not refusals:
            # the sizes so far are mostly multiples of each other, for which cuDNN may search among other algorithms
            scaled, refusals = yield from self._checked(new, "verification", scaled, keep=True)
        if refusals:
            raise FitError(" ".join(refusals))
        self.scaled = scaled

    def _small_checks(self, scaled: RecordedStepPredictor) -> _Predicted:
        """Yield runs at larger sizes until a run confirms the prediction. The result is that of `_checked`.

        The number of checks is limited. For two variables, there is only one.
        """
        reasons: tuple[str, ...] = ()
        for growth in _CHECKS:
            try:
                check = self._next_size(functools.partial(self._added, scaled), growth)
            except FitError as refusal:
                if len(self.code.axes) == 1 and reasons:
                    break  # runs at smaller sizes may show that the last run can be predicted
                raise FitError(" ".join(reasons) or str(refusal)) from None
            scaled, reasons = yield from self._checked(check, "check", scaled)
            if not reasons or len(check) > 1:
                break
        return scaled, reasons

    def _fitted_size(self) -> int:
        return fitted_size(self.code.axes[0], [size[0] for size, _ in self._steps])

    def _held_out(self, scaled: RecordedStepPredictor, reasons: tuple[str, ...]) -> _Predicted:
        """Yield a run at `_fitted_size`, and then the largest run again, to check a prediction from the smaller runs.

        Both are repeated while the prediction is wrong and another size is left. ``reasons`` states why the prediction
        has been unreliable so far. If it is empty, no run is yielded if the axis has no larger size, or if no size is
        left and the prediction equals its upper bound. Otherwise, `FitError` is raised if no size is left.
        """
        first, largest = self._steps[0][0], max(size for size, _ in self._steps)
        fitted, double = self._fitted_size(), (GROWTH * largest[0],)
        is_bounded = scaled.bound(double, _LARGEST) <= scaled.allocated(double, _LARGEST)
        certain = self.code.axes[0].last <= largest[0] or (not fitted and is_bounded)
        if not reasons and self.ranks.minimum(int(certain)):
            return scaled, ()
        if not fitted:
            text = f"the runs, at sizes {first[0]:,} to {largest[0]:,}, are too close together to check a prediction"
            raise FitError(f"{text} for larger sizes: begin the range at a smaller size")
        while True:
            yield (fitted,), "fit", None
            smaller = self._predict((int(largest[0] / EXTRAPOLATION),))
            scaled, reasons = yield from self._checked(largest, "verification", smaller, keep=True)
            self._check_repeatable(largest, MAX_ERROR)  # the first run at a size may need more memory
            fitted = self._fitted_size()
            if not reasons or any(size == (fitted,) for size, _ in self._steps):
                return scaled, reasons

    def _checked(self, size: Size, role: ProbeRole, scaled: RecordedStepPredictor, *, keep: bool = False) -> _Predicted:
        """Yield a run. Return the new prediction from all runs, and the reasons why the prediction is unreliable.

        If ``keep`` is true, and the old prediction is correct but the new one is unreliable, the old one is returned.
        If the prediction for two variables is wrong or unreliable, the memory usage may be a quadratic function of the
        first variable. To determine this function, further runs are yielded.
        """
        last = max(size for size, _ in self._steps)
        probe = yield size, role, scaled.predict(size).allocated
        difference = abs((probe.predicted or 0) - probe.allocated)
        grown, visible = probe.allocated - self.probes[0].allocated, self._is_visible()
        wrong = difference > min(MAX_ERROR * probe.allocated, _MAX_GROWTH_ERROR * grown if visible else math.inf)
        updated = self._predict()
        if keep and not wrong and updated.reasons:
            updated = scaled
        error = f"more than {MAX_ERROR:.0%}"
        if difference <= MAX_ERROR * probe.allocated:
            part = f"the {size_text(grown)} by which the peak has grown since the smallest size"
            error = f"{size_text(difference)}, more than {_MAX_GROWTH_ERROR:.0%} of {part}"
        values = f"predicted {precise_size(probe.predicted or 0)}, measured {precise_size(probe.allocated)}"
        reason = f"The prediction for the size {size_name(size)} differs from the measured value by {error}: {values}."
        reasons = (*((reason,) if wrong else ()), *updated.reasons[:1])
        if not self.ranks.minimum(int(not reasons)):
            self.probes[-1] = ProbeRun(size, "fit", probe.allocated, probe.reserved)
            reasons = reasons or (OTHER_RANK,)
            additional = third_value_sizes(self.code.axes, [size for size, _ in self._steps])
            for combination in additional:
                yield combination, "fit", None
            updated = self._predict() if additional else updated
            reasons = () if self.ranks.minimum(int(bool(additional) and not updated.reasons)) else reasons
        if reasons or size[0] >= EXTRAPOLATION * last[0]:
            self._confirmed = 0 if reasons else size[0]
        return updated, reasons
