"""Records of all device memory allocations outside PyTorch, while a measurement or the user's setting needs them.

CUPTI delivers records in full buffers. A thread reads them a few times a second and keeps only the live allocations
and, for each open measurement, the totals of each library. Each thread of the program fills its own buffers, so records
are sorted by time, and the newest ones wait for older ones from other threads.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import CuptiError
from ipygpumem.features.outside.allocation_totals import (
    COLUMNS,
    TIME,
    LiveAllocations,
    RecordingInterval,
    pytorch_segments,
)
from ipygpumem.measurement.profiler_observers import ProfilerObservers, profiling
from ipygpumem.measurement.runtime import current
from ipygpumem.sources.cupti.buffers import Buffers
from ipygpumem.sources.cupti.library import Cupti

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.features.outside.allocation_totals import Owner

_DELAY_NS = 100_000_000
"""A record carries the time when its call began, and is written when it ends: few calls take longer."""
_POLL_SECONDS = 0.05
_EMPTY: NDArray[Any] = np.zeros((0, COLUMNS), dtype=np.int64)


class OutsideRecords:
    """The recorded allocations of this process. There is one per process, because CUPTI's callbacks are global.

    ``reported_problems`` are the reasons why nothing can be recorded that the user has already seen.
    """

    def __init__(self) -> None:
        self.reported_problems: set[str] = set()
        self._lock = threading.RLock()
        self._forked = False
        self._users = 0
        self._intervals: list[RecordingInterval] = []
        self._sources: tuple[Cupti, Buffers] | None = None
        self._recording = False
        self._pauses = 0.0
        self._paused_at: float | None = None
        self._since = 0.0
        self._thread: threading.Thread | None = None
        self._stop = threading.Event()
        self._live = LiveAllocations()
        self._pending = _EMPTY
        self._failed: str | None = None
        self._observers: ProfilerObservers | None = None

    def problem(self) -> str | None:
        """Return why nothing can be recorded here, or None as far as that is known without trying."""
        try:
            self._prepare()
        except CuptiError as error:
            return str(error)
        return self._failed

    def _prepare(self) -> tuple[Cupti, Buffers]:
        if self._forked:
            raise CuptiError("this process was forked from the one that is being measured")
        if self._sources is None:
            self._sources = Cupti(), Buffers.pool()
            os.register_at_fork(after_in_child=self._forget)
        return self._sources

    def _forget(self) -> None:
        """In a forked child, drop what belongs to the parent process. One of its threads may have held the lock."""
        self._forked = True
        self._lock = threading.RLock()
        self._users, self._intervals, self._recording, self._thread = 0, [], False, None

    def acquire(self) -> None:
        """Start recording, until `release` has been called as often as `acquire`; may raise CuptiError."""
        with self._lock:
            self._prepare()
            if not self._users:
                try:
                    self._start()
                except BaseException as error:
                    self._end()
                    if isinstance(error, CuptiError):
                        self._failed = f"the last attempt failed: {error}"
                    raise
                self._failed = None
            self._users += 1

    def _start(self) -> None:
        self._clear()
        self._observers = current().state(ProfilerObservers)
        self._observers.add(self.pause, self.resume)
        self._paused_at = time.perf_counter() if profiling() else None
        if self._paused_at is None:
            self._start_cupti()
        atexit.register(self.close)
        self._stop = threading.Event()  # a new one, as the previous thread may still be ending
        self._thread = threading.Thread(
            target=self._read_buffers, args=(self._stop,), name="ipygpumem-outside", daemon=True
        )
        self._thread.start()

    def _start_cupti(self) -> None:
        cupti, buffers = self._prepare()
        self._recording = True  # before starting, so that an interrupt stops it again
        cupti.start(buffers)
        self._since = time.time()
        for device, address, nbytes in pytorch_segments():
            self._live.add_segment(device, address, nbytes)

    def release(self) -> None:
        """Undo one `acquire`; the last call stops recording."""
        with self._lock:
            self._users = max(self._users - 1, 0)
            if not self._users and self._thread is not None:
                self._end()

    def _end(self) -> None:
        self._stop_cupti()
        if self._observers is not None:
            self._observers.remove(self.pause)
        atexit.unregister(self.close)
        thread, self._thread = self._thread, None
        self._stop.set()
        self._clear()
        if self._sources is not None:
            self._sources[1].wake()
        if thread is not None and thread is not threading.current_thread():
            self._lock.release()  # the thread may be waiting for it
            try:
                thread.join(timeout=2)
            finally:
                self._lock.acquire()

    def _stop_cupti(self) -> None:
        if self._recording:
            self._recording = False
            with contextlib.suppress(CuptiError):
                self._prepare()[0].stop()
            with contextlib.suppress(CuptiError):
                self._collect()

    def _clear(self) -> None:
        self._live.clear()
        self._pending = _EMPTY

    def close(self) -> None:
        """Stop recording for all: the extension is unloaded, or the process ends."""
        with self._lock:
            if self._users:
                self._users = 0
                for interval in tuple(self._intervals):
                    self.close_interval(interval)
                    interval.problem = interval.problem or "the extension was unloaded"
                self._end()

    def open_interval(self) -> RecordingInterval:
        """Begin an interval; only between `acquire` and `release`."""
        with self._lock:
            cupti, buffers = self._prepare()
            self._collect()
            interval = RecordingInterval(cupti.now(), seconds=-self._paused_seconds(), lost=buffers.lost)
            self._intervals.append(interval)
            return interval

    def _paused_seconds(self) -> float:
        return self._pauses + (0 if self._paused_at is None else time.perf_counter() - self._paused_at)

    def close_interval(self, interval: RecordingInterval) -> None:
        """End an interval, with all records until now. Does nothing the second time."""
        with self._lock:
            if interval not in self._intervals:
                return
            try:
                self._collect()
                if any(owner.outside and totals.allocated for owner, totals in interval.owners.items()):
                    self._attribute_segments()  # only then, as listing the segments of a large heap is slow
            except CuptiError as error:
                interval.problem = str(error)
            interval.seconds += self._paused_seconds()
            interval.lost = self._prepare()[1].lost - interval.lost
            self._intervals.remove(interval)

    def _attribute_segments(self) -> None:
        for device, address, _ in pytorch_segments():
            self._live.move_to_pytorch(device, address, self._intervals)

    def live_by_owner(self) -> tuple[float, dict[Owner, int]] | None:
        """Return the start of recording (seconds since 1970) and the live bytes by owner; None without recording."""
        with self._lock:
            if not self._recording:
                return None
            self._collect()
            self._attribute_segments()
            return self._since, self._live.by_owner()

    def pause(self) -> None:
        """Read all records, and leave CUPTI to a profiler until `resume`."""
        with self._lock:
            if self._paused_at is None and self._users:
                self._stop_cupti()
                self._clear()  # frees are not recorded during the pause
                self._paused_at = time.perf_counter()

    def resume(self) -> None:
        """Continue recording."""
        with self._lock:
            if self._paused_at is None or not self._users:
                return
            self._pauses, self._paused_at = self._paused_seconds(), None
            try:
                self._start_cupti()
            except CuptiError as error:
                for interval in self._intervals:
                    interval.problem = str(error)

    def _read_buffers(self, stop: threading.Event) -> None:
        """Read full buffers a few times a second, in the thread."""
        cupti, buffers = self._prepare()
        poll = select.poll()
        poll.register(buffers.ready, select.POLLIN)
        while not stop.is_set():
            poll.poll()
            with self._lock, contextlib.suppress(CuptiError):
                if not stop.is_set():
                    self._collect(cupti.now() - _DELAY_NS)
            stop.wait(_POLL_SECONDS)

    def _collect(self, until: int | None = None) -> None:
        """Read all records and apply those until a time, or all."""
        cupti, buffers = self._prepare()
        cupti.flush()
        tables, problem = [self._pending], None
        for address, valid in buffers.full():
            try:
                tables.append(self._live.table(cupti, address, valid))
            except CuptiError as error:
                problem = error
            buffers.give_back(address)
        table = np.concatenate(tables)
        table = table[np.argsort(table[:, TIME], kind="stable")]
        end = len(table) if until is None else int(np.searchsorted(table[:, TIME], until, side="right"))
        self._pending = table[end:]
        if end:
            self._live.apply(table[:end], self._intervals)
        if problem is not None:
            for interval in self._intervals:  # all have lost these records
                interval.problem = interval.problem or str(problem)
            raise problem


def outside_records() -> OutsideRecords:
    """Return the records of this process."""
    return current().state(OutsideRecords)
