"""Sampling of device memory usage every 5 ms between the readings of a measurement, and curves of the samples.

A single thread takes samples during measurements that last longer than 50 ms. It reads only the memory usage of whole
devices from NVML. Querying NVML's process list would take a driver lock, and reading PyTorch's counters would hold the
GIL while waiting for the allocator's lock, which PyTorch holds during each cudaMalloc and cudaFree call.
"""

from __future__ import annotations

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.errors import IpyGpuMemError, first_line
from ipygpumem.core.reading import DeviceReading, Reading
from ipygpumem.core.report import PeakCounters
from ipygpumem.core.samples import MemorySample, OutsidePeak, highest_outside, max_other_memory
from ipygpumem.core.units import duration, many
from ipygpumem.measurement.periodic_thread import PeriodicThread
from ipygpumem.measurement.reserved_bound import CounterReading, ReservedMemoryCurve, reserved_bound
from ipygpumem.sources.device import Device

_FIRST = 0.05  # time in seconds until the first sample
_INTERVAL = 0.005  # in seconds
_MAX_SAMPLES = 8_192
_MIN_SPACING = 0.1  # minimum time in seconds between stored samples with the same value
_MAX_FAILURES = 20  # number of consecutive failures after which a measurement stops sampling a device


@dataclass(slots=True)
class DeviceSamples:
    """Samples of one device in one measurement.

    Attributes:
        samples: Stored samples, including the highest sample. They are set at the end of the measurement.
        count: Number of samples, including those that were not stored.
        gap: Longest time between two consecutive samples in seconds.
        source: Query that returned the samples, as in `DeviceReading`.
        problem: Reason why samples are missing; empty if none are missing.
        stopped: Whether sampling of the device has stopped after too many failures.
        counters: Readings of PyTorch's counters during the measurement.
        reserved: PyTorch's reserved memory over time; None if no allocation history was recorded.
    """

    samples: tuple[MemorySample, ...] = ()
    count: int = 0
    gap: float = 0.0
    source: str = ""
    problem: str = ""
    stopped: bool = False
    counters: list[CounterReading] = field(default_factory=list)
    reserved: ReservedMemoryCurve | None = None
    _stored: list[MemorySample] = field(default_factory=list)
    _last: MemorySample | None = None
    _spacing: float = _MIN_SPACING
    _failures: int = 0
    _failures_in_a_row: int = 0

    def fail(self, seconds: float, error: str) -> None:
        self._failures += 1
        self._failures_in_a_row += 1
        self.stopped = self._failures_in_a_row >= _MAX_FAILURES
        if self.stopped:
            self.problem = f"no samples after {duration(seconds)}: {error}"
        else:
            self.problem = f"{many(self._failures, 'sample')} failed: {error}"

    def add(self, sample: MemorySample) -> None:
        """Count a sample, and store it unless an equal sample was stored shortly before."""
        self._failures_in_a_row = 0
        self.count += 1
        last, self._last = self._last, sample
        if last is not None:
            self.gap = max(self.gap, sample.begin - last.begin)
            if sample.used == last.used and sample.begin - self._stored[-1].begin < self._spacing:
                return
            if sample.used != last.used and self._stored[-1] is not last:
                self._stored.append(last)
        self._stored.append(sample)
        if len(self._stored) > _MAX_SAMPLES:
            self._halve()

    def _halve(self) -> None:
        pairs = zip(self._stored[::2], self._stored[1::2], strict=False)
        remainder = self._stored[-1:] if len(self._stored) % 2 else []
        self._stored = [max(pair, key=lambda sample: sample.used) for pair in pairs] + remainder
        self._spacing *= 2

    def end(self, seconds: float) -> None:
        """Set ``samples`` to the stored samples that were taken in the first ``seconds`` seconds of the measurement."""
        samples = [sample for sample in tuple(self._stored) if sample.end <= seconds]
        last = self._last
        if samples and last is not None and last.end <= seconds:
            self.gap = max(self.gap, seconds - last.begin)
            if samples[-1].begin < last.begin:
                samples.append(last)
        self.samples = tuple(samples)


class SampleWindow:
    """Samples of one measurement, for all devices that NVML can read.

    Attributes:
        devices: Devices that NVML can read, by index.
        tracks: Samples of the devices that were sampled, by index, with times in seconds since the start of the
            measurement. The sampler's thread can add a device at any time.
        start: Start of the measurement according to `time.perf_counter`.
        epoch: Start of the measurement according to `time.time`.
    """

    def __init__(self, devices: Iterable[Device]) -> None:
        self.devices = {device.index: device for device in devices if device.nvml is not None}
        self.tracks: defaultdict[int, DeviceSamples] = defaultdict(DeviceSamples)
        self.start = time.perf_counter()
        self.epoch = time.time()

    def add_counters(self, index: int, reading: CounterReading) -> None:
        """The times of ``reading`` are values of `time.perf_counter`."""
        if index in self.devices and len(counters := self.tracks[index].counters) < _MAX_SAMPLES:
            counters.append(replace(reading, begin=reading.begin - self.start, end=reading.end - self.start))

    def outside_peaks(
        self, before: Reading, after: Reading, peaks: Mapping[str, PeakCounters]
    ) -> dict[str, OutsidePeak]:
        """Return lower bounds on peak memory outside PyTorch by device name. Devices without a bound are omitted."""
        bounds: dict[str, OutsidePeak] = {}
        for index, track in tuple(self.tracks.items()):
            name = f"cuda:{index}"
            start, end, peak = before.devices.get(name), after.devices.get(name), peaks.get(name)
            if start is None or end is None or not track.samples or track.source != start.source:
                continue
            reserved_peak = None if peak is None else peak.reserved
            reserved = reserved_bound(reserved_peak, track.counters, track.reserved, self.epoch)
            highest = highest_outside(start, end, track.samples, reserved)
            if highest is not None:
                bounds[name] = OutsidePeak(*highest, track.gap, track.samples[0].begin, track.count)
        return bounds

    def problems(self) -> dict[str, str]:
        return {f"cuda:{index}": track.problem for index, track in tuple(self.tracks.items()) if track.problem}


class MemorySampler:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.windows: tuple[SampleWindow, ...] = ()
        self._thread = PeriodicThread("ipygpumem-sampler", self._sample)
        self._pid = os.getpid()

    def begin(self, devices: Iterable[Device]) -> SampleWindow | None:
        """Start sampling for a measurement. Return None if no device can be sampled."""
        window = SampleWindow(devices)
        if not window.devices or os.getpid() != self._pid:
            return None
        with self._lock:
            try:
                self.windows = (*self.windows, window)
                if len(self.windows) == 1:
                    self._thread.start(_FIRST, _INTERVAL)
            except BaseException as error:
                self.windows = self.windows[:-1]
                if not self.windows:
                    self._thread.pause()
                if not isinstance(error, RuntimeError):  # the process cannot start another thread
                    raise
                for index in window.devices:
                    track = window.tracks[index]
                    track.problem, track.stopped = f"no samples: {first_line(error)}", True
        return window

    def end(self, window: SampleWindow) -> None:
        if window not in self.windows or os.getpid() != self._pid:
            return
        end = time.perf_counter() - window.start
        with self._lock:
            self.windows = tuple([open_window for open_window in self.windows if open_window is not window])
            if not self.windows:
                self._thread.pause()
        for track in tuple(window.tracks.values()):
            track.end(end)

    def close(self) -> None:
        self.windows = ()
        self._thread.close()

    def _sample(self) -> None:
        windows = self.windows
        devices = {index: device for window in windows for index, device in window.devices.items()}
        for index, device in devices.items():
            active = [window for window in windows if index in window.devices and not window.tracks[index].stopped]
            if not active or device.nvml is None:
                continue
            begin = time.perf_counter()
            try:
                memory = device.nvml.memory(device.handle)
            except IpyGpuMemError as error:
                for window in active:
                    window.tracks[index].fail(begin - window.start, str(error))
                continue
            end = time.perf_counter()
            for window in active:
                window.tracks[index].source = memory.source
                window.tracks[index].add(MemorySample(begin - window.start, end - window.start, memory.used))


def add_reserved_usage(
    snapshot: Mapping[str, Any], windows: Sequence[SampleWindow], started_us: int, dropped: Sequence[int | None]
) -> None:
    """Set `DeviceSamples.reserved` for each sampled device that has recorded events or no dropped events."""
    reserved: dict[int, int] = {}
    for segment in snapshot.get("segments", ()):
        reserved[segment["device"]] = reserved.get(segment["device"], 0) + segment["total_size"]
    for index, trace in enumerate(snapshot.get("device_traces", ())):
        sampled = [window for window in windows if index in window.tracks]
        complete = index < len(dropped) and dropped[index] == 0
        if not sampled or not (trace or complete):
            continue
        history = ReservedMemoryCurve(trace, reserved.get(index, 0), since=started_us / 1e6, complete=complete)
        for window in sampled:
            window.tracks[index].reserved = history


def sampled_curves(
    windows: Sequence[SampleWindow], before: Mapping[str, DeviceReading], after: Mapping[str, DeviceReading]
) -> dict[str, dict[str, Any]]:
    """Return curves of the sampled memory usage by name, in the format of snapshot files (see snapshot/FORMAT.md)."""
    curves: dict[str, dict[str, Any]] = {}
    several = len({index for window in windows for index in tuple(window.tracks)}) > 1
    for window in windows:
        for index, track in tuple(window.tracks.items()):
            name = f"cuda:{index}"
            start, end = before.get(name), after.get(name)
            if start is None or end is None:
                continue
            is_process_known = start.process is not None and end.process is not None
            outside = "outside PyTorch" if is_process_known else "outside PyTorch + other processes"
            sizes = {
                "device used": [(sample, sample.used) for sample in track.samples],
                outside: _outside(window, index, start, end),
            }
            for label, points in sizes.items():
                if points:
                    curve_name = f"{label}, {name}" if several else label
                    curve = curves.setdefault(curve_name, {"device": index, "time_us": [], "bytes": []})
                    curve["time_us"] += [round((window.epoch + sample.begin) * 1e6) for sample, _ in points]
                    curve["bytes"] += [nbytes for _, nbytes in points]
    return curves


def _outside(
    window: SampleWindow, index: int, before: DeviceReading, after: DeviceReading
) -> list[tuple[MemorySample, int]]:
    reserved = window.tracks[index].reserved
    if reserved is None or before.source != after.source:
        return []
    other_memory = before.driver_reserved or 0
    if before.process is not None and after.process is not None:
        other_memory += max_other_memory(before, after)
    epoch, samples = window.epoch, window.tracks[index].samples
    sizes = ((sample, reserved.at(epoch + sample.begin, epoch + sample.end)) for sample in samples)
    # the reserved memory is unknown while a segment is being allocated or freed
    return [(sample, max(sample.used - other_memory - size, 0)) for sample, size in sizes if size is not None]
