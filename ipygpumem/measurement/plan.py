"""Plans for measurements of cells, statements, blocks and tests, and the base class of collectors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.errors import GPUMemLimitExceeded, IpyGpuMemError, first_line
from ipygpumem.core.interrupts import ImmediateInterrupts
from ipygpumem.core.reading import Reading
from ipygpumem.core.report import MeasurementLabel, Report
from ipygpumem.core.units import many
from ipygpumem.measurement.measurement import (
    NO_CODE,
    MeasuredCode,
    Measurement,
    MeasurementObserver,
    MeasurementOptions,
)
from ipygpumem.measurement.recorder import AllocationRecorder
from ipygpumem.measurement.runtime import Runtime

if TYPE_CHECKING:
    from ipygpumem.snapshot import Snapshot


@dataclass
class CompletedMeasurement:
    """Data of a completed measurement, which collectors use to process the report.

    Attributes:
        recorder: Recorder of allocation history; None if nothing was recorded.
        snapshot: Recorded snapshot; None if no collector reads it, or if it is missing, incomplete or unreadable.
        problem: Reason why the snapshot is missing, incomplete or unreadable; otherwise empty.
        error: Exception, set by a collector, to raise after the measured code has finished.
    """

    recorder: AllocationRecorder | None
    snapshot: Snapshot | None
    problem: str
    code: MeasuredCode
    error: GPUMemLimitExceeded | None = None


@dataclass(frozen=True, slots=True)
class MeasurementResult:
    """Result of a completed measurement.

    Attributes:
        error: Exception to raise because a limit was exceeded; None if no limit was exceeded.
    """

    report: Report
    error: GPUMemLimitExceeded | None = None


class Collector:
    """Base class of collectors, which can observe a measurement and process its report, usually by adding a section.

    Attributes:
        section: Name of the collector's result, as used in notes.
        observer: Observer to add to the measurement, if any.
        reads_recording: Whether the collector reads the recorded snapshot.
        is_slow: Whether `collect` may take seconds and must therefore be interruptible.
        needs_devices: Whether the collector is skipped if the report contains no device.
    """

    section = ""
    observer: MeasurementObserver | None = None
    reads_recording = False
    is_slow = False
    needs_devices = False

    def attach(self, measurement: Measurement) -> None:
        if self.observer is not None:
            measurement.observers.append(self.observer)

    def collect(self, report: Report, outcome: CompletedMeasurement) -> Report:
        raise NotImplementedError


@dataclass(eq=False)
class MeasurementPlan:
    """Plan for a measurement: what to record, which devices to report on, and which sections the report contains.

    Attributes:
        collectors: Collectors, in the order in which they process the report.
        recorder: Recorder of allocation history; None to record nothing.
        path: File in which to save the recording; None to discard it after the report.
        devices: Names of the devices to report on; None selects all devices that this process uses.
    """

    collectors: tuple[Collector, ...] = ()
    recorder: AllocationRecorder | None = None
    path: Path | None = None
    devices: tuple[str, ...] | None = None

    def begin(self, runtime: Runtime, options: MeasurementOptions, previous: Reading | None = None) -> Measurement:
        measurement = Measurement(runtime, options)
        measurement.devices = self.devices
        if self.recorder is not None:
            self.recorder.keep_snapshot = any(collector.reads_recording for collector in self.collectors)
            measurement.recorder, measurement.path = self.recorder, self.path
        try:
            for collector in self.collectors:
                collector.attach(measurement)
            measurement.begin(previous)
        except BaseException:
            measurement.abandon()
            raise
        return measurement

    def finish(
        self,
        measurement: Measurement,
        label: MeasurementLabel,
        *,
        success: bool | None,
        code: Callable[[], MeasuredCode] = MeasuredCode,
    ) -> MeasurementResult | None:
        """End a measurement and return its result, or None in a process that was forked during the measurement.

        ``code`` returns information about the measured code. It is not called if nothing is recorded.
        """
        try:
            measured_code = NO_CODE if self.recorder is None else code()
            report = measurement.end(label, success=success, code=measured_code)
        except BaseException:
            measurement.abandon()
            raise
        if report is None:
            return None
        snapshot, problem = None, ""
        if self.recorder is not None:
            with ImmediateInterrupts():
                snapshot, problem = _read_recording(measurement, self.recorder)
        outcome = CompletedMeasurement(self.recorder, snapshot, problem, measured_code)
        for collector in self.collectors:
            if collector.needs_devices and not report.devices:
                continue
            try:
                if collector.is_slow or collector.reads_recording:
                    with ImmediateInterrupts():
                        report = collector.collect(report, outcome)
                else:
                    report = collector.collect(report, outcome)
            except Exception as error:  # keep the report if one section fails
                report = with_notes(report, f"this report has no {collector.section}: {first_line(error)}")
        return MeasurementResult(report, outcome.error)


def with_notes(report: Report, *notes: str) -> Report:
    return replace(report, notes=(*report.notes, *notes)) if notes else report


def _read_recording(measurement: Measurement, recorder: AllocationRecorder) -> tuple[Snapshot | None, str]:
    info = measurement.recorded
    if info is None or not recorder.keep_snapshot:
        return None, ""
    snapshot, recorder.snapshot = recorder.snapshot, None
    if snapshot is None or info.error:
        return None, info.error or "nothing was recorded"
    if info.dropped is None:
        return None, "it is unknown whether the ring buffer dropped events"
    if info.dropped:
        return None, f"the ring buffer dropped the events of {many(info.dropped, 'allocation')}: increase max_entries"
    from ipygpumem.snapshot import Snapshot  # on first use, because most cells record nothing

    try:
        return Snapshot.load(snapshot), ""
    except IpyGpuMemError as error:
        return None, str(error)
