"""The sentences that a report needs besides its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.measurement.plan import Collector, with_notes

if TYPE_CHECKING:
    from ipygpumem.core.report import DeviceReport, RecordingFacts, Report
    from ipygpumem.measurement.plan import Outcome
    from ipygpumem.measurement.runtime import Runtime

__all__ = ["ModeChanges", "recording_text", "report_notes"]

_UNKNOWN = "memory outside PyTorch is unknown from now on"
_DEVICE_ONLY = "memory outside PyTorch is known for the whole device only from now on"
_DEGRADED = {
    ("process", "device"): _DEVICE_ONLY,
    ("process", "torch-only"): _UNKNOWN,
    ("device", "torch-only"): _UNKNOWN,
}
"""What to say if readings of a device have less information than before, by both modes."""


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
            problem = _DEGRADED.get((before, now))
            if problem is not None and (name, device.after.why) not in self._noted:
                self._noted.add((name, device.after.why))
                notes.append(f"{name}: {problem} ({device.after.why})")
        self.changed = bool(notes)
        return with_notes(report, *notes)


def report_notes(report: Report) -> list[str]:
    """The sentences of a report: limits, notes, out-of-memory errors, contexts, the recording and the profile."""
    sentences = [*map(str, report.excesses), *report.notes]
    for device in report.devices.values():
        if device.ooms > 0:
            sentences.append(f"{device.name} ran out of memory{_times(device.ooms)}")
        if device.retries > 0:
            sentences.append(f"{device.name} was full: PyTorch freed its cache and tried again{_times(device.retries)}")
        if device.started:
            sentences += _context(report, device)
        if device.after.busy:
            sentences.append(
                f"{device.name} was still running kernels when it was read: memory that they free is not yet counted"
            )
    if report.recording is not None:
        sentences.append(recording_text(report.recording))
    if report.profile is not None:
        sentences += report.profile.sentences()
    return sentences


def _context(report: Report, device: DeviceReport) -> list[str]:
    """How an additional device got a CUDA context, which the user may not have intended."""
    had_context = {report_device.name for report_device in report.devices.values() if report_device.before.context}
    if not had_context - {device.name}:
        return []
    if (device.high is not None and device.high.allocated > 0) or device.held:
        return [f"{device.name}: the first tensor there created a CUDA context, which stays until the process ends"]
    cause = "by a copy between devices, NCCL, or a call on that device"
    return [f"{device.name}: a CUDA context was created without a tensor ({cause}), and stays until the process ends"]


def _times(count: int) -> str:
    return "" if count == 1 else f" {count} times"


def recording_text(recording: RecordingFacts) -> str:
    """Where a recording was saved, its size, and what is missing from it; or why it was not saved."""
    if recording.path is None:
        return recording.error
    from humanize import intcomma, naturalsize

    events = f"{intcomma(recording.events)} event{'' if recording.events == 1 else 's'}"
    text = f"snapshot {recording.path}: {events}, {naturalsize(recording.size, binary=True)}"
    if recording.dropped is None:
        text += "; it is unknown whether the ring buffer dropped events"
    elif recording.dropped:
        remedy = "raise --max-entries" if recording.own else "raise max_entries of your own recording"
        text += f"; the ring buffer dropped {intcomma(recording.dropped)} allocations: {remedy}"
    if not recording.own:
        text += "; taken from the recording that was already running"
    if recording.error:
        text += f"; {recording.error}"
    return text
