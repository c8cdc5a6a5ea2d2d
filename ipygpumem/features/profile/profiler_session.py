"""Run torch.profiler during a measurement until the measurement ends or the code starts its own profiler."""

from __future__ import annotations

import contextlib
import gc
import gzip
import inspect
import json
import os
import re
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from ipygpumem.core.errors import RecordingError, first_line
from ipygpumem.core.files import atomic_write
from ipygpumem.core.introspection import attempt, pause_gc
from ipygpumem.measurement.observers import ProfilerObservers, is_profiling
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import pytorch

_OTHER_THREAD = (
    "a profiler cannot be started in this thread because ipygpumem (trace or timeline) is profiling another thread, "
    "and PyTorch aborts the process if two threads run profilers"
)
_BUSY = "a profiler is already running, and PyTorch supports only one profiler at a time: stop that profiler first"
_KINETO_LOG_LEVEL = "KINETO_LOG_LEVEL"
_INCOMPLETE = "the file is incomplete, possibly because the disk is full"
_TAIL = 1 << 14
_CHUNK = 1 << 20
_TRACE_NAME = re.compile(rb'"traceName": ".*?"(?=(?:,\s*"\w+": "?\w+"?)*\s*\}\s*\Z)', re.DOTALL)
"""Pattern for the file name, which Kineto writes to the end of a trace without escaping special characters."""


class _ActiveSession:
    session: ProfilerSession | None = None  # innermost active session


class ProfilerSession:
    """Measurement observer that runs torch.profiler and records memory events, shapes and stacks.

    A session ends early if the code starts another profiler (or `ProfilerSession`), because PyTorch supports only one
    profiler at a time. Creating a session raises `RecordingError` if profiling is not possible.

    Attributes:
        result: The profiler's result; None if the profiler has not been stopped or did not return a result.
        interrupted_after: Seconds until the code started its own profiler; None if it did not start one.
        error: Reason why there is no result after `stop`; empty if there is one.
        cost: Seconds spent on starting and stopping the profiler.
    """

    def __init__(self) -> None:
        problem = self.problem()
        if problem:
            raise RecordingError(problem)
        self.result: Any | None = None
        self.interrupted_after: float | None = None
        self.error = ""
        self.cost = 0.0
        self._profile: Any | None = None
        self._profile_function: Any = None
        self._thread = 0
        self._began = 0.0
        self._pid = os.getpid()

    @staticmethod
    def problem() -> str | None:
        """Return the reason why profiling is not possible, or None if it is possible. The call imports torch."""
        if not pytorch.importable():
            return "profiling requires torch, which is not installed"
        problem = pytorch.problem(load=True)
        torch = pytorch.module()
        if torch is None:
            return f"profiling requires torch: {problem}"
        if not torch.autograd.kineto_available():
            return f"torch {torch.__version__} was built without Kineto, which torch.profiler requires"
        session = current().state(_ActiveSession).session
        if session is not None:
            return None if session._thread == threading.get_ident() else _BUSY
        return _BUSY if is_profiling() or _is_warming_up(torch) else None

    def start(self) -> None:
        began = time.perf_counter()
        problem = self.problem()
        if problem:
            raise RecordingError(problem)
        torch: Any = sys.modules["torch"]
        profiler = torch.profiler
        activities = [profiler.ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(profiler.ProfilerActivity.CUDA)
        options = {"profile_memory": True, "record_shapes": True, "with_stack": True}
        if "acc_events" in inspect.signature(profiler.profile).parameters:
            options["acc_events"] = True  # PyTorch 2.11 warns about profile cycles even for one (pytorch#180348)
        self._profile_function = sys.getprofile()  # PyTorch replaces it and then removes its own
        try:
            with _kineto_silenced():
                profile = profiler.profile(activities=activities, **options)
                profile.start()
        except Exception as error:
            raise RecordingError(f"torch.profiler failed to start: {first_line(error)}") from error
        # converting all events to Python objects at the end would take ten times as long as stopping
        profile.acc_events = profile.profiler.acc_events = False
        self._profile, self._pid, self._thread = profile, os.getpid(), threading.get_ident()
        current().state(ProfilerObservers).add(self._before_other_profiler, lambda: None)
        current().state(_ActiveSession).session = self
        self._began = time.perf_counter()
        self.cost += self._began - began

    def stop(self) -> None:
        if os.getpid() != self._pid:  # forked processes have neither the threads nor the results of the profiler
            return
        current().state(ProfilerObservers).remove(self._before_other_profiler)
        active = current().state(_ActiveSession)
        if active.session is self:
            active.session = None
        if self._profile is None or self.result is not None or self.error:
            return
        if threading.get_ident() != self._thread:
            self.error = "the profile was discarded because the measurement started and ended in different threads"
            return
        began = time.perf_counter()
        try:
            with pause_gc():
                if pytorch.initialized_torch() is None:
                    self._profile.profiler.use_device = None  # waiting for a device would initialize CUDA
                self._profile.stop()
            self.result = self._profile.profiler.kineto_results
            if self.result is None:
                self.error = "torch.profiler returned no results"
        except Exception as error:
            self.error = f"torch.profiler failed to stop: {first_line(error)}"
            # otherwise, no profiler could start later
            attempt(sys.modules["torch.autograd.profiler"]._run_on_profiler_stop)
        if callable(self._profile_function) and sys.getprofile() is None:
            sys.setprofile(self._profile_function)
        self.cost += time.perf_counter() - began

    def _before_other_profiler(self) -> None:
        if os.getpid() != self._pid:
            return
        if threading.get_ident() != self._thread:
            raise RecordingError(_OTHER_THREAD)
        self.interrupted_after = time.perf_counter() - self._began
        self.stop()

    def release(self) -> None:
        self._profile = self.result = None

    def write(self, path: Path) -> int:
        """Write the trace, compressed if the path ends in ``.gz``. Return the size of the file in bytes.

        Raises `RecordingError` if the trace cannot be written.
        """
        if self._profile is None or self.result is None:
            raise RecordingError(self.error or "nothing was profiled")
        try:
            with atomic_write(path, "the trace ", RecordingError) as file:
                _write_trace(self._profile.profiler, path, file)
                return file.tell()
        except RuntimeError as error:
            raise RecordingError(f"the trace {path} was not written: {first_line(error)}") from error


def _is_warming_up(torch: Any) -> bool:
    """Return whether a profiler with a schedule is warming up; PyTorch has no function that reports this."""
    profile_class, warmup = torch.profiler.profile, torch.profiler.ProfilerAction.WARMUP
    for value in gc.get_objects():
        if type(value) is profile_class and getattr(value, "current_action", None) is warmup:
            inner = getattr(value, "profiler", None)
            if inner is not None and getattr(inner, "kineto_results", None) is None:
                return True
    return False


@contextlib.contextmanager
def _kineto_silenced() -> Iterator[None]:
    """Prevent Kineto from printing two lines per profile, unless the user has set its log level.

    Kineto reads its log level when it is first used.
    """
    if _KINETO_LOG_LEVEL in os.environ:  # the user's choice
        yield
        return
    os.environ[_KINETO_LOG_LEVEL] = "6"
    try:
        yield
    finally:
        os.environ.pop(_KINETO_LOG_LEVEL, None)


def _write_trace(profiler: Any, path: Path, target: IO[bytes]) -> None:
    with tempfile.TemporaryDirectory(prefix=".", dir=path.parent) as directory:
        trace = Path(directory, "trace.json")
        profiler.export_chrome_trace(str(trace))
        if not trace.exists():
            raise OSError(_INCOMPLETE)
        with trace.open("r+b") as file:
            position = max(trace.stat().st_size - _TAIL, 0)
            file.seek(position)
            tail = file.read()
            if not tail.rstrip().endswith(b"}"):  # Kineto does not report failed writes
                raise OSError(_INCOMPLETE)
            file.seek(position)
            file.write(_TRACE_NAME.sub(lambda _: b'"traceName": ' + json.dumps(str(path)).encode(), tail))
            file.truncate()
            file.seek(0)
            if path.suffix != ".gz":
                shutil.copyfileobj(file, target, _CHUNK)
                return
            with gzip.GzipFile(path.stem, "wb", compresslevel=6, fileobj=target) as compressed:
                shutil.copyfileobj(file, compressed, _CHUNK)
