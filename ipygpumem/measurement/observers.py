"""Observers of backward passes and of torch.profiler.

PyTorch runs backward passes on its own threads, whose Python stacks do not contain the code that called ``backward``.
All backward passes are started by one Python function in ``torch.autograd``, which is wrapped while observers exist.

torch.profiler must not run at the same time as some collectors:

* torch.profiler and the collector of memory outside PyTorch cannot share CUPTI's activity buffers. A profiler receives
  no records if it starts while such a collector is running (observed with PyTorch 2.11 and CUPTI 13.0).
* Preparing a second profiler ends the first profiler, whose result is then empty. If the second profiler runs in
  another thread, the process crashes when the first profiler stops (observed with PyTorch 2.13).
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable

from ipygpumem.core.data_classes import dataclass
from ipygpumem.measurement.runtime import EventPosition, current, event_position
from ipygpumem.sources.pytorch import CallObservers


class BackwardPassObservers(CallObservers):
    """Observers of backward passes. Their exceptions are ignored to protect the user's backward pass."""

    def __init__(self) -> None:
        function = ("_engine_run_backward",)
        super().__init__("torch.autograd", before=function, after=function, ignored=(Exception,))


@dataclass(frozen=True, slots=True)
class BackwardPass:
    """Backward pass during a measurement.

    Attributes:
        begin, end: Positions in the sequence of allocation events.
        stack: File name and line number of each frame on the stack of the call to ``backward``, innermost first.
    """

    begin: EventPosition
    end: EventPosition
    stack: tuple[tuple[str, int], ...]


class BackwardPassRecorder:
    """Observer that records the backward passes between `start` and `stop`.

    Args:
        pause: Function that is called with True before a pass and with False after the pass. If passes overlap, it is
            called before the first and after the last of them.

    Attributes:
        passes: Passes that have ended.
        running: Number of passes that have not ended.
    """

    def __init__(self, pause: Callable[[bool], None] | None = None) -> None:
        self.passes: list[BackwardPass] = []
        self.running = 0
        self._pause = pause
        self._lock = threading.Lock()
        self._running = threading.local()

    def start(self) -> None:
        current().state(BackwardPassObservers).add(self._begin_pass, self._end_pass)

    def stop(self) -> None:
        current().state(BackwardPassObservers).remove(self._begin_pass)

    def _count(self, change: int) -> None:
        with self._lock:
            self.running += change
            if self._pause is not None and self.running == max(change, 0):  # the first has begun, or the last has ended
                self._pause(self.running > 0)

    def _begin_pass(self) -> None:
        self._count(1)
        stack = tuple((frame.f_code.co_filename, line) for frame, line in traceback.walk_stack(sys._getframe()))
        vars(self._running).setdefault("passes", []).append((event_position(), stack))

    def _end_pass(self) -> None:
        self._count(-1)
        begin, stack = self._running.passes.pop()
        self.passes.append(BackwardPass(begin, event_position(), stack))


_MODULE = "torch.autograd.profiler"


def is_profiling() -> bool:
    return bool(getattr(sys.modules.get(_MODULE), "_is_profiler_enabled", False))


class ProfilerObservers(CallObservers):
    """Observers that are called before torch.profiler starts and after it stops.

    If the first callback of an observer raises an exception, the profiler does not start.
    """

    def __init__(self) -> None:
        super().__init__(_MODULE, before=("_prepare_profiler", "_enable_profiler"), after=("_disable_profiler",))
