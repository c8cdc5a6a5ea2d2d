"""A daemon thread that is parked until somebody needs it, and gone some seconds after the last one did."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

from ipygpumem.measurement.interval_timer import Alarm, make_alarm

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Parked"]

LINGER = 5.0
"""Cells follow each other, and a thread costs more than an alarm; but programs end with joining all threads."""
_EARLY = 0.1
_JOIN = 2.0


class Parked:
    """One thread that calls ``work`` at each ring of its alarm.

    It begins with a `set`, and ends some seconds after the last `off`, or with `close`. An error in ``work`` parks it:
    the next `set` tries again. In a forked child there is no such thread, and the alarm is the parent's: there
    everything is nothing.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._name = name
        self._work = work
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._alarm: Alarm | None = None
        self._thread: threading.Thread | None = None
        self._leaving: threading.Event | None = None
        self._idle: float | None = None
        """When it was parked; None while it is wanted."""

    @property
    def alive(self) -> bool:
        """Whether the thread is there."""
        return self._thread is not None

    def set(self, first: float, interval: float) -> None:
        """Work after ``first`` seconds, then every ``interval`` seconds.

        Raises:
            RuntimeError, OSError: There can be no further thread, or no alarm for it.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._thread is None:
                self._begin()
            self._idle = None
            if self._alarm is not None:
                self._alarm.set(first, interval)

    def _begin(self) -> None:
        alarm, leaving = make_alarm(), threading.Event()
        thread = threading.Thread(target=self._run, args=(alarm, leaving), name=self._name, daemon=True)
        self._idle = time.monotonic()
        try:
            thread.start()
        except RuntimeError:
            alarm.close()
            raise
        except BaseException:  # interrupted: it may be there
            leaving.set()
            alarm.set(0, 1)
            raise
        self._alarm, self._leaving, self._thread = alarm, leaving, thread

    def off(self) -> None:
        """Park."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._alarm is not None:
                self._idle = time.monotonic()
                self._alarm.set(LINGER, 0)

    def close(self) -> None:
        """End the thread, and wait for that."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            thread, alarm, leaving = self._thread, self._alarm, self._leaving
            self._thread = self._alarm = self._leaving = None
        if thread is None or alarm is None or leaving is None:
            return
        leaving.set()
        alarm.set(0, 1)
        if thread is not threading.current_thread():
            thread.join(timeout=_JOIN)

    def _run(self, alarm: Alarm, leaving: threading.Event) -> None:
        try:
            while True:
                with contextlib.suppress(InterruptedError):
                    alarm.wait()
                if leaving.is_set() or self._has_idled(alarm):
                    return
                if self._idle is not None:
                    continue
                try:
                    self._work()
                except Exception:
                    self.off()
        finally:
            alarm.close()

    def _has_idled(self, alarm: Alarm) -> bool:
        """Whether nobody has wanted this thread for long: then it is no more."""
        with self._lock:
            if self._alarm is not alarm or self._idle is None or time.monotonic() - self._idle < LINGER - _EARLY:
                return False
            self._thread = self._alarm = self._leaving = None
            return True
