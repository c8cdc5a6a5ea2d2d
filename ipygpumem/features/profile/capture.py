"""torch.profiler over one measurement: begun with it, ended with it, or as soon as the code profiles itself."""

from __future__ import annotations

import contextlib
import gc
import inspect
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, ClassVar

from ipygpumem.core.errors import RecordingError, first_line
from ipygpumem.core.files import replacing
from ipygpumem.core.garbage_collection import collector_paused
from ipygpumem.features.profile.trace_file import write_trace
from ipygpumem.measurement.profiler_handover import profiling, release_profiler, watch_profiler
from ipygpumem.sources import pytorch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Capture"]

_ELSEWHERE = (
    "a profiler cannot start in this thread: %%gpumem --trace or --timeline profiles the code already, "
    "and two threads that profile end the whole process (a fault of PyTorch's)"
)
_BUSY = "a profiler is at work already, and PyTorch has one at a time: end it first"
_LOG_LEVEL, _SILENT = "KINETO_LOG_LEVEL", "6"


class Capture:
    """One use of torch.profiler, with memory, shapes and stacks; an observer of a measurement.

    One inside another is like any profiler of the code's own: the outer one makes way.

    Attributes:
        result: What torch's profiler found; None before the end, or where nothing came of it.
        aside: After how many seconds it made way for a profiler of the code's own; None where it did not.
        error: Why there is no result.
        cost: Seconds that beginning and ending took, beside the code's own time.

    Raises:
        RecordingError: No profile can be taken here, or one is being taken already.
    """

    _running: ClassVar[Capture | None] = None

    def __init__(self) -> None:
        why = self.obstacle()
        if why:
            raise RecordingError(why)
        self.result: Any | None = None
        self.aside: float | None = None
        self.error = ""
        self.cost = 0.0
        self._profile: Any | None = None
        self._thread = 0
        self._began = 0.0
        self._own = False
        self._pid = os.getpid()

    @staticmethod
    def obstacle() -> str | None:
        """Why no profile can be taken now; None where it can. Imports torch."""
        if not pytorch.importable():
            return "a profile is torch.profiler's, and torch is not installed"
        why = pytorch.problem(load=True)
        torch = pytorch.module()
        if torch is None:
            return f"a profile is torch.profiler's, and {why}"
        available = getattr(torch.autograd, "kineto_available", None)
        if available is None or not available():
            return f"torch {torch.__version__} is built without its profiler (Kineto)"
        running = Capture._running
        if running is not None:
            return None if running._thread == threading.get_ident() else _BUSY
        return _BUSY if profiling() or _waiting(torch) else None

    def start(self) -> None:
        """The measurement begins.

        Raises:
            RecordingError: torch's profiler does not start.
        """
        began = time.perf_counter()
        why = self.obstacle()
        if why:
            raise RecordingError(why)
        torch: Any = sys.modules["torch"]
        profiler = torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        self._pid, self._thread = os.getpid(), threading.get_ident()
        watch_profiler(self._make_way, _nothing)
        try:
            with self._by_us(), _quiet():
                self._profile = profiler.profile(
                    activities=activities,
                    profile_memory=True,
                    record_shapes=True,
                    with_stack=True,
                    **_without_warning(profiler.profile),
                )
                self._profile.start()
                _not_gathering(self._profile)
        except Exception as error:
            self._profile = None
            release_profiler(self._make_way)
            raise RecordingError(f"torch.profiler does not start: {first_line(error)}") from error
        Capture._running = self
        self._began = time.perf_counter()
        self.cost += self._began - began

    def stop(self) -> None:
        """It ends, or does not take place."""
        if os.getpid() != self._pid:  # a forked child has neither the profiler's threads nor its results
            return
        release_profiler(self._make_way)
        if Capture._running is self:
            Capture._running = None
        if self._profile is None or self.result is not None or self.error:
            return
        if threading.get_ident() != self._thread:
            self.error = "the measurement ended in another thread than it began in"
            return
        began = time.perf_counter()
        try:
            with self._by_us(), collector_paused():
                inner: Any = getattr(self._profile, "profiler", None)
                if pytorch.started() is None and hasattr(inner, "use_device"):
                    inner.use_device = None  # waiting for a device would start CUDA on it
                self._profile.stop()
            self.result = self._profile.profiler.kineto_results
            if self.result is None:
                self.error = "torch.profiler has no result"
        except Exception as error:
            self.error = f"torch.profiler did not end well: {first_line(error)}"
        self.cost += time.perf_counter() - began

    def _make_way(self) -> None:
        """A profiler makes ready. Where it is not ours, ours ends before it would be ended without a result.

        Raises:
            RecordingError: In another thread, from which ours cannot be ended.
        """
        if self._own or self._profile is None or self.result is not None or self.error:
            return
        if os.getpid() != self._pid:
            return
        if threading.get_ident() != self._thread:
            raise RecordingError(_ELSEWHERE)
        self.aside = time.perf_counter() - self._began
        self.stop()

    @contextlib.contextmanager
    def _by_us(self) -> Iterator[None]:
        self._own = True
        try:
            yield
        finally:
            self._own = False

    def forget(self) -> None:
        """Let go of what was found: it may be large."""
        self._profile = self.result = None

    def write(self, path: Path) -> int:
        """Write the trace for Perfetto and chrome://tracing; packed where the name ends in ``.gz``.

        Returns:
            The file's size in bytes.

        Raises:
            RecordingError: There is nothing to write, or the disk is full.
        """
        if self._profile is None or self.result is None:
            raise RecordingError(self.error or "nothing was profiled")
        try:
            with replacing(path) as temporary:
                write_trace(self._profile, temporary, path)
                return temporary.stat().st_size
        except OSError as error:
            raise RecordingError(f"the trace {path} was not written: {error.strerror or error}") from error
        except RuntimeError as error:
            raise RecordingError(f"the trace {path} was not written: {first_line(error)}") from error


def _nothing() -> None:
    pass


def _waiting(torch: Any) -> bool:
    """Whether a profiler with a schedule is warming up: it is ready and does not say so anywhere else."""
    kind, action = torch.profiler.profile, torch.profiler.ProfilerAction
    for one in gc.get_objects():
        if type(one) is kind and getattr(one, "current_action", None) is action.WARMUP:
            inner = getattr(one, "profiler", None)
            if inner is not None and getattr(inner, "kineto_results", None) is None:
                return True
    return False


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Kineto reads how loud it shall be when it is first used: without this it writes two lines for each profile."""
    given = os.environ.get(_LOG_LEVEL)
    if given is None:
        os.environ[_LOG_LEVEL] = _SILENT
    try:
        yield
    finally:
        if given is None:
            os.environ.pop(_LOG_LEVEL, None)


def _without_warning(profile: Any) -> dict[str, bool]:
    """PyTorch 2.11 warns of cycles, once, even where there is one only (pytorch#180348): that warning is the user's."""
    return {"acc_events": True} if "acc_events" in inspect.signature(profile).parameters else {}


def _not_gathering(profile: Any) -> None:
    """What gathers events turns every one into an object when it stops, ten times as slow: nobody asks for them."""
    inner: Any = getattr(profile, "profiler", None)
    profile.acc_events = False
    if inner is not None:
        inner.acc_events = False
