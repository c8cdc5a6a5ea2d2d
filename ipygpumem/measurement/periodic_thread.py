"""A daemon thread that calls a function periodically and ends after five idle seconds."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

IDLE_SECONDS = 5.0
"""Idle time in seconds after which the thread ends, because some programs join all threads before they exit."""
_MIN_POLL = 0.05  # shortest interval in seconds at which a paused thread checks whether to continue
_JOIN_TIMEOUT = 2.0  # in seconds


class PeriodicThread:
    """Thread that calls ``work`` periodically.

    The first call to `start` creates the thread. The thread ends on `close`, or `IDLE_SECONDS` after `pause`, and a
    later `start` creates a new one. An exception in ``work`` pauses the thread; any other exception, for
    example because the program has replaced a builtin function, ends it. Methods do nothing in a forked process.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._name = name
        self._work = work
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._wake = threading.Lock()
        self._next: float | None = None
        self._first = self._interval = 0.0
        self._idle_since = 0.0
        self._sleeps_until = 0.0

    def start(self, first: float, interval: float) -> None:
        """Call ``work`` after ``first`` seconds and then every ``interval`` seconds."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._next, self._first, self._interval = time.monotonic() + first, first, interval
            if self._thread is None:
                self._create()
            elif self._next < self._sleeps_until:
                self._end_sleep()

    def _create(self) -> None:
        wake = threading.Lock()
        wake.acquire()
        thread = threading.Thread(target=self._run, args=(wake,), name=self._name, daemon=True)
        self._thread, self._wake = thread, wake
        try:
            thread.start()
        except BaseException:  # the thread may be running after an interrupt
            self._thread = None
            wake.release()
            raise

    def pause(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            self._next, self._idle_since = None, time.monotonic()

    def close(self) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            thread, self._thread = self._thread, None
            self._end_sleep()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=_JOIN_TIMEOUT)

    def _end_sleep(self) -> None:
        if self._wake.locked():
            self._wake.release()

    def _run(self, wake: threading.Lock) -> None:
        delay: float | None = 0.0
        try:
            while delay is not None:
                wake.acquire(timeout=delay)
                delay = self._delay(wake)
                if delay == 0.0:
                    try:
                        self._work()
                    except Exception:
                        self.pause()
        except Exception:
            with self._lock:
                if self._wake is wake:
                    self._thread = None

    def _delay(self, wake: threading.Lock) -> float | None:
        """Return the number of seconds to wait, 0 if a call to ``work`` is due, or None if the thread should end."""
        with self._lock:
            now = time.monotonic()
            if self._thread is None or self._wake is not wake:
                return None
            if self._next is None:
                idle_left = self._idle_since + IDLE_SECONDS - now
                if idle_left <= 0:
                    self._thread = None
                    return None
                delay = min(max(self._first, _MIN_POLL), idle_left)  # a start with the same delay need not wake it
            elif self._next <= now:
                self._next, delay = max(self._next + self._interval, now), 0.0
            else:
                delay = min(self._next - now, IDLE_SECONDS)
            self._sleeps_until = now + delay
            return delay
