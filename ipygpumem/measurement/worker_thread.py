"""A daemon thread that does periodic work while it is needed, and ends when it has been idle for some seconds."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from typing import TYPE_CHECKING

from ipygpumem.measurement.interval_timer import IntervalTimer, make_timer

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["WorkerThread"]

IDLE_SECONDS = 5.0
"""The thread outlives short breaks between cells, but must end: some programs join all threads at exit."""
_TOLERANCE = 0.1
_JOIN_TIMEOUT = 2.0


class WorkerThread:
    """A thread that calls ``work`` each time its timer expires.

    The first `start` creates the thread. It ends some seconds after the last `pause`, or with `close`. After an error
    in ``work`` it is paused until the next `start`. A forked child does not have the thread, and shares the timer with
    its parent: there all methods do nothing.
    """

    def __init__(self, name: str, work: Callable[[], None]) -> None:
        self._name = name
        self._work = work
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._timer: IntervalTimer | None = None
        self._thread: threading.Thread | None = None
        self._closing: threading.Event | None = None
        self._idle_since: float | None = None

    @property
    def alive(self) -> bool:
        """Whether the thread exists."""
        return self._thread is not None

    def start(self, first: float, interval: float) -> None:
        """Work after ``first`` seconds, then every ``interval`` seconds.

        Raises:
            RuntimeError, OSError: The thread or its timer cannot be created.
        """
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._thread is None:
                self._create()
            self._idle_since = None
            if self._timer is not None:
                self._timer.start(first, interval)

    def _create(self) -> None:
        timer, closing = make_timer(), threading.Event()
        thread = threading.Thread(target=self._run, args=(timer, closing), name=self._name, daemon=True)
        self._idle_since = time.monotonic()
        try:
            thread.start()
        except RuntimeError:
            timer.close()
            raise
        except BaseException:  # interrupted: the thread may be running
            closing.set()
            timer.start(0, 1)
            raise
        self._timer, self._closing, self._thread = timer, closing, thread

    def pause(self) -> None:
        """Do not work until the next `start`."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._timer is not None:
                self._idle_since = time.monotonic()
                self._timer.start(IDLE_SECONDS, 0)

    def close(self) -> None:
        """End the thread, and wait until it has ended."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            thread, timer, closing = self._thread, self._timer, self._closing
            self._thread = self._timer = self._closing = None
        if thread is None or timer is None or closing is None:
            return
        closing.set()
        timer.start(0, 1)
        if thread is not threading.current_thread():
            thread.join(timeout=_JOIN_TIMEOUT)

    def _run(self, timer: IntervalTimer, closing: threading.Event) -> None:
        try:
            while True:
                with contextlib.suppress(InterruptedError):
                    timer.wait()
                if closing.is_set() or self._ends_idle(timer):
                    return
                if self._idle_since is not None:
                    continue
                try:
                    self._work()
                except Exception:
                    self.pause()
        finally:
            timer.close()

    def _ends_idle(self, timer: IntervalTimer) -> bool:
        with self._lock:
            if self._timer is not timer or self._idle_since is None:
                return False
            if time.monotonic() - self._idle_since < IDLE_SECONDS - _TOLERANCE:
                return False
            self._thread = self._timer = self._closing = None
            return True
