"""A daemon thread that does periodic work while it is needed, and ends when it has been idle for some seconds."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

IDLE_SECONDS = 5.0
"""The thread outlives short breaks between cells, but must end: some programs join all threads at exit."""
_POLL = 0.05
"""Interval at which a paused thread looks for a new start. Waking it would take longer, as it competes for the GIL."""
_JOIN_TIMEOUT = 2.0


class WorkerThread:
    """A thread that calls ``work`` periodically.

    The first `start` creates the thread. It ends some seconds after the last `pause`, or with `close`. After an error
    in ``work`` it is paused until the next `start`. A forked child does not have the thread: there all methods do
    nothing.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._name = name
        self._work = work
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake = threading.Lock()
        self._next: float | None = None
        self._interval = 0.0
        self._idle_since = 0.0
        self._sleeps_until = 0.0

    @property
    def alive(self) -> bool:
        """Whether the thread exists."""
        return self._thread is not None

    def start(self, first: float, interval: float) -> None:
        """Work after ``first`` seconds, then every ``interval`` seconds; RuntimeError if there can be no thread."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._next, self._interval = time.monotonic() + first, interval
            if self._thread is None:
                self._create()
            elif self._next < self._sleeps_until:
                _release(self._wake)

    def _create(self) -> None:
        wake = threading.Lock()
        wake.acquire()
        thread = threading.Thread(target=self._run, args=(wake,), name=self._name, daemon=True)
        self._thread, self._wake = thread, wake
        try:
            thread.start()
        except BaseException:  # after an interrupt the thread may be running
            self._thread = None
            wake.release()
            raise

    def pause(self) -> None:
        """Do not work until the next `start`."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._next, self._idle_since = None, time.monotonic()

    def close(self) -> None:
        """End the thread, and wait until it has ended."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            thread, self._thread = self._thread, None
            _release(self._wake)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=_JOIN_TIMEOUT)

    def _run(self, wake: threading.Lock) -> None:
        delay: float | None = 0.0
        while delay is not None:
            wake.acquire(timeout=delay)
            delay = self._delay(wake)
            if delay == 0.0:
                try:
                    self._work()
                except Exception:
                    self.pause()

    def _delay(self, wake: threading.Lock) -> float | None:
        """Seconds until the next work; 0 if it is due, and None if the thread is to end."""
        with self._lock:
            now = time.monotonic()
            if self._thread is None or self._wake is not wake:
                return None
            if self._next is None:
                if now - self._idle_since >= IDLE_SECONDS:
                    self._thread = None
                    return None
                delay = _POLL
            elif self._next <= now:
                self._next, delay = max(self._next + self._interval, now), 0.0
            else:
                delay = min(self._next - now, IDLE_SECONDS)
            self._sleeps_until = now + delay
            return delay


def _release(lock: threading.Lock) -> None:
    if lock.locked():
        lock.release()
