"""The observer of allocations that fail: one for the process, and it never raises.

PyTorch calls it in the thread that asked, before the error is raised, sometimes several times for one failure; it can
never be detached; and an exception in it would take the place of the user's own. So what stands there is a small
function that calls whoever is listening, and swallows everything.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ipygpumem.features.holders.frames import is_own, thread_name
from ipygpumem.features.oom.model import Failure, Frame, FreePieces, free_pieces
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import allocator, pytorch

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

    from ipygpumem.core.other_process import OtherProcess
    from ipygpumem.core.reading import DeviceReading
    from ipygpumem.features.holders.model import Holders
    from ipygpumem.sources.device_monitor import DeviceMonitor

__all__ = ["Failures", "failed_allocations"]

_MOST = 100
"""Failures that are kept until somebody takes them: a loop may try thousands of times."""
_DEPTH = 64
"""Frames of a stack."""


class Failures:
    """The allocations that failed since somebody last asked.

    Attributes:
        count: How many failed.
    """

    def __init__(self) -> None:
        self._monitor: DeviceMonitor | None = None
        self._holders: Callable[[], Holders] | None = None
        self._save: Callable[[Failure], str] | None = None
        self._kept: list[Failure] = []
        self.count = 0
        self._walked = False
        self._inside = threading.local()
        self._pid = 0

    def listen(
        self,
        monitor: DeviceMonitor,
        holders: Callable[[], Holders] | None,
        save: Callable[[Failure], str] | None = None,
    ) -> bool:
        """Record every failure from now on, with a device reading; whether this PyTorch reports failures.

        ``holders`` walks the heap, once a cell; ``save`` writes a history, and says where. Before CUDA has started
        nothing is attached: try again later.
        """
        self._monitor, self._holders, self._save = monitor, holders, save
        self._pid = os.getpid()
        return pytorch.listen_for_ooms(self._failed)

    def deafen(self) -> None:
        """Take no more down. PyTorch goes on calling, and nobody listens."""
        self._monitor = self._holders = self._save = None
        pytorch.listen_for_ooms(None)
        self.take()

    close = deafen

    def take(self) -> list[Failure]:
        """What failed since the last time, the oldest first; at most a hundred of them."""
        kept, self._kept = self._kept, []
        self.count, self._walked = 0, False
        return kept

    def _failed(self, index: int, asked: int, allowed: int, free: int) -> None:
        monitor = self._monitor
        if monitor is None or getattr(self._inside, "here", False) or os.getpid() != self._pid:
            return  # what we do here may itself run out of memory
        self._inside.here = True
        try:
            self._take_down(monitor, index, asked, allowed, free)
        finally:
            self._inside.here = False

    def _take_down(self, monitor: DeviceMonitor, index: int, asked: int, allowed: int, free: int) -> None:
        self.count += 1
        first = Failure(f"cuda:{index}", asked, allowed, free, time.time())
        self._kept.append(first)
        del self._kept[:-_MOST]
        # each part may fail alone, and then the others stand
        bare = replace(first, thread=_try(_thread) or "")
        self._keep(first, bare)
        frames = _try(_stack) or ()
        reading: DeviceReading | None = _try(lambda: monitor.read(busy=False).devices.get(bare.device))
        pieces: FreePieces | None = _try(lambda: free_pieces(allocator.segments(), index))
        neighbours: tuple[OtherProcess, ...] = _try(lambda: monitor.other_processes(index)) or ()
        found = Failure(bare.device, asked, allowed, free, bare.time, bare.thread, frames, reading, pieces, neighbours)
        self._keep(bare, found)
        if self._walked:
            return
        self._walked = True
        held = _try(self._holders) if self._holders is not None else None
        saved = ""
        if self._save is not None:
            save = self._save
            saved = _try(lambda: save(found)) or ""
        self._keep(found, _with(found, held, saved))

    def _keep(self, old: Failure, new: Failure) -> None:
        for at in reversed(range(len(self._kept))):
            if self._kept[at] is old:
                self._kept[at] = new
                return


def _with(failure: Failure, held: Holders | None, saved: str) -> Failure:
    return replace(failure, holders=held, saved=saved)


def _try(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except Exception:  # memory may be short here, too
        return None


def _thread() -> str:
    """This thread's name; of the main thread none."""
    thread = threading.current_thread()
    return "" if thread is threading.main_thread() else thread_name(thread)


def _stack() -> tuple[Frame, ...]:
    """Python's stack in this thread without our own frames; of a thread of PyTorch's own, the main thread's."""
    frames = _frames(sys._getframe())
    if frames:
        return frames
    innermost = sys._current_frames().get(threading.main_thread().ident or 0)
    return _frames(innermost)


def _frames(frame: FrameType | None) -> tuple[Frame, ...]:
    found: list[Frame] = []
    while frame is not None and len(found) < _DEPTH:
        if not is_own(frame):
            found.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(found)


def failed_allocations() -> Failures:
    """The failed allocations of this process."""
    return current().state(Failures)
