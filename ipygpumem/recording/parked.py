"""A daemon thread that is parked until somebody needs it, and gone when nobody will."""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

from ipygpumem.recording.alarm import Alarm, make_alarm

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Parked"]

_JOIN = 2.0


class Parked:
    """One thread that calls ``work`` at each ring of its alarm. It begins with the first `set`, and ends with `close`.

    An error in ``work`` parks it: the next `set` tries again. In a forked child there is no such thread, and the alarm
    is the parent's: there everything is nothing.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._name = name
        self._work = work
        self._pid = os.getpid()
        self._alarm: Alarm | None = None
        self._thread: threading.Thread | None = None
        self._leaving: threading.Event | None = None

    @property
    def alive(self) -> bool:
        """Whether the thread is there."""
        return self._thread is not None

    def set(self, first: float, interval: float) -> None:
        """Work after ``first`` seconds, then every ``interval`` seconds."""
        if os.getpid() != self._pid:
            return
        if self._thread is None:
            self._begin()
        if self._alarm is not None:
            self._alarm.set(first, interval)

    def _begin(self) -> None:
        alarm, leaving = make_alarm(), threading.Event()
        thread = threading.Thread(target=self._run, args=(alarm, leaving), name=self._name, daemon=True)
        self._alarm, self._leaving = alarm, leaving
        thread.start()
        self._thread = thread

    def off(self) -> None:
        """Park."""
        if self._alarm is not None and os.getpid() == self._pid:
            self._alarm.off()

    def close(self) -> None:
        """End the thread, and wait for that."""
        if os.getpid() != self._pid:
            return
        thread, self._thread = self._thread, None
        alarm, self._alarm = self._alarm, None
        if thread is None or alarm is None or self._leaving is None:
            return
        self._leaving.set()
        alarm.set(0, 1)
        if thread is not threading.current_thread():
            thread.join(timeout=_JOIN)
            if not thread.is_alive():
                alarm.close()

    def _run(self, alarm: Alarm, leaving: threading.Event) -> None:
        while True:
            with contextlib.suppress(InterruptedError):
                alarm.wait()
            if leaving.is_set():
                return
            try:
                self._work()
            except Exception:
                alarm.off()
