"""The card between two readings: for what has no counter, looked at every 5 ms by one thread.

The thread is parked but for measurements that last longer than 50 ms. It asks NVML for a card's memory and nothing
else: the list of processes takes a lock of the driver's that all share, and PyTorch's counters would be read with
Python's lock held, waiting for the allocator's, which is kept during each cudaMalloc and cudaFree.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ipygpumem.core.errors import IpyGpuMemError, first_line
from ipygpumem.core.samples import OutsidePeak, Sample, highest_outside
from ipygpumem.core.units import duration
from ipygpumem.measurement.reserved_bound import MostReserved
from ipygpumem.measurement.worker_thread import Parked

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ipygpumem.core.reading import Reading
    from ipygpumem.core.report import Peak
    from ipygpumem.measurement.reserved_bound import Anchor, Steps
    from ipygpumem.sources.device import Device

__all__ = ["SampleWindow", "Sampler", "Track"]

FIRST = 0.05
INTERVAL = 0.005
_MOST = 8_192
_SPACING = 0.1
_TRIES = 20
"""Failures in a row after which a card is asked no more, in this measurement."""


@dataclass(slots=True)
class Track:
    """One card's samples in one window. A level that stands still is kept every tenth of a second.

    Attributes:
        samples: The kept ones, once the window is closed; of those that were not, none was higher than its neighbours.
        over: Whether the card has failed so often that it is asked no more.
        count: How many were taken.
        gap: The longest time between two, in seconds.
        source: What was asked, as a reading names it.
        trouble: Why there are none at all, or not over the whole time; empty where nothing failed.
        anchors: PyTorch's counters, where somebody read them meanwhile.
        steps: PyTorch's reserved bytes over time, where history was recorded.
    """

    samples: tuple[Sample, ...] = ()
    count: int = 0
    gap: float = 0.0
    source: str = ""
    trouble: str = ""
    over: bool = False
    anchors: list[Anchor] = field(default_factory=list)
    steps: Steps | None = None
    _kept: list[Sample] = field(default_factory=list)
    _last: Sample | None = None
    _spacing: float = _SPACING
    _failures: int = 0
    _row: int = 0

    def fail(self, seconds: float, error: str) -> None:
        """The card did not answer: it is asked again, but not for ever."""
        self._failures += 1
        self._row += 1
        self.over = self._row >= _TRIES
        times = "once" if self._failures == 1 else f"{self._failures} times"
        self.trouble = f"from {duration(seconds)} on none: {error}" if self.over else f"{times} no answer: {error}"

    def add(self, sample: Sample) -> None:
        """Take in the next sample."""
        self._row = 0
        last, kept = self._last, self._kept
        if last is not None:
            self.gap = max(self.gap, sample.begin - last.begin)
            if sample.used == last.used and sample.begin - kept[-1].begin < self._spacing:
                self._last = sample
                self.count += 1
                return
            if sample.used != last.used and kept[-1] is not last:
                kept.append(last)
        kept.append(sample)
        self._last = sample
        self.count += 1
        if len(kept) > _MOST:
            self._thin()

    def _thin(self) -> None:
        """Half as many: of two neighbours the higher stays."""
        kept = self._kept
        self._kept = [max(pair, key=lambda one: one.used) for pair in zip(kept[::2], kept[1::2], strict=False)]
        if len(kept) % 2:
            self._kept.append(kept[-1])
        self._spacing *= 2

    def close(self, end: float) -> None:
        """The window ends: a sample that is still being taken does not count any more."""
        found = [one for one in tuple(self._kept) if one.end <= end]
        last = self._last
        if found and last is not None and last.end <= end:
            self.gap = max(self.gap, end - last.begin)
            if found[-1].begin < last.begin:
                found.append(last)
        self.samples = tuple(found)


class SampleWindow:
    """The samples of one measurement, by device index. Times count from its beginning."""

    def __init__(self, cards: Iterable[Device]) -> None:
        self.cards = {card.index: card for card in cards}
        self.tracks = {index: Track() for index in self.cards}
        self.start = time.perf_counter()
        self.epoch = time.time()

    def fail(self, why: str) -> None:
        """There will be no samples at all."""
        for track in self.tracks.values():
            track.trouble, track.over = why, True

    def look(self, index: int, sample: Sample, source: str) -> None:
        """One sample, with times of the clock."""
        track = self.tracks[index]
        track.source = source
        track.add(Sample(sample.begin - self.start, sample.end - self.start, sample.used))

    def outside_peaks(self, before: Reading, after: Reading, peaks: Mapping[str, Peak]) -> dict[str, OutsidePeak]:
        """What the samples prove about memory outside PyTorch beyond the two readings, by device name."""
        proven: dict[str, OutsidePeak] = {}
        for index, track in self.tracks.items():
            name = f"cuda:{index}"
            start, end, peak = before.devices.get(name), after.devices.get(name), peaks.get(name)
            if start is None or end is None or not track.samples or track.source != start.source:
                continue
            reserved = MostReserved(None if peak is None else peak.counters.reserved, track.anchors, track.steps)
            highest = highest_outside(start, end, track.samples, reserved)
            if highest is not None:
                proven[name] = OutsidePeak(*highest, track.gap, track.samples[0].begin, track.count)
        return proven

    def problems(self) -> dict[str, str]:
        """Why samples are missing, by device name."""
        return {f"cuda:{index}": track.trouble for index, track in self.tracks.items()}

    def anchor(self, index: int, anchor: Anchor) -> None:
        """PyTorch's counters as somebody read them meanwhile, with times of the clock."""
        track = self.tracks.get(index)
        if track is not None and len(track.anchors) < _MOST:
            track.anchors.append(replace(anchor, begin=anchor.begin - self.start, end=anchor.end - self.start))


class Sampler:
    """The windows that are open, and the thread that fills them. One per process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._windows: tuple[SampleWindow, ...] = ()
        self._thread = Parked("ipygpumem-sampler", self._look)
        self._pid = os.getpid()

    def open(self, cards: Iterable[Device]) -> SampleWindow | None:
        """A window from now on; None where there is no card that could be asked."""
        known = [card for card in cards if card.nvml is not None and card.handle is not None]
        if not known or os.getpid() != self._pid:
            return None
        window = SampleWindow(known)
        with self._lock:
            try:
                self._windows = (*self._windows, window)
                if len(self._windows) == 1:
                    self._thread.set(FIRST, INTERVAL)
            except BaseException as error:
                self._windows = self._windows[:-1]
                if not self._windows:
                    self._thread.off()
                if not isinstance(error, (RuntimeError, OSError)):
                    raise
                window.fail(f"no thread for samples ({first_line(error)})")
        return window

    def shut(self, window: SampleWindow | None) -> None:
        """The window's end; a second time is nothing."""
        if window is None or os.getpid() != self._pid:
            return
        end = time.perf_counter() - window.start
        with self._lock:
            if all(one is not window for one in self._windows):
                return
            self._windows = tuple(one for one in self._windows if one is not window)
            if not self._windows:
                self._thread.off()
        for track in window.tracks.values():
            track.close(end)

    def close(self) -> None:
        """No more samples, and no thread: the extension is unloaded."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._windows = ()
        self._thread.close()

    @property
    def windows(self) -> tuple[SampleWindow, ...]:
        """Those that are open now."""
        return self._windows

    def _look(self) -> None:
        windows = self._windows
        cards = {index: card for window in windows for index, card in window.cards.items()}
        for index, card in cards.items():
            open_here = [one for one in windows if index in one.tracks and not one.tracks[index].over]
            if not open_here or card.nvml is None:
                continue
            begin = time.perf_counter()
            try:
                memory = card.nvml.memory(card.handle)
            except IpyGpuMemError as error:
                for window in open_here:
                    window.tracks[index].fail(begin - window.start, str(error))
                continue
            sample = Sample(begin, time.perf_counter(), memory.used)
            for window in open_here:
                window.look(index, sample, memory.source)
