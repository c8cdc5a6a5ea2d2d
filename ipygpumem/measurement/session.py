"""What lives as long as the process: the devices, the baseline and the reports."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal

from ipygpumem.core.baseline import PRELOAD_OFF, Baseline
from ipygpumem.core.errors import first_line
from ipygpumem.features.history.reports import Reports
from ipygpumem.features.holders.roots import frame_label, python_roots
from ipygpumem.measurement.peaks import PEAKS
from ipygpumem.sources import pytorch
from ipygpumem.sources.device_monitor import DeviceMonitor
from ipygpumem.sources.first_kernels import run_first_kernels

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.core.reading import DeviceReading, Reading
    from ipygpumem.core.report import Report
    from ipygpumem.features.holders.naming import Root

__all__ = ["Preload", "Session", "current"]

Preload = Literal["kernels", "context", "off"]


class Session:
    """The device monitor, the baseline and the reports of this process."""

    def __init__(self) -> None:
        self.monitor = DeviceMonitor()
        self.baseline: Baseline | None = None
        self.reports = Reports()
        self.roots: Callable[[], list[Root]] = python_roots
        """Where the names of what is held begin; the notebook puts its own way here."""
        self.label: Callable[[str, int, str], str] = frame_label
        """What a recorded (file name, line, function) is called."""

    @property
    def last(self) -> Report | None:
        """The newest report; None before the first."""
        return self.reports[-1] if len(self.reports) else None

    @property
    def host_only(self) -> bool:
        """Whether the host's memory is all there is to report: there is no GPU, as far as anybody can tell."""
        if self.baseline is None or self.baseline.device is not None:
            return False
        return self.baseline.note != PRELOAD_OFF or pytorch.problem(load=False) is not None

    def reading(self) -> Reading:
        """Every counter now."""
        return self.monitor.read(available=True)

    def take_baseline(self, reading: Reading | None = None, note: str = "") -> Baseline:
        """Deltas of the session are told against this moment from here on."""
        reading = reading or self.reading()
        device = next((name for name, one in reading.devices.items() if one.context), None)
        self.monitor.record_processes(reading.devices)
        self.baseline = Baseline(reading, device, self._label(device), note=note)
        return self.baseline

    def preload(self, mode: Preload = "kernels", *, reset_peaks: bool = True) -> Baseline:
        """Start CUDA on the current device, run the first kernels there, and take the baseline.

        Other devices are not touched. Where PyTorch has no GPU the baseline is the host's, and says why.
        """
        if mode == "off":
            return self.take_baseline(note=PRELOAD_OFF)
        why = pytorch.problem(load=True)
        if why:
            return self.take_baseline(note=why)
        torch = sys.modules["torch"]
        try:
            return self._preload(torch, kernels=mode == "kernels", reset_peaks=reset_peaks)
        except Exception as error:
            return self.take_baseline(note=f"CUDA does not start: {first_line(error)}")

    def _preload(self, torch: Any, *, kernels: bool, reset_peaks: bool) -> Baseline:
        torch.cuda.init()
        index = int(torch.cuda.current_device())
        name = f"cuda:{index}"
        PEAKS.install()
        fresh = not pytorch.has_context(torch, index)
        empty = self.monitor.read().devices.get(name)
        if fresh:
            pytorch.start(torch, index)
        started = self.monitor.read().devices.get(name)
        note = ""
        if kernels and torch._C._cuda_isHistoryEnabled():
            note = "first kernels not preloaded: PyTorch's history is being recorded, and is the user's"
        elif kernels and pytorch.capturing(torch):
            note = "first kernels not preloaded: a CUDA graph is being captured"
        elif kernels:
            note = self._warm(torch, index, reset_peaks=reset_peaks)
        reading = self.reading()
        return self._settle(reading, name, empty if fresh else None, started, note)

    @staticmethod
    def _warm(torch: Any, index: int, *, reset_peaks: bool) -> str:
        scope = PEAKS.scope()
        try:
            PEAKS.enter(scope, index, reset=reset_peaks)
            failed = run_first_kernels(torch, index)
        finally:
            PEAKS.drop(scope)
            if reset_peaks:
                PEAKS.excuse(index)
        return f"not preloaded: {failed}" if failed else ""

    def _settle(
        self, reading: Reading, name: str, empty: DeviceReading | None, started: DeviceReading | None, note: str
    ) -> Baseline:
        context = kernels = workspace = None
        now = reading.devices.get(name)
        if now is not None and started is not None:
            if empty is not None:
                context = _grown(empty, started)
            kernels = _grown(started, now)
            workspace = _minus(now.allocated, started.allocated)
        self.monitor.record_processes(reading.devices)
        self.baseline = Baseline(reading, name, self._label(name), context, kernels, workspace, note)
        return self.baseline

    def _label(self, name: str | None) -> str:
        return next((card.label for card in self.monitor.devices.values() if card.name == name), "")


def _grown(before: DeviceReading, after: DeviceReading) -> int | None:
    """How much more stands outside PyTorch: by our own entry, else by the whole card."""
    if after.process is not None and before.process is not None:
        return _minus(after.outside, before.outside)
    if after.source != before.source:
        return None
    return _minus(_minus(after.used, after.reserved), _minus(before.used, before.reserved))


def _minus(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one - other


_session = Session()


def current() -> Session:
    """The process's one session: it outlives %reload_ext."""
    return _session
