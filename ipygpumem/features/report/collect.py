"""Collector of notes on readings that have become less accurate."""

from __future__ import annotations

from ipygpumem.core.report import Report
from ipygpumem.measurement.plan import Collector, CompletedMeasurement, with_notes
from ipygpumem.measurement.runtime import Runtime

_PROBLEMS = {
    "device": "memory outside PyTorch is now known only for the whole device",
    "torch-only": "memory outside PyTorch is no longer known",
}
"""Notes by `DeviceReading.mode`, for devices whose previous readings contained more information."""


class AccuracyNotesCollector(Collector):
    """Collector that adds a note if the readings of a device contain less information than before.

    This happens if NVML fails or no longer lists this process. Each reason is noted once for each device.

    Attributes:
        changed: Whether a note was added to the last report.
    """

    section = "notes on accuracy"
    needs_devices = True

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.changed = False
        self._modes: dict[str, str] = {}
        self._noted: set[tuple[str, str]] = set()

    def collect(self, report: Report, outcome: CompletedMeasurement) -> Report:  # noqa: ARG002 (needs no recording)
        baseline = self._runtime.baseline
        at_baseline = {} if baseline is None else baseline.reading.devices
        notes = []
        for name, device in report.devices.items():
            before = self._modes.get(name) or at_baseline.get(name, device.before).mode
            now = self._modes[name] = device.after.mode
            degraded = now in _PROBLEMS and before not in {now, "torch-only"}
            if degraded and (name, device.after.why) not in self._noted:
                self._noted.add((name, device.after.why))
                notes.append(f"{name}: {_PROBLEMS[now]} ({device.after.why})")
        self.changed = bool(notes)
        return with_notes(report, *notes) if notes else report
