"""Run a step at small sizes, measure its peaks, and record its allocations."""

from __future__ import annotations

import contextlib
import gc
import re
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import OptionError, RecordingError
from ipygpumem.core.introspection import collect_garbage, pause_gc
from ipygpumem.core.reading import AllocatorCounters
from ipygpumem.core.units import parse_size, size_with_unit
from ipygpumem.core.units import size as size_text
from ipygpumem.features.fit.advice.contexts import AUTOCAST, OFFLOADING
from ipygpumem.features.fit.advice.observer import StepObserver
from ipygpumem.features.fit.axes import Size, size_name
from ipygpumem.features.fit.optimizer_updates import ComputedUpdate, OptimizerUpdateReplacer
from ipygpumem.features.fit.step_code import StepCode, check_result
from ipygpumem.measurement.allocation_history import RecordingOptions, recording_problem
from ipygpumem.measurement.recorder import AllocationRecorder
from ipygpumem.measurement.runtime import Runtime
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.scaling.step import StepRecording
from ipygpumem.sources import allocator, pytorch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ipygpumem.features.fit.advice.model_blocks import ModelBlock
    from ipygpumem.features.fit.state import SavedState
    from ipygpumem.features.fit.step_objects import StepObjects


MAX_SHARE = 0.5
"""Largest share of the free memory that a run may use."""
_CYCLES_SHARE = 0.02  # memory freed with reference cycles is reported if it exceeds this share of the peak


class FitError(Exception):
    """Raised if the memory usage of a step cannot be predicted. The message contains the reason."""


@dataclass(frozen=True, slots=True)
class MemoryCapacity:
    """The memory of a device that PyTorch can use, in bytes.

    Attributes:
        limit: Memory that PyTorch can use, including the memory that it has reserved.
        allocated: Part of ``limit`` that is allocated.
    """

    limit: int
    allocated: int

    @property
    def free(self) -> int:
        """Memory that PyTorch can still allocate, in bytes."""
        return self.limit - self.allocated

    def refusal(self, subject: str, nbytes: int, most: float, verb: str = "needs") -> FitError:
        """Return an error whose message is that ``subject`` needs more than the share ``most`` of the free memory."""
        share = f"{100 * most:g}% of the free {size_text(self.free)}"
        suggestion = "" if most >= MAX_SHARE else ": allow up to half with --most 50% (most=0.5)"
        return FitError(f"{subject} {verb} {size_text(nbytes)}, more than {share}{suggestion}")


@dataclass(frozen=True, slots=True)
class StepRun:
    """The result of one run of the step.

    Attributes:
        peaks: Peak counters by device index.
        snapshot: The recorded allocations; None if the run was not recorded.
        recorder: The recorder; None if the run was not recorded.
        observer: Observer of the calls and updates in the run; None if the run was not observed.
        workspaces: Empty, unlike in `DryRun`: libraries have allocated their workspaces before the run was recorded.
    """

    peaks: dict[int, AllocatorCounters]
    snapshot: Snapshot | None
    recorder: AllocationRecorder | None = None
    observer: StepObserver | None = None
    workspaces: Mapping[int, int] = field(default_factory=dict)

    def step(self, device: int) -> StepRecording:
        """Return the events of a recorded run on a device, except for the release of PyTorch's cache after the run."""
        if self.snapshot is None:
            raise ValueError("the run was not recorded")
        action = self.snapshot.timelines[device].trace.action
        step_events = np.flatnonzero(np.isin(action, (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)))
        return StepRecording(self.snapshot, device, last=int(step_events[-1]) if len(step_events) else None)


class StepRunner:
    """Runs a step on the GPU and measures its memory usage. Raises `RecordingError` if PyTorch cannot use a GPU.

    Attributes:
        torch: The module torch.
        context: Function that takes the runner and returns the context manager in which the step runs.
    """

    contexts = (AUTOCAST, OFFLOADING)
    """Changes that can be predicted by running the step in a context manager."""
    keeps_contents = False
    """Whether runs leave the contents of existing tensors unchanged."""

    def __init__(self, runtime: Runtime, code: StepCode) -> None:
        problem = pytorch.problem(load=True)
        if problem:
            hint = "to estimate the memory usage without a GPU, use --dry --on '24 GiB'"
            raise RecordingError(f"the step must run on a GPU, and {problem}; {hint}")
        self.torch = sys.modules["torch"]
        self._runtime = runtime
        self._code = code
        self._collects = gc.isenabled()
        self._shares_recording = False
        self._observer: StepObserver | None = None
        self._user_stats: dict[int, Any] = {}
        self._cycles = (0, "")
        self.context: Callable[[Any], Any] = contextlib.nullcontext

    def start(self) -> None:
        """Check that allocations can be recorded, and create the CUDA context if it does not exist yet.

        Raises:
            FitError: Allocations cannot be recorded, or a CUDA graph is being captured.
        """
        torch = self.torch
        torch.cuda.init()
        if pytorch.is_capturing(torch):
            raise FitError("a CUDA graph is being captured: run fit before or after the capture")
        problem = recording_problem()
        if problem:
            raise FitError(problem)
        self._shares_recording = self._runtime.active_recording.has_options(RecordingOptions())
        if allocator.is_recording() and not self._shares_recording:
            raise FitError(
                "allocation history is being recorded: before running fit, stop the recording with "
                "%gpumem record stop or torch.cuda.memory._record_memory_history(enabled=None)"
            )
        torch.cuda.synchronize()  # creates the context
        collect_garbage()  # otherwise, the first run would free unreachable objects of the program and count them
        peaks = self._runtime.peaks
        peaks.install()
        scope = peaks.scope()
        for index in pytorch.devices_in_use():
            peaks.enter(scope, index, reset=True)  # saves the peaks for the program
        peaks.drop(scope)
        self._user_stats = peaks.user_stats()

    def run(self, size: Size, *, record: bool = False, observer: StepObserver | None = None) -> StepRun:
        """Run the step once.

        Args:
            size: Size of the step.
            record: Whether to record the allocations.
            observer: Observer of the calls and updates in the run; None if they are not observed.

        Raises:
            FitError: The step ran out of memory, or its allocations could not be recorded.
            OptionError: The step returned a generator or coroutine, whose code has not run.
        """
        __tracebackhide__ = True
        peaks, torch, self._observer = self._runtime.peaks, self.torch, observer
        recorder = AllocationRecorder(self._runtime) if record else None
        out_of_memory = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
        scope = peaks.scope()
        try:
            for index in pytorch.devices_in_use():
                peaks.discard(index)
                peaks.enter(scope, index, reset=False)
            if recorder is not None:
                recorder.start()
            # garbage collection at different times would make runs differ
            with pause_gc():
                with observer or contextlib.nullcontext(), self.context(self):
                    check_result(self._code.text, self._code.run(size))
                after = {index: peaks.leave(scope, index).peak for index in pytorch.devices_in_use()}
                reached = after | scope.reached  # the step itself may have reset the peaks
                before = self._allocated()
                collect_garbage()  # frees reference cycles of this run and of the objects that it has replaced
                freed = before - self._allocated()
            if freed > _CYCLES_SHARE * sum(counters.allocated for counters in reached.values()):
                self._cycles = max(self._cycles, (freed, size_name(size)))
            torch.cuda.empty_cache()  # the next run may be unable to use the blocks that this run has cached
            snapshot = None if recorder is None else self._snapshot(recorder, size)
            return StepRun(reached, snapshot, recorder, observer)
        except out_of_memory as error:
            tried = re.search(r"Tried to allocate [\d.]+ \w+", str(error))
            message = f" ({tried[0][0].lower()}{tried[0][1:]})" if tried else ""
            raise FitError(f"the step ran out of memory at size {size_name(size)}{message}") from None
        finally:
            peaks.drop(scope)
            if recorder is not None:
                recorder.stop()
            collect_garbage(1)

    def _allocated(self) -> int:
        return sum(map(self.torch.cuda.memory_allocated, pytorch.devices_in_use()))

    def observer(self, blocks: Iterable[ModelBlock]) -> StepObserver:
        return StepObserver(self.torch, blocks)

    def _snapshot(self, recorder: AllocationRecorder, size: Size) -> Snapshot:
        info = recorder.save(None, sources=self._code.sources, numbers=self._code.numbers)
        if recorder.snapshot is None or info.error:
            raise FitError(f"recording allocations at size {size_name(size)} failed: {info.error}")
        if info.dropped or (info.dropped is None and self._shares_recording):
            limit = self._runtime.active_recording.max_entries
            other = ", or turn oom_snapshot or the other recording off" if self._shares_recording else ""
            raise FitError(f"the recording is limited to {limit:,} allocator events: use a shorter step{other}")
        return Snapshot.load(recorder.snapshot)

    def release(self, saved: SavedState) -> None:
        """Free the memory of the tensors that the step has replaced and that are not in use otherwise."""
        if saved.free_replaced_tensors():
            self.torch.cuda.empty_cache()

    def close(self) -> list[str]:
        """Remove the effects of the runs on PyTorch's peak counters and cache, and finish an interrupted run.

        Return sentences for the user about reference cycles that the step has left.
        """
        if not self._shares_recording:
            self._runtime.active_recording.close()
        if self._observer is not None:
            self._observer.close()
        if self._collects:
            gc.enable()
        collect_garbage(1)
        self.torch.cuda.empty_cache()  # predictions assume that the program starts without cached memory of the runs
        for index in pytorch.devices_in_use():
            with contextlib.suppress(RuntimeError):
                self._runtime.peaks.discard(index)
        self._runtime.peaks.restore_user_stats(self._user_stats)
        if self.context is OFFLOADING.manager:
            with contextlib.suppress(AttributeError):  # not all versions of PyTorch can free cached host memory
                self.torch._C._host_emptyCache()
        freed, at = self._cycles
        text = (
            f"The step leaves reference cycles with tensors ({size_text(freed)} at size {at}), which Python frees "
            "at an unknown time: the predictions do not include them. Call gc.collect() at the end of the step."
        )
        return [text] if freed else []

    def updates(self, _: StepObjects, allowed: Callable[[ComputedUpdate], bool]) -> OptimizerUpdateReplacer:
        """Return the context manager that replaces optimizer updates. See `OptimizerUpdateReplacer` for ``allowed``."""
        return OptimizerUpdateReplacer(self.torch, allowed)

    def describe(self, index: int, on: int | str | None) -> tuple[str, str]:
        device = self._runtime.monitor.devices.get(index)
        label = "" if device is None else device.label
        return f"cuda:{index}", label if on is None else f"{label}, for a GPU with {size_with_unit(on)}"

    def devices(self) -> list[int]:
        return pytorch.devices_in_use()

    def current_device(self) -> int:
        return int(self.torch.cuda.current_device())

    def available(self, index: int) -> MemoryCapacity:
        """Return the memory of a device that PyTorch can use now. Raises `FitError` if the free memory is unknown."""
        return device_capacity(self._runtime, index)

    def limit(self, index: int, total: int | str | None) -> int:
        """Return the memory that PyTorch can use on a device, or on another GPU with memory ``total``, in bytes.

        Memory outside PyTorch is assumed to be the same on both GPUs. Raises `OptionError` if ``total`` is invalid or
        not larger than this memory.
        """
        if total is None:
            return self.available(index).limit
        reading = self._runtime.reading().devices[f"cuda:{index}"]
        outside = (reading.outside or 0) if reading.process is not None else 0
        capacity = parse_size(total) - outside
        if capacity <= 0:
            raise OptionError(
                f"{size_with_unit(total)} is not more than the {size_text(outside)} that this process uses outside "
                "PyTorch: pass the memory of the GPU with a unit, such as '24 GiB'"
            )
        return capacity


def device_capacity(runtime: Runtime, index: int) -> MemoryCapacity:
    """Return the memory of a device that PyTorch can use now.

    Raises:
        FitError: The free memory is unknown.
    """
    reading = runtime.reading().devices.get(f"cuda:{index}")
    if reading is None or reading.free is None or reading.reserved is None or reading.allocated is None:
        raise FitError(f"the free memory of cuda:{index} is unknown: specify the memory, as in --dry --on '24 GiB'")
    limit = reading.reserved + reading.free
    return MemoryCapacity(min(limit, allocator.memory_limit(index) or limit), reading.allocated)
