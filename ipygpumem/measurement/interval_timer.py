"""A timer that one thread waits for and others start and stop, without waking the thread each time.

Waking a thread costs time, because it competes for the GIL. Most cells end before the first expiration, so starting
and stopping the timer must not wake the waiting thread. Linux has timer files (timerfd) for that. Elsewhere a condition
variable is used, which wakes the thread each time.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["IntervalTimer", "make_timer"]

_NANO = 1_000_000_000
_CLOCK_MONOTONIC = 1
_TFD_CLOEXEC = 0o2000000
_MAX_SPECS = 16


class IntervalTimer(Protocol):
    """A timer that expires once, or again and again, until it is stopped."""

    def start(self, first: float, interval: float) -> None:
        """Expire after ``first`` seconds, then every ``interval`` seconds; with an interval of 0 only once."""

    def stop(self) -> None:
        """Do not expire any more."""

    def wait(self) -> None:
        """Return when the timer expires, or at once if it has expired since the last call."""

    def close(self) -> None:
        """Release the timer, for which no thread waits any more."""


class _TimerSpec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


class _FileTimer:
    """A timer file of Linux.

    Raises:
        OSError: This system has no timer files, or cannot open another one.
    """

    def __init__(self) -> None:
        try:
            # PyDLL does not release the GIL, which would take longer than these calls
            libc = ctypes.PyDLL(None, use_errno=True)
            create: Callable[..., int] = libc.timerfd_create
            self._settime: Callable[..., int] = libc.timerfd_settime
        except (AttributeError, TypeError) as error:
            raise OSError("this system has no timer files") from error
        self._file = create(_CLOCK_MONOTONIC, _TFD_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._never = ctypes.byref(_TimerSpec())
        self._specs: dict[tuple[float, float], Any] = {}

    def start(self, first: float, interval: float) -> None:
        spec = self._specs.get((first, interval))
        if spec is None:  # cached, as each cell starts the timer with the same times
            if len(self._specs) >= _MAX_SPECS:
                self._specs.clear()
            parts = _TimerSpec(*divmod(int(interval * _NANO), _NANO), *divmod(max(int(first * _NANO), 1), _NANO))
            spec = self._specs[first, interval] = ctypes.byref(parts)
        self._settime(self._file, 0, spec, None)

    def stop(self) -> None:
        self._settime(self._file, 0, self._never, None)

    def wait(self) -> None:
        os.read(self._file, 8)

    def close(self) -> None:
        file, self._file = self._file, -1
        with contextlib.suppress(OSError):
            os.close(file)


class _ConditionTimer:
    """A timer for any system."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next: float | None = None
        self._interval = 0.0

    def start(self, first: float, interval: float) -> None:
        with self._changed:
            self._next, self._interval = time.monotonic() + first, interval
            self._changed.notify_all()

    def stop(self) -> None:
        with self._changed:
            self._next = None
            self._changed.notify_all()

    def wait(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                if self._next is not None and self._next <= now:
                    self._next = max(self._next + self._interval, now) if self._interval else None
                    return
                self._changed.wait(None if self._next is None else self._next - now)

    def close(self) -> None:
        pass


def make_timer() -> IntervalTimer:
    """Return the best timer that this system has."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return _FileTimer()
    return _ConditionTimer()
