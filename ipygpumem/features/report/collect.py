"""Collects what a report says about the readings themselves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.measurement.plan import Collector, with_notes

if TYPE_CHECKING:
    from ipygpumem.core.report import Report
    from ipygpumem.measurement.plan import Outcome
    from ipygpumem.measurement.runtime import Runtime

_PROBLEMS = {
    "device": "memory outside PyTorch is known for the whole device only from now on",
    "torch-only": "memory outside PyTorch is unknown from now on",
}
"""What to say if readings of a device had more information before they got this mode."""


class ModeChanges(Collector):
    """Notes that readings of a device have less information than before, because NVML failed or its entry is gone.

    Attributes:
        changed: Whether the last report got such a note.
    """

    section = "modes"
    needs_devices = True

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.changed = False
        self._modes: dict[str, str] = {}
        self._noted: set[tuple[str, str]] = set()

    def collect(self, report: Report, outcome: Outcome) -> Report:  # noqa: ARG002 (needs no recording)
        """Compare the mode of each device with the previous report."""
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
        return with_notes(report, *notes)
