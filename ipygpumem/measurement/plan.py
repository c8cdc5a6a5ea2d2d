"""What one measurement collects besides its figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ipygpumem.measurement.measurement import Measurement

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from ipygpumem.core.errors import GPUMemLimitExceeded
    from ipygpumem.core.report import Report
    from ipygpumem.measurement.measurement import MeasurementOptions
    from ipygpumem.measurement.recorder import Recorder
    from ipygpumem.measurement.runtime import Runtime
    from ipygpumem.snapshot import Snapshot

__all__ = ["Code", "Collector", "Outcome", "Plan"]


@dataclass(frozen=True)
class Code:
    """The code that was measured, as far as collectors need it.

    Attributes:
        sources: Text of notebook cells by file name.
        numbers: In numbers of notebook cells by file name.
        block: File name, first line, last line and name of the measured code; None if it is not known.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    block: tuple[str, int, int, str] | None = None


@dataclass
class Outcome:
    """A finished measurement, from which collectors make their sections of the report.

    Attributes:
        measurement: The measurement, ended.
        recorder: The recorder, if there was a recording.
        snapshot: The recording; None without one, or if it cannot be read.
        problem: Why the recording cannot be read; empty if it can, or if there was none.
        code: The measured code.
        error: An error that the user's code is to end with.
    """

    measurement: Measurement
    recorder: Recorder | None
    snapshot: Snapshot | None
    problem: str
    code: Code
    error: GPUMemLimitExceeded | None = None


class Collector:
    """Collects one section of a report.

    Attributes:
        section: What notes call the section.
        reads_recording: Whether `collect` needs the recording.
    """

    section = ""
    reads_recording = False

    def attach(self, measurement: Measurement) -> None:
        """Add observers to a measurement before it begins."""

    def collect(self, report: Report, outcome: Outcome) -> Report:
        """Return the report with this collector's section."""
        raise NotImplementedError

    def close(self) -> None:
        """Release what was acquired, if the measurement never ended."""


class Plan:
    """What one measurement collects.

    Args:
        collectors: In the order in which they add to the report.
        recorder: Records allocation history; None records nothing.
        path: Where to save the recording; None does not save it.
        devices: Names of the devices to report on; None for all that this process uses.
    """

    def __init__(
        self,
        collectors: Sequence[Collector] = (),
        *,
        recorder: Recorder | None = None,
        path: Path | None = None,
        devices: tuple[str, ...] | None = None,
    ) -> None:
        self.collectors = tuple(collectors)
        self.recorder = recorder
        self.path = path
        self.devices = devices

    @property
    def records(self) -> bool:
        """Whether the measurement records allocation history."""
        return self.recorder is not None

    def open(self, runtime: Runtime, options: MeasurementOptions) -> Measurement:
        """Begin a measurement with everything that this plan collects."""
        measurement = Measurement(runtime, options)
        measurement.devices = self.devices
        if self.recorder is not None:
            self.recorder.keep = any(collector.reads_recording for collector in self.collectors)
            measurement.record(self.recorder, self.path)
        for collector in self.collectors:
            collector.attach(measurement)
        measurement.begin()
        return measurement
