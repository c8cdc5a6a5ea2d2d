"""One open interval: a reading before, options, perhaps a recording; and what becomes of it at its end."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ipygpumem.core.samples import OutsidePeak, highest_outside
from ipygpumem.measurement.build_report import settle
from ipygpumem.measurement.overlap import OVERLAPS, Span
from ipygpumem.measurement.peaks import PEAKS, Scope
from ipygpumem.measurement.recording_keys import CellFacts
from ipygpumem.measurement.reserved_bound import MostReserved
from ipygpumem.measurement.sampler import SAMPLER, SampleWindow
from ipygpumem.sources import host, pytorch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from ipygpumem.core.reading import Reading
    from ipygpumem.core.report import Peak, RecordingFacts, Report
    from ipygpumem.measurement.recorder import Recorder
    from ipygpumem.sources.device_monitor import DeviceMonitor

__all__ = ["Measurement", "MeasurementOptions", "Observer"]

_BESIDE = "another thread measured at the same time: both have the figures of the whole process"
_LATE = "{} is under watch only since this began: it is told of from the next measurement on"


class Observer(Protocol):
    """Something that watches while a measurement is open. To stop it twice, or before it started, is nothing."""

    def start(self) -> None:
        """Begin; an error ends the measurement before the code runs."""

    def stop(self) -> None:
        """End; never raises."""


@dataclass(frozen=True, slots=True)
class MeasurementOptions:
    """How to measure.

    ``reset_peaks`` False leaves PyTorch's peak counters alone: a peak may then be a bound. ``reset_host_peak`` resets
    the kernel's high-water mark (the user's ru_maxrss falls). ``synchronize`` waits for each device's current stream.
    """

    reset_peaks: bool = True
    reset_host_peak: bool = False
    synchronize: bool = False


class Measurement:
    """One open interval over everything that a monitor sees: `begin`, then `end`, or `abandon` instead of it.

    Attributes:
        only: Names of the devices to report on, None for all.
        observers: What else watches meanwhile: each is started last and stopped first, whatever ends the interval.
        overheads: Each tells how many seconds an observer has taken for itself until now: what it takes between begin
            and end is not the code's own time.
        after: The reading at the end.
        recorded: What became of the recording, whether or not it was to be saved; None without one.
        window: The samples of the cards; None where no card can be asked.
    """

    def __init__(self, monitor: DeviceMonitor, options: MeasurementOptions | None = None) -> None:
        self.monitor = monitor
        self.options = options or MeasurementOptions()
        self.only: tuple[str, ...] | None = None
        self.observers: list[Observer] = []
        self.overheads: list[Callable[[], float]] = []
        self.after: Reading | None = None
        self.recorded: RecordingFacts | None = None
        self.window: SampleWindow | None = None
        self._before: Reading | None = None
        self._scope: Scope | None = None
        self._recorder: Recorder | None = None
        self._path: Path | None = None
        self._notes: list[str] = []
        self._start = 0.0
        self._spent = 0.0
        self._unwatched: tuple[str, ...] = ()
        self._span: Span | None = None
        self._start_us = 0
        self._pid = 0

    def begin(self) -> None:
        """Read what is there and start the clock. Whatever interrupts it, nothing of it stays."""
        try:
            self._begin()
        except BaseException:
            self.abandon()
            raise

    def _begin(self) -> None:
        options = self.options
        self._pid = os.getpid()
        self._span = OVERLAPS.begin()
        if options.reset_host_peak and not host.reset_peak():
            self._notes.append("this system cannot reset the host's high-water mark")
        if options.synchronize:
            pytorch.synchronize(self._contexts())
        if pytorch.module() is not None:
            PEAKS.install()
        self._scope = scope = PEAKS.scope()
        self._before = self.monitor.read(
            busy=False, read_allocator=lambda index: PEAKS.enter(scope, index, reset=options.reset_peaks)
        )
        if self._recorder is not None:
            self._start_recording(self._recorder)
        for observer in self.observers:
            observer.start()
        # a device that is not read now, though it could be, is one that nobody knows how much was on
        self._unwatched = tuple(
            card.name for card in self.monitor.devices.values() if card.name not in self._before.devices
        )
        self._spent = self._overhead()
        self._start_us = time.time_ns() // 1000
        self._start = time.perf_counter()
        in_use = [name for name, device in self._before.devices.items() if device.context]
        if in_use:
            self.window = SAMPLER.open(card for card in self.monitor.devices.values() if card.name in in_use)

    def _overhead(self) -> float:
        return sum(one() for one in self.overheads)

    def _start_recording(self, recorder: Recorder) -> None:
        try:
            recorder.start(self._before)
        except BaseException:  # what torch has against an option reaches the user, and leaves nothing behind
            self.abandon()
            raise

    def record(self, recorder: Recorder, path: Path | None) -> None:
        """Record allocation history from `begin` to `end`, and save it to a path that was checked, if there is one."""
        self._recorder, self._path = recorder, path

    @property
    def recording(self) -> bool:
        """Whether this measurement records."""
        return self._recorder is not None

    def end(
        self,
        *,
        success: bool | None = True,
        cell: int | None = None,
        cell_id: str | None = None,
        code: str = "",
        filename: str | None = None,
        sources: Callable[[], Mapping[str, str]] = dict,
        numbers: Callable[[], Mapping[str, int]] = dict,
        notes: tuple[str, ...] = (),
    ) -> Report | None:
        """Stop the clock, read, save the recording, settle. None in a process forked meanwhile: it is the parent's.

        ``sources`` gives the texts of the notebook's cells, ``numbers`` their In numbers, both by file name; they are
        asked only where something was recorded. Whatever interrupts the end, no scope stays open and no recording on.
        """
        seconds = max(time.perf_counter() - self._start - (self._overhead() - self._spent), 0.0)
        SAMPLER.shut(self.window)
        self._stop_observers()
        facts = CellFacts(cell, filename, self._start_us, time.time_ns() // 1000, success)
        if OVERLAPS.end(self._span):
            self._notes.append(_BESIDE)
        before, scope = self._before, self._scope
        if before is None or scope is None or os.getpid() != self._pid:
            return None
        try:
            if self.options.synchronize:
                pytorch.synchronize(self._contexts())
            self.after = after = self.monitor.read(read_allocator=lambda index: PEAKS.leave(scope, index))
            recording = self._save(facts, after, sources, numbers)
        finally:
            self.abandon()
        peaks = scope.peaks()
        late = [name for name in self._unwatched if name in after.devices]
        return settle(
            before,
            after.only(tuple(name for name in after.devices if name not in late)) if late else after,
            {f"cuda:{index}": peak for index, peak in peaks.items()},
            sampled=self._sampled(before, after, peaks),
            unsampled={} if self.window is None else {f"cuda:{i}": t.trouble for i, t in self.window.tracks.items()},
            seconds=seconds,
            only=self.only,
            cell=cell,
            cell_id=cell_id,
            code=code,
            success=success,
            notes=(*self._notes, *(_LATE.format(name) for name in late), *self._unused(before, after), *notes),
            recording=recording,
        )

    def _unused(self, before: Reading, after: Reading) -> list[str]:
        """Devices that are asked for by name, and of which there is nothing to tell."""
        found = []
        for name in self.only or ():
            here = [reading.devices[name] for reading in (before, after) if name in reading.devices]
            if self.monitor.selected is not None and name not in self.monitor.selected:
                found.append(f"{name}: not under watch")
            elif not any(device.context for device in here):
                found.append(f"{name}: not used by this process")
        return found

    def _save(
        self,
        facts: CellFacts,
        after: Reading,
        sources: Callable[[], Mapping[str, str]],
        numbers: Callable[[], Mapping[str, int]],
    ) -> RecordingFacts | None:
        if self._recorder is None:
            return None
        if self.window is not None:
            self._recorder.windows = [self.window]
        self.recorded = self._recorder.save(self._path, sources=sources(), numbers=numbers(), cell=facts, after=after)
        return None if self._path is None else self.recorded

    def _sampled(self, before: Reading, after: Reading, peaks: Mapping[int, Peak]) -> dict[str, OutsidePeak]:
        """What samples prove beyond the two readings, by device name."""
        found = {}
        for index, track in {} if self.window is None else self.window.tracks.items():
            name = f"cuda:{index}"
            start, end, high = before.devices.get(name), after.devices.get(name), peaks.get(index)
            if start is None or end is None or not track.samples or track.source != start.source:
                continue
            most = MostReserved(None if high is None else high.counters.reserved, track.anchors, track.steps)
            highest = highest_outside(start, end, track.samples, most)
            if highest is not None:
                found[name] = OutsidePeak(*highest, track.gap, track.samples[0].begin, track.count)
        return found

    def _stop_observers(self) -> None:
        for observer in reversed(self.observers):
            observer.stop()

    def span(self, *, cell: int | None, filename: str | None, success: bool | None) -> CellFacts:
        """This measurement as a cell of a recording that goes on over several cells."""
        return CellFacts(cell, filename, self._start_us, time.time_ns() // 1000, success)

    def abandon(self) -> None:
        """End, with or without a report: the observers gone, the scope closed, our recording off."""
        OVERLAPS.end(self._span)
        SAMPLER.shut(self.window)
        self._stop_observers()
        if self._scope is not None:
            PEAKS.drop(self._scope)
        if self._recorder is not None:
            self._recorder.stop()

    def _contexts(self) -> list[int]:
        """Devices on which this process has a context, by index."""
        torch = self.monitor.find_devices()
        return [] if torch is None else [index for index in self.monitor.devices if pytorch.has_context(torch, index)]
