"""The process-wide state of the package."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from ipygpumem.core.errors import first_line
from ipygpumem.core.reading import PRELOAD_OFF, Baseline
from ipygpumem.core.units import difference
from ipygpumem.measurement.allocation_history import ActiveRecording
from ipygpumem.measurement.peaks import PeakTracker
from ipygpumem.measurement.sampler import MemorySampler
from ipygpumem.sources import allocator, pytorch
from ipygpumem.sources.device_monitor import DeviceMonitor
from ipygpumem.sources.first_kernels import run_first_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.core.reading import DeviceReading, Reading
    from ipygpumem.measurement.measurement import MeasurementInterval

_State = TypeVar("_State")


class Runtime:
    """Process-wide state, created on the first call to `current`.

    Attributes:
        monitor, peaks, sampler: Objects that read the devices, track peaks, and sample device memory usage.
        open_intervals: Intervals of the open measurements in all threads.
        active_recording: Recording of allocation history that this package has started, if any.
        forked: Whether this process was forked after the runtime was created and therefore cannot use CUDA and NVML.
        baseline: The baseline, with which later readings of the session are compared; None until it is measured.
    """

    def __init__(self) -> None:
        self.monitor = DeviceMonitor()
        self.peaks = PeakTracker()
        self.sampler = MemorySampler()
        self.open_intervals: set[MeasurementInterval] = set()
        self.active_recording = ActiveRecording()
        self.baseline: Baseline | None = None
        self.forked = False
        self._states: dict[Callable[[], Any], Any] = {}

    def state(self, factory: Callable[[], _State]) -> _State:
        """Return the object created by ``factory``, which is called on first use.

        `Runtime.close` calls the ``close`` method of the object if there is one.
        """
        if factory not in self._states:
            self._states[factory] = factory()
        state: _State = self._states[factory]
        return state

    def close(self) -> None:
        while self._states:  # a ``close`` method may call `state`
            state = self._states.popitem()[1]
            if hasattr(state, "close"):
                state.close()
        self.active_recording.close()
        self.sampler.close()
        self.peaks.close()
        pytorch.listen_for_ooms(None)

    @property
    def host_only(self) -> bool:
        """Whether reports contain only host memory because this process cannot use a GPU."""
        if self.baseline is None or self.baseline.device is not None:
            return False
        return self.baseline.note != PRELOAD_OFF or pytorch.problem(load=False) is not None

    def reading(self) -> Reading:
        return self.monitor.read(available=True)

    def take_baseline(self, reading: Reading | None = None, note: str = "") -> Baseline:
        reading = reading or self.reading()
        device = next((name for name, counters in reading.devices.items() if counters.context), None)
        self.monitor.record_processes(reading.devices)
        self.baseline = Baseline(reading, device, self._label(device), note=note)
        return self.baseline

    def preload(self, mode: Literal["kernels", "context", "off"] = "kernels", *, reset_peaks: bool = True) -> Baseline:
        """Initialize CUDA, run common kernels, and set and return the baseline.

        If ``mode`` is ``"context"``, no kernels are run; if it is ``"off"``, CUDA is not initialized either. If a step
        fails or is omitted, the ``note`` of the baseline states the reason.
        """
        if mode == "off":
            return self.take_baseline(note=PRELOAD_OFF)
        problem = pytorch.problem(load=True)
        if problem:
            return self.take_baseline(note=problem)
        torch = sys.modules["torch"]
        try:
            return self._preload(torch, kernels=mode == "kernels", reset_peaks=reset_peaks)
        except Exception as error:
            return self.take_baseline(note=f"CUDA cannot be initialized: {first_line(error)}")

    def _preload(self, torch: Any, *, kernels: bool, reset_peaks: bool) -> Baseline:
        torch.cuda.init()
        index = int(torch.cuda.current_device())
        name = f"cuda:{index}"
        self.peaks.install()
        before_context = None
        if not pytorch.has_context(torch, index):
            before_context = self.monitor.read().devices.get(name)
            torch.cuda.synchronize(index)  # creates the context
        before_kernels = self.monitor.read().devices.get(name)
        note = ""
        if kernels and allocator.is_recording():
            note = "the first kernels were not preloaded: the program is recording PyTorch's allocation history"
        elif kernels and pytorch.is_capturing(torch):
            note = "the first kernels were not preloaded: a CUDA graph is being captured"
        elif kernels:
            note = self._run_first_kernels(torch, index, reset_peaks=reset_peaks)
        reading = self.reading()
        context = kernel_size = workspace = None
        now = reading.devices.get(name)
        if now is not None and before_kernels is not None:
            if before_context is not None:
                context = _outside_growth(before_context, before_kernels)
            kernel_size = _outside_growth(before_kernels, now)
            workspace = difference(before_kernels.allocated, now.allocated)
        if not workspace and self.baseline is not None and self.baseline.device == name:
            workspace = self.baseline.workspace  # allocated by an earlier preload
        self.monitor.record_processes(reading.devices)
        self.baseline = Baseline(reading, name, self._label(name), context, kernel_size, workspace, note)
        return self.baseline

    def _run_first_kernels(self, torch: Any, index: int, *, reset_peaks: bool) -> str:
        scope = self.peaks.scope()
        try:
            with contextlib.suppress(RuntimeError):  # a pluggable allocator has no peaks
                self.peaks.enter(scope, index, reset=reset_peaks)
            failure = run_first_kernels(torch, index)
        finally:
            self.peaks.drop(scope)
            if reset_peaks:
                with contextlib.suppress(RuntimeError):
                    self.peaks.discard(index)
        return f"these kernels were not preloaded: {failure}" if failure else ""

    def _label(self, name: str | None) -> str:
        return next((device.label for device in self.monitor.devices.values() if device.name == name), "")


def _outside_growth(before: DeviceReading, after: DeviceReading) -> int | None:
    if after.process is not None and before.process is not None:
        return difference(before.outside, after.outside)
    if after.source != before.source:
        return None
    return difference(difference(before.reserved, before.used), difference(after.reserved, after.used))


_runtime: Runtime | None = None


def current() -> Runtime:
    """Return the `Runtime` of this process, which ``%reload_ext`` does not replace."""
    global _runtime  # noqa: PLW0603 (the only process-wide variable of the package)
    if _runtime is None:
        _runtime = Runtime()
    return _runtime


def _mark_forked() -> None:
    if _runtime is not None:
        _runtime.forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_mark_forked)


def close() -> None:
    """Close the `Runtime` of this process, if any. The next call to `current` creates a new one."""
    global _runtime  # noqa: PLW0603 (as above)
    if _runtime is not None:
        try:
            _runtime.close()
        finally:
            _runtime = None


EventPosition: TypeAlias = dict[int, int]
"""Number of allocations and frees so far, by device index. Devices without a CUDA context or counters are missing."""


def event_position() -> EventPosition:
    """Return the current position in the sequence of each device's allocation events.

    The allocator counts allocations and frees, and only the program can reset these counters. Their sum identifies the
    last event before the counters were read. A timestamp does not, because many events have the same timestamp.
    """
    position = {}
    stats = current().peaks.stats
    for index in pytorch.devices_in_use():
        try:
            counts = stats(index)["allocation"]["all"]
        except RuntimeError:  # a pluggable allocator
            continue
        position[index] = counts["allocated"] + counts["freed"]
    return position
