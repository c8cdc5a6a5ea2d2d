"""Measurements, which consist of two readings and of the peaks, samples and recording between them."""

from __future__ import annotations

import linecache
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import field
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Protocol

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.interrupts import DeferredInterrupts, ImmediateInterrupts
from ipygpumem.core.reading import Reading
from ipygpumem.core.report import MeasurementLabel, RecordingInfo, Report, build_report
from ipygpumem.measurement.peaks import PeakScope
from ipygpumem.measurement.recorder import AllocationRecorder, CellInfo
from ipygpumem.measurement.runtime import Runtime
from ipygpumem.measurement.sampler import SampleWindow
from ipygpumem.sources import host, pytorch
from ipygpumem.sources.device import Device

_cost = attrgetter("cost")
_OVERLAPPED = "code in another thread was measured at the same time, and both reports cover the whole process"
_ADDED = "{} was added to the monitored devices during this measurement and is included from the next measurement on"


@dataclass(frozen=True)
class MeasuredCode:
    """Information about the measured code, for collectors.

    Attributes:
        sources: Source code of notebook cells by file name.
        numbers: Execution counts of notebook cells by file name.
        block: Tuple ``(file, first_line, last_line, name)``; None if the location of the code is unknown.
    """

    sources: Mapping[str, str] = field(default_factory=dict)
    numbers: Mapping[str, int] = field(default_factory=dict)
    block: tuple[str, int, int, str] | None = None


NO_CODE = MeasuredCode()


class MeasurementInterval:
    """Time interval of an open measurement. The constructor adds the interval to the set of open intervals."""

    def __init__(self, open_intervals: set[MeasurementInterval]) -> None:
        self._thread = threading.get_ident()
        self._earlier = open_intervals.copy()
        self._open = open_intervals  # no lock, because a fork could leave it locked
        self._open.add(self)

    def end(self) -> bool:
        """Close the interval and return whether an interval of another thread overlaps it.

        Intervals within this interval are ignored, as are intervals of the main thread that enclose this interval, such
        as the interval of the cell that started this thread. Returns False if the interval is already closed.
        """
        if self not in self._open:
            return False
        self._open.discard(self)
        if not self._open and not self._earlier:
            return False
        main_thread = threading.main_thread().ident
        overlapping = self._open ^ self._earlier
        overlapping |= {interval for interval in self._earlier if interval._thread != main_thread}
        self._earlier = set()
        return any(interval._thread != self._thread for interval in overlapping)


class MeasurementObserver(Protocol):
    """Interface of objects that observe the measured code."""

    @property
    def cost(self) -> float:
        """Time in seconds spent in the observer itself, which is subtracted from the measured time."""

    def start(self) -> None:
        """Start observing. An exception ends the measurement before the measured code runs."""

    def stop(self) -> None:
        """Stop observing. This method must not raise an exception and may be called repeatedly or before `start`."""


@dataclass(frozen=True, slots=True)
class MeasurementOptions:
    """Options of a measurement.

    Attributes:
        reset_peaks: Whether PyTorch's peak counters are reset (argument ``peaks`` of `measure`).
        reset_host_peak: Whether the peak of resident memory is reset (argument ``host_peak``).
        synchronize: Whether to wait for each device's current stream before each reading.
    """

    reset_peaks: bool = True
    reset_host_peak: bool = False
    synchronize: bool = False


_DEFAULT_OPTIONS = MeasurementOptions()
_NO_LABEL = MeasurementLabel()


class Measurement:
    """Measurement of all monitored devices and of the host. Call `begin`, then either `end` or `abandon`.

    Attributes:
        devices, recorder, path: As in `MeasurementPlan`.
        observers: Observers, started in this order after the first reading and stopped in reverse order.
        after: Second reading; None until `end` is called.
        excluded: Seconds that are not part of the measured time, such as the time to show a traceback.
        recorded: Information about the recording, even if it was not saved; None if there is no recording.
        samples: Samples of device memory usage; None if no device can be sampled.
    """

    # initial values are class attributes, because setting them on each instance takes longer
    devices: tuple[str, ...] | None = None
    recorder: AllocationRecorder | None = None
    path: Path | None = None
    after: Reading | None = None
    excluded = 0.0
    recorded: RecordingInfo | None = None
    samples: SampleWindow | None = None
    _before: Reading | None = None
    _scope: PeakScope | None = None
    _start = 0.0
    _cost_before = 0.0
    _devices: tuple[Device, ...] = ()
    _interval: MeasurementInterval | None = None
    _start_us = 0
    _pid = 0

    def __init__(self, runtime: Runtime, options: MeasurementOptions | None = None) -> None:
        self.runtime = runtime
        self.options = options or _DEFAULT_OPTIONS
        self.observers: list[MeasurementObserver] = []
        self._notes: list[str] = []

    def begin(self, previous: Reading | None = None) -> None:
        """Make the first reading and start the timer. If this raises an exception, the caller must call `abandon`.

        Values of ``previous``, which is the second reading of a measurement that has just ended, are used again (see
        `DeviceMonitor.read`), unless there is a recorder or an observer, or the host's peak is reset.
        """
        runtime, options = self.runtime, self.options
        monitor, peaks = runtime.monitor, runtime.peaks
        self._pid = os.getpid()
        self._interval = MeasurementInterval(runtime.open_intervals)
        if options.reset_host_peak and not host.reset_peak():
            self._notes.append("this system cannot reset the peak resident memory of a process")
        if options.synchronize:
            pytorch.synchronize()
        if self.observers or self.recorder is not None or options.reset_host_peak:
            previous = None
        self._scope = scope = peaks.scope()
        peaks.install()
        self._before = before = monitor.read(
            busy=False, read_allocator=partial(peaks.enter, scope, reset=options.reset_peaks), previous=previous
        )
        if self.recorder is not None:
            self.recorder.start(before)
        for observer in self.observers:
            observer.start()
        self._devices = tuple(monitor.devices.values())
        self._cost_before = sum(map(_cost, self.observers))
        self._start_us = time.time_ns() // 1000
        self._start = time.perf_counter()
        if before.devices:
            in_use = [name for name, device in before.devices.items() if device.context]
            self.samples = runtime.sampler.begin([device for device in self._devices if device.name in in_use])

    def end(
        self, label: MeasurementLabel | None = None, *, success: bool | None = True, code: MeasuredCode | None = None
    ) -> Report | None:
        """Stop the timer, make the second reading, save the recording and build the report.

        ``success`` is None if the measurement ends while the code is still running. Returns None in a process that was
        forked during the measurement.
        """
        cost = sum(map(_cost, self.observers)) - self._cost_before
        seconds = max(time.perf_counter() - self._start - cost - self.excluded, 0.0)
        self._stop_observers()
        label = label or _NO_LABEL
        cell = None if self.recorder is None else self.cell_info(label, success=success)
        if self._interval is not None and self._interval.end():
            self._notes.append(_OVERLAPPED)
        before, scope, peaks = self._before, self._scope, self.runtime.peaks
        if before is None or scope is None or os.getpid() != self._pid:
            return None
        try:
            if self.options.synchronize:
                pytorch.synchronize()
            self.after = after = self.runtime.monitor.read(read_allocator=partial(peaks.leave, scope))
            if self.recorder is not None and cell is not None:
                code = code or MeasuredCode()
                self.recorder.windows = [] if self.samples is None else [self.samples]
                with ImmediateInterrupts():
                    self.recorded = self.recorder.save(
                        self.path, sources=code.sources, numbers=code.numbers, cell=cell, after=after
                    )
        finally:
            self._close()
        # devices that were added to the monitored devices during the measurement have no first reading
        if after.devices.keys() != before.devices.keys():
            new = after.devices.keys() - before.devices.keys()
            added_names = [device.name for device in self._devices if device.name in new]
            self._notes += map(_ADDED.format, added_names)
            after = after.only(tuple(name for name in after.devices if name not in added_names))
        samples = self.samples if self.samples is not None and self.samples.tracks else None
        peak_by_name = {f"cuda:{index}": peak for index, peak in scope.peaks.items()}
        return build_report(
            before,
            after,
            peak_by_name,
            seconds=seconds,
            label=label,
            success=success,
            devices=self.devices,
            sampled=None if samples is None else samples.outside_peaks(before, after, peak_by_name),
            sampling_problems=None if samples is None else samples.problems(),
            notes=(*self._notes, *(self._unused(before, after) if self.devices else ())),
            recording=None if self.path is None else self.recorded,
        )

    def _unused(self, before: Reading, after: Reading) -> list[str]:
        notes = []
        monitored = self.runtime.monitor.selected
        for name in self.devices or ():
            readings = [reading.devices[name] for reading in (before, after) if name in reading.devices]
            if monitored is not None and name not in monitored:
                notes.append(f"{name} is not one of the monitored devices (GPUMem.devices)")
            elif not any(device.context for device in readings):
                notes.append(f"{name} is not used by this process")
        return notes

    def cell_info(self, label: MeasurementLabel, *, success: bool | None) -> CellInfo:
        return CellInfo(label.cell, label.filename, self._start_us, time.time_ns() // 1000, success)

    def abandon(self) -> None:
        """Stop observing, sampling and recording, and close the peak scope. Repeated calls have no effect."""
        with DeferredInterrupts():
            if self._interval is not None:
                self._interval.end()
            self._stop_observers()
            self._close()

    def _close(self) -> None:
        if self._scope is not None:
            self.runtime.peaks.drop(self._scope)
        if self.recorder is not None:
            self.recorder.stop()

    def _stop_observers(self) -> None:
        if self.samples is not None:
            self.runtime.sampler.end(self.samples)
        for observer in reversed(self.observers):
            observer.stop()


def notebook_sources() -> dict[str, str]:
    """Return the source code of notebook cells and of other code without a file, by the file name in tracebacks."""
    # entries are (size, mtime, lines, name), where mtime is None unless the code is from a file. IPython 7 always sets
    # mtime and lists its cells in a separate attribute
    cells = getattr(linecache, "_ipython_cache", {})
    entries = ((name, entry) for name, entry in list(linecache.cache.items()) if len(entry) > 1)
    return {name: "".join(entry[2]) for name, entry in entries if entry[1] is None or name in cells}
