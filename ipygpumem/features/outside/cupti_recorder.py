"""Recorder of CUDA memory allocations, for measurements and the setting ``GPUMem.outside``.

A background thread reads CUPTI's completed buffers several times per second and updates the live allocations and the
totals of each open measurement. Each thread of the program fills its own buffers. Therefore, records are sorted by
time, and each record is processed with a delay, because older records from other threads may still arrive.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import threading
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.errors import CuptiError
from ipygpumem.features.outside.allocation_totals import (
    COLUMNS,
    TIME,
    AllocationOwner,
    LiveAllocations,
    RecordingInterval,
    pytorch_segments,
)
from ipygpumem.measurement.observers import ProfilerObservers, is_profiling
from ipygpumem.measurement.runtime import current
from ipygpumem.sources.cupti.buffers import ActivityBuffers
from ipygpumem.sources.cupti.library import CuptiLibrary

_DELAY_NS = 100_000_000
"""Delay before records are processed. A record is written when a call ends, but its timestamp is the call's start."""
_POLL_SECONDS = 0.05
_EMPTY: NDArray[Any] = np.zeros((0, COLUMNS), dtype=np.int64)


class CuptiRecorder:
    """Recorder of the CUDA memory allocations of this process: device memory, managed memory and pinned memory.

    A process has only one recorder, because CUPTI's callbacks are global.
    """

    def __init__(self) -> None:
        self.reported_problems: set[str] = set()  # messages that the user has already seen
        self._lock = threading.RLock()
        self._forked = False
        self._users = 0
        self._intervals: list[RecordingInterval] = []
        self._sources: tuple[CuptiLibrary, ActivityBuffers] | None = None
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
        try:
            self._prepare()
        except CuptiError as error:
            return str(error)
        return self._failed

    def _prepare(self) -> tuple[CuptiLibrary, ActivityBuffers]:
        if self._forked:
            raise CuptiError("allocations cannot be recorded in a forked process")
        if self._sources is None:
            self._sources = CuptiLibrary(), ActivityBuffers.shared()
            os.register_at_fork(after_in_child=self._forget)
        return self._sources

    def _forget(self) -> None:
        self._forked = True
        self._lock = threading.RLock()  # a thread of the parent process may have held the previous lock
        self._users, self._intervals, self._recording, self._thread = 0, [], False, None

    def acquire(self) -> None:
        with self._lock:
            self._prepare()
            if not self._users:
                try:
                    self._start()
                except BaseException as error:
                    self._end()
                    if isinstance(error, CuptiError):
                        self._failed = f"the last attempt to start recording failed: {error}"
                    raise
                self._failed = None
            self._users += 1

    def _start(self) -> None:
        self._live, self._pending = LiveAllocations(), _EMPTY
        self._observers = current().state(ProfilerObservers)
        self._observers.add(self.pause, self.resume)
        self._paused_at = time.perf_counter() if is_profiling() else None
        if self._paused_at is None:
            self._start_cupti()
        atexit.register(self.close)
        self._stop = threading.Event()  # a new event, because the previous thread may still be running
        self._thread = threading.Thread(
            target=self._read_buffers, args=(self._stop,), name="ipygpumem-outside", daemon=True
        )
        self._thread.start()

    def _start_cupti(self) -> None:
        cupti, buffers = self._prepare()
        self._recording = True  # set first, so that recording is stopped after an interrupt
        cupti.start(buffers)
        self._since = time.time()
        for device, address, nbytes in pytorch_segments():
            self._live.add_segment(device, address, nbytes)

    def release(self) -> None:
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
        self._live, self._pending = LiveAllocations(), _EMPTY
        if self._sources is not None:
            self._sources[1].wake()
        if thread is not None and thread is not threading.current_thread():
            self._lock.release()  # the thread may be waiting for the lock
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

    def close(self) -> None:
        with self._lock:
            if self._users:
                self._users = 0
                for interval in tuple(self._intervals):
                    self.close_interval(interval)
                    interval.problem = interval.problem or "the extension was unloaded"
                self._end()

    def open_interval(self) -> RecordingInterval:
        """Return a new interval. This method must be called between `acquire` and `release`.

        Raises `CuptiError` if CUPTI's records cannot be read.
        """
        with self._lock:
            cupti, buffers = self._prepare()
            self._collect()
            interval = RecordingInterval(cupti.now(), seconds=-self._paused_seconds(), lost=buffers.lost)
            self._intervals.append(interval)
            return interval

    def _paused_seconds(self) -> float:
        return self._pauses + (0 if self._paused_at is None else time.perf_counter() - self._paused_at)

    def close_interval(self, interval: RecordingInterval) -> None:
        """Process all records so far, and end the interval. Do nothing if it has already ended."""
        with self._lock:
            if interval not in self._intervals:
                return
            try:
                self._collect()
                if any(owner.outside and totals.allocated for owner, totals in interval.owners.items()):
                    self._attribute_segments()  # otherwise skipped because listing many segments is slow
            except CuptiError as error:
                interval.problem = str(error)
            interval.seconds += self._paused_seconds()
            interval.lost = self._prepare()[1].lost - interval.lost
            self._intervals.remove(interval)

    def _attribute_segments(self) -> None:
        for device, address, _ in pytorch_segments():
            self._live.move_to_pytorch(device, address, self._intervals)

    def live_by_owner(self) -> tuple[float, dict[AllocationOwner, int]] | None:
        """Return the Unix time at which recording started, and the live bytes by owner.

        The result is None if recording is not active. Raises `CuptiError` if CUPTI's records cannot be read.
        """
        with self._lock:
            if not self._recording:
                return None
            self._collect()
            self._attribute_segments()
            return self._since, self._live.by_owner()

    def pause(self) -> None:
        """Process all records and release CUPTI, so that a profiler can use it until `resume` is called."""
        with self._lock:
            if self._paused_at is None and self._users:
                self._stop_cupti()
                self._live, self._pending = LiveAllocations(), _EMPTY  # frees are not recorded during the pause
                self._paused_at = time.perf_counter()

    def resume(self) -> None:
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
        cupti, buffers = self._prepare()
        cupti.flush()
        tables, problem = [self._pending], None
        for address, valid in buffers.completed():
            try:
                tables.append(self._live.table(cupti, address, valid))
            except CuptiError as error:
                problem = error
            buffers.recycle(address)
        table = np.concatenate(tables)
        table = table[np.argsort(table[:, TIME], kind="stable")]
        end = len(table) if until is None else int(np.searchsorted(table[:, TIME], until, side="right"))
        self._pending = table[end:]
        if end:
            self._live.apply(table[:end], self._intervals)
        if problem is not None:
            for interval in self._intervals:  # all intervals lack these records
                interval.problem = interval.problem or str(problem)
            raise problem


def cupti_recorder() -> CuptiRecorder:
    return current().state(CuptiRecorder)
