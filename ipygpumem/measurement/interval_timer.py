"""Something a thread waits for without waking: set and taken back by others for the price of one system call.

A thread that is woken wants Python's lock, and whoever runs has to hand it over. Most cells end long before anybody has
to look: so setting an alarm must not wake the one who waits for it. Linux has timers that are files; where there are
none, a condition does the same, and its waiter is woken each time.
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

__all__ = ["Alarm", "make_alarm"]

_NANO = 1_000_000_000
_CLOCK_MONOTONIC = 1
_TFD_CLOEXEC = 0o2000000
_MOST = 16


class Alarm(Protocol):
    """Rings once it has been set: first after some seconds, then again and again, until it is switched off."""

    def set(self, first: float, interval: float) -> None:
        """Ring after ``first`` seconds, and every ``interval`` seconds from then on; with 0 only that once."""

    def off(self) -> None:
        """Ring no more."""

    def wait(self) -> None:
        """Return when it rings. Rings that nobody waited for are one."""

    def close(self) -> None:
        """Give back what it holds; nobody waits any more."""


class _Spec(ctypes.Structure):
    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("first_s", ctypes.c_long),
        ("first_ns", ctypes.c_long),
    )


class _TimerFile:
    """A timer of the kernel's.

    Raises:
        OSError: There is none.
    """

    def __init__(self) -> None:
        try:
            # calls that never wait: Python's lock is not worth handing over for them
            libc = ctypes.PyDLL(None, use_errno=True)
            create: Callable[..., int] = libc.timerfd_create
            self._settime: Callable[..., int] = libc.timerfd_settime
        except (AttributeError, TypeError) as error:
            raise OSError("no timers that are files") from error
        self._file = create(_CLOCK_MONOTONIC, _TFD_CLOEXEC)
        if self._file < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        self._never = ctypes.byref(_Spec())
        self._specs: dict[tuple[float, float], Any] = {}

    def set(self, first: float, interval: float) -> None:
        """As `Alarm`."""
        spec = self._specs.get((first, interval))
        if spec is None:  # each cell sets the same ones
            if len(self._specs) >= _MOST:
                self._specs.clear()
            parts = _Spec(*divmod(int(interval * _NANO), _NANO), *divmod(max(int(first * _NANO), 1), _NANO))
            spec = self._specs[first, interval] = ctypes.byref(parts)
        self._settime(self._file, 0, spec, None)

    def off(self) -> None:
        """As `Alarm`."""
        self._settime(self._file, 0, self._never, None)

    def wait(self) -> None:
        """As `Alarm`."""
        os.read(self._file, 8)

    def close(self) -> None:
        """As `Alarm`."""
        file, self._file = self._file, -1
        with contextlib.suppress(OSError):
            os.close(file)


class _Condition:
    """The same with what Python has everywhere."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._next: float | None = None
        self._interval = 0.0

    def set(self, first: float, interval: float) -> None:
        """As `Alarm`."""
        with self._changed:
            self._next, self._interval = time.monotonic() + first, interval
            self._changed.notify_all()

    def off(self) -> None:
        """As `Alarm`."""
        with self._changed:
            self._next = None
            self._changed.notify_all()

    def wait(self) -> None:
        """As `Alarm`."""
        with self._changed:
            while True:
                now = time.monotonic()
                if self._next is not None and self._next <= now:
                    self._next = max(self._next + self._interval, now) if self._interval else None
                    return
                self._changed.wait(None if self._next is None else self._next - now)

    def close(self) -> None:
        """As `Alarm`."""


def make_alarm() -> Alarm:
    """The best alarm that this system has."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return _TimerFile()
    return _Condition()
