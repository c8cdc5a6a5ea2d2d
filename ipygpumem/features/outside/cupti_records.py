"""Every allocation of device memory outside PyTorch, by library, while somebody asks for it.

Records come from `ipygpumem.sources.cupti.library` in full buffers; a thread fetches them now and then, and only
what is live by address, and for each open measurement a level and a peak of each library. Each thread of a program
fills buffers of its own, so records are put into their order in time first, and the newest wait a moment for others
that are older.
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
from ipygpumem.features.outside.accounts import COLUMNS, TIME, Accounts, Window
from ipygpumem.features.outside.rows import rows
from ipygpumem.measurement.profiler_handover import profiling, release_profiler, watch_profiler
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import allocator, pytorch
from ipygpumem.sources.cupti.buffers import Buffers
from ipygpumem.sources.cupti.library import Cupti

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.features.outside.accounts import Owner

__all__ = ["OutsideBook", "outside_records"]

_MARGIN_NS = 100_000_000
"""A record carries the time at which its call began, and comes once that has ended: few calls last longer."""
_PAUSE = 0.05
_FORKED = "this process was forked from the one that measures"
_EMPTY: NDArray[Any] = np.zeros((0, COLUMNS), dtype=np.int64)


class OutsideBook:
    """What is allocated, and the open windows on it. One per process: CUPTI's callbacks are the process's."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._users = 0
        self._windows: list[Window] = []
        self._cupti: Cupti | None = None
        self._buffers: Buffers | None = None
        self._on = False
        self._paused_at: float | None = None
        self._since = 0.0
        self._thread: threading.Thread | None = None
        self._leave = threading.Event()
        self._accounts = Accounts()
        self._waiting = _EMPTY
        self._refused: str | None = None
        self.told: set[str] = set()
        """Reasons why nothing can be told by library that have been said, where everything is asked for."""

    def obstacle(self) -> str | None:
        """Why nothing can be told by library here; None where it can, as far as can be said without trying."""
        if self._forked():
            return _FORKED
        try:
            self._prepare()
        except CuptiError as error:
            return str(error)
        return self._refused

    def _forked(self) -> bool:
        """Whether this is a forked child: the lock may then be held for ever, by a thread that is not here."""
        return os.getpid() != self._pid

    def _prepare(self) -> tuple[Cupti, Buffers]:
        if self._cupti is None or self._buffers is None:
            cupti = Cupti()
            self._cupti, self._buffers = cupti, Buffers.pool()
        return self._cupti, self._buffers

    def acquire(self) -> None:
        """Record from here on, until the last who asked has called `release`.

        Raises:
            CuptiError: Nothing can be recorded here; the message says why, and what to do.
        """
        if self._forked():
            raise CuptiError(_FORKED)
        with self._lock:
            cupti, buffers = self._prepare()
            if not self._users:
                try:
                    self._begin(cupti, buffers)
                except BaseException as error:
                    self._end()
                    if isinstance(error, CuptiError):
                        self._refused = f"at the last try: {error}"
                    raise
                self._refused = None
            self._users += 1

    def _begin(self, cupti: Cupti, buffers: Buffers) -> None:
        self._forget()
        watch_profiler(self.pause, self.resume)
        if profiling():
            self._paused_at = time.perf_counter()
        else:
            self._paused_at = None
            self._switch_on(cupti, buffers)
        atexit.register(self.close)
        self._leave = threading.Event()  # of this thread alone: another may begin while this one ends
        self._thread = threading.Thread(
            target=self._fetch, args=(buffers, self._leave), name="ipygpumem-outside", daemon=True
        )
        self._thread.start()

    def _switch_on(self, cupti: Cupti, buffers: Buffers) -> None:
        self._on = True  # before: what interrupts it has to be taken back, too
        cupti.start(buffers)
        self._since = time.time()
        # what PyTorch has already: by its own list of segments, whatever library CUPTI would have named
        for device, address, size in _segments():
            self._accounts.stands(device, address, size)

    def release(self) -> None:
        """One of those who asked needs it no more."""
        if self._forked():
            return
        with self._lock:
            if not self._users:
                return
            self._users -= 1
            if not self._users:
                self._end()

    def _end(self) -> None:
        self._switch_off()
        release_profiler(self.pause)
        atexit.unregister(self.close)
        thread, self._thread = self._thread, None
        self._leave.set()
        self._forget()
        if self._buffers is not None:
            self._buffers.wake()
        if thread is not None and thread is not threading.current_thread():
            self._lock.release()  # the thread may be waiting for it, and has to see that it shall leave
            try:
                thread.join(timeout=2)
            finally:
                self._lock.acquire()

    def _switch_off(self) -> None:
        if self._on and self._cupti is not None:
            self._on = False
            with contextlib.suppress(CuptiError):
                self._cupti.stop()
            with contextlib.suppress(CuptiError):
                self._collect()

    def _forget(self) -> None:
        self._accounts.forget()
        self._waiting = _EMPTY

    def close(self) -> None:
        """End, whoever still asks: the extension is unloaded, or the process ends."""
        if self._forked():
            return
        with self._lock:
            if self._users:
                self._users = 0
                for window in self._windows:  # a block that is still open must not take what it has for all
                    window.trouble = window.trouble or "recording was ended for all: the extension was unloaded"
                self._end()
                self._windows.clear()

    def open(self) -> Window:
        """A window from now on; between `acquire` and `release`."""
        if self._forked():
            raise CuptiError(_FORKED)
        with self._lock:
            cupti, buffers = self._prepare()
            self._collect()
            window = Window(cupti.now(), lost=buffers.lost)
            self._windows.append(window)
            if self._paused_at is not None:
                window.seconds -= time.perf_counter() - self._paused_at
            return window

    def shut(self, window: Window) -> None:
        """The window's end: whatever has been recorded is in it. A second time is nothing."""
        if self._forked():
            return
        with self._lock:
            if all(one is not window for one in self._windows):
                return
            try:
                self._collect()
                if window.grown:  # the list of a large heap takes its time
                    for device, address, _ in _segments():
                        self._accounts.adopt(device, address, self._windows)
            except CuptiError as error:
                window.trouble = str(error)
            if self._paused_at is not None:
                window.seconds += time.perf_counter() - self._paused_at
            window.lost = (self._buffers.lost if self._buffers else 0) - window.lost
            self._windows = [one for one in self._windows if one is not window]

    def standing(self) -> tuple[float, dict[Owner, int]] | None:
        """Since when everything is recorded, in seconds since 1970, and what came since and is live, by owner.

        None where nothing is being recorded now.
        """
        if self._forked():
            return None
        with self._lock:
            if not self._on:
                return None
            self._collect()
            for device, address, _ in _segments():
                self._accounts.adopt(device, address, self._windows)
            return self._since, self._accounts.standing()

    def pause(self) -> None:
        """Leave CUPTI to somebody else: fetch what is there, and record nothing until `resume`."""
        if self._forked():
            return
        with self._lock:
            if self._paused_at is None and self._users:
                self._switch_off()
                self._forget()  # what is freed meanwhile is not seen: an address then says nothing any more
                self._paused_at = time.perf_counter()

    def resume(self) -> None:
        """Record again."""
        if self._forked():
            return
        with self._lock:
            if self._paused_at is None or not self._users:
                return
            gap, self._paused_at = time.perf_counter() - self._paused_at, None
            for window in self._windows:
                window.seconds += gap
            try:
                self._switch_on(*self._prepare())
            except CuptiError as error:
                for window in self._windows:
                    window.trouble = str(error)

    def _fetch(self, buffers: Buffers, leave: threading.Event) -> None:
        """The thread: while buffers fill up, fetch them a few times a second."""
        waits = select.poll()
        waits.register(buffers.ready, select.POLLIN)
        while not leave.is_set():
            waits.poll()
            with self._lock:
                if not leave.is_set() and self._cupti is not None:
                    with contextlib.suppress(CuptiError):
                        self._collect(self._cupti.now() - _MARGIN_NS)
            leave.wait(_PAUSE)

    def _collect(self, until: int | None = None) -> None:
        """Fetch what is recorded, and enter what is older than a time; everything, without one."""
        cupti, buffers = self._prepare()
        cupti.flush()
        tables, trouble = [self._waiting], None
        for address, valid in buffers.full():
            try:
                tables.append(rows(cupti, self._accounts, address, valid))
            except CuptiError as error:
                trouble = error
            buffers.give_back(address)
        table = np.concatenate(tables)
        table = table[np.argsort(table[:, TIME], kind="stable")]
        end = len(table) if until is None else int(np.searchsorted(table[:, TIME], until, side="right"))
        self._waiting = table[end:]
        if end:
            self._accounts.enter(table[:end], self._windows)
        if trouble is not None:
            for window in self._windows:  # whoever collects, the thread too: what could not be read is lost to all
                window.trouble = window.trouble or str(trouble)
            raise trouble


def _segments() -> list[tuple[int, int, int]]:
    """Device index, address and bytes of PyTorch's segments; none while the user records: a history notes the look."""
    try:
        if pytorch.started() is None or (allocator.is_recording() and not current().active_recording.running):
            return []
        return [(one["device"], one["address"], one["total_size"]) for one in allocator.segments()]
    except Exception:  # a backend that keeps no list
        return []


def outside_records() -> OutsideBook:
    """The records of this process."""
    return current().state(OutsideBook)
