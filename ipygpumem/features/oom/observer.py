"""Recording of failed allocations with an observer that never raises an exception.

Before PyTorch raises the error, it calls the observer in the thread that requested the memory. An exception in the
observer would replace the user's error.

With the setting ``GPUMem.oom_snapshot``, allocation history is recorded continuously, and saved after the failure.
"""

from __future__ import annotations

import os
import platform
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from string import Formatter
from types import FrameType
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError, RecordingError, first_line
from ipygpumem.core.files import check_path
from ipygpumem.core.introspection import attempt, is_instance, is_own_frame, thread_name
from ipygpumem.core.units import parse_size
from ipygpumem.features.holders.collect import holders
from ipygpumem.features.holders.model import Holders
from ipygpumem.features.oom.model import FailedAllocation, Frame, free_blocks
from ipygpumem.measurement.allocation_history import RecordingOptions, recording_problem
from ipygpumem.measurement.measurement import notebook_sources
from ipygpumem.measurement.recorder import AllocationRecorder, CellInfo
from ipygpumem.measurement.runtime import Runtime, current
from ipygpumem.sources import allocator, pytorch

if TYPE_CHECKING:
    from ipygpumem.features.oom.earlier_runs import EarlierRuns

_MAX_FAILURES = 100  # maximum number of failures to keep; a loop may retry an allocation thousands of times
_MAX_FRAMES = 64
_DEVICE = re.compile(r"(?:GPU|device) ([0-9]{1,4})")
_REQUESTED = re.compile(r"(?:allocate|Requested\s*:) ([0-9.]{1,30} (?:[KMG]iB|bytes))")
_SEARCH_LIMIT = 0.25  # time limit of the search for holders in seconds; the search blocks the user's code once per cell


class FailedAllocationObserver:
    """Observer of failed allocations in this process.

    ``count`` is the number of failures since `take` was last called, including failures that are no longer stored.
    """

    def __init__(self) -> None:
        self._save: Callable[[Holders | None], str] | None = None
        self._failures: list[dict[str, Any]] = []
        self.count = 0
        self._active = threading.local()
        self._pid = 0
        self._is_listening = False

    def listen(self, save: Callable[[Holders | None], str] | None = None) -> bool:
        """Observe failed allocations. Return False if CUDA is not initialized or PyTorch does not report failures.

        ``save`` is called at the first failure in a cell to save the allocation history. Its argument is the holders of
        the memory, or None if they are unknown, and its result is a message.
        """
        self._save, self._pid = save, os.getpid()
        self._is_listening = pytorch.listen_for_ooms(self._failed)
        return self._is_listening

    def add_error(self, error: Any) -> None:
        """Record the error of a cell if it is an out-of-memory error that the allocator backend did not report."""
        torch = pytorch.initialized_torch()
        if torch is None or self._is_listening or not is_instance(error, torch.cuda.OutOfMemoryError):
            return
        text = str(error)
        index, requested = _DEVICE.search(text), _REQUESTED.search(text)
        if index is None or requested is None:
            return
        frames = _frames_of(reversed(list(traceback.walk_tb(error.__traceback__))))
        reading = attempt(lambda: current().monitor.read(busy=False).devices.get(f"cuda:{index[1]}"))
        capacity = getattr(reading, "capacity", None) or 0
        free = max(capacity - (getattr(reading, "used", None) or capacity), 0)
        self._record(int(index[1]), parse_size(requested[1].replace("bytes", "B")), capacity, free, frames)
        self._failures[-1]["saved"] = (
            f"the allocator backend {torch.cuda.get_allocator_backend()} does not report failed"
            " allocations: the values were read after the failure, and failures that the code catches are not shown"
        )

    def stop(self) -> None:
        pytorch.listen_for_ooms(None)
        self.take()

    close = stop

    def take(self) -> list[FailedAllocation]:
        """Return the failures since the previous call, oldest first, and discard them. At most 100 are stored."""
        failures, self._failures = self._failures, []
        self.count = 0
        return [FailedAllocation(**fields) for fields in failures]

    def _failed(self, index: int, requested: int, limit: int, free: int) -> None:
        if getattr(self._active, "value", False) or os.getpid() != self._pid:
            return  # recording a failure may itself run out of memory
        self._active.value = True
        try:
            self._record(index, requested, limit, free)
        finally:
            self._active.value = False

    def _record(
        self, index: int, requested: int, limit: int, free: int, frames: tuple[Frame, ...] | None = None
    ) -> None:
        self.count += 1
        monitor = current().monitor
        device = f"cuda:{index}"
        fields: dict[str, Any] = {"device": device, "requested": requested, "limit": limit, "free": free}
        self._failures.append(fields)
        del self._failures[:-_MAX_FAILURES]
        # each value is stored immediately, because reading the next may fail, for example without host memory
        fields["thread"] = attempt(_current_thread) or ""
        fields["frames"] = frames or attempt(_stack) or ()
        fields["reading"] = attempt(lambda: monitor.read(busy=False).devices.get(device))
        fields["free_blocks"] = attempt(lambda: free_blocks(allocator.segments(), index))
        fields["other_processes"] = attempt(lambda: monitor.other_processes(fields["reading"])) or ()
        if self.count == 1 and frames is None:
            fields["holders"] = attempt(lambda: holders(limit=_SEARCH_LIMIT))
            save = self._save
            fields["saved"] = "" if save is None else attempt(lambda: save(fields["holders"])) or ""


def _current_thread() -> str:
    thread = threading.current_thread()
    return "" if thread is threading.main_thread() else thread_name(thread)


def _stack() -> tuple[Frame, ...]:
    return _frames(sys._getframe()) or _frames(sys._current_frames().get(threading.main_thread().ident or 0))


def _frames(frame: FrameType | None) -> tuple[Frame, ...]:
    return _frames_of(traceback.walk_stack(frame))


def _frames_of(stack: Iterable[tuple[FrameType, int]]) -> tuple[Frame, ...]:
    users = (pair for pair in stack if not is_own_frame(pair[0]))
    return tuple((user.f_code.co_filename, line, user.f_code.co_name) for user, line in islice(users, _MAX_FRAMES))


def failed_allocations() -> FailedAllocationObserver:
    return current().state(FailedAllocationObserver)


_MAX_EVENTS = 100_000
_COST = (
    f"the last {_MAX_EVENTS:,} allocations and frees are recorded with their Python stacks, which uses about 50 MiB"
    " of host memory and slows down code that only launches small kernels by about 10%"
)


def oom_path(template: str, number: int) -> Path:
    names = {"n": number, "host": platform.node(), "time": time.strftime("%Y%m%d-%H%M%S")}
    placeholders = "the only valid placeholders are {n}, {host} and {time}, with a width of at most 3 digits"
    try:
        fields = [(name, spec or "") for _, name, spec, _ in Formatter().parse(template) if name is not None]
        # a larger width would exhaust the host memory
        is_valid = all(name in names and not re.search(r"\d{4}|\{", spec) for name, spec in fields)
        text = template.format(**names) if is_valid else ""
    except (TypeError, ValueError):
        is_valid = False
    if not is_valid:
        raise OptionError(f"{template!r} is not a valid path: {placeholders}")
    return check_path(text)


class OomRecording:
    """Continuous recording for out-of-memory snapshots. It is paused during any other recording.

    Attributes:
        template: Template for the path of snapshots; None if the recording is turned off.
        saved: Path of the latest snapshot; set to None by the code that uses it.
    """

    def __init__(
        self, runtime: Runtime, cell: Callable[[], CellInfo | None], numbers: Callable[[], Mapping[str, int]]
    ) -> None:
        self._runtime = runtime
        self._cell = cell
        self._numbers = numbers
        self._recorder: AllocationRecorder | None = None
        self.template: str | None = None
        self.saved: Path | None = None
        self._number = 0

    @cached_property
    def earlier_runs(self) -> EarlierRuns:
        from ipygpumem.features.oom.earlier_runs import EarlierRuns  # imports the code for predictions

        return EarlierRuns()

    def configure(self, template: str | None) -> str:
        was_off = self.template is None
        self.template = template
        if template is None:
            was_recording = self._recorder is not None
            self.pause()
            return "allocations are no longer recorded for out-of-memory errors" if was_recording else ""
        problem = recording_problem()
        if problem:
            return f"oom_snapshot is not active: {problem}"
        self.resume()
        cost = f"; {_COST}" if was_off else ""
        return f"when an allocation fails, the allocation history is saved to {template}{cost}"

    def resume(self) -> None:
        """Start recording, unless it is disabled or impossible, CUDA is not initialized, or a recording is active."""
        is_active = self._recorder is not None and not self._recorder.history.lost
        is_configured = self.template is not None and pytorch.initialized_torch() is not None
        if is_active or not is_configured or allocator.is_recording() or recording_problem():
            return
        recorder = AllocationRecorder(self._runtime, RecordingOptions(max_entries=_MAX_EVENTS))
        recorder.start()
        self._recorder = recorder

    def start_cell(self) -> None:
        self.resume()
        self.earlier_runs.begin(self._recorder)

    def pause(self) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            recorder.stop()

    def save(self, holders: Holders | None = None) -> str:
        if self._recorder is None or self.template is None:
            return ""
        self._number += 1
        try:
            path = oom_path(self.template, self._number)
            variables = [
                {"device": int(part.device.rpartition(":")[2]), "address": part.address, "name": holder.name}
                for holder in (() if holders is None else holders.holders)
                for part in holder.parts
                if part.address is not None and part.device.startswith("cuda:")
            ]
            result = self._recorder.save(
                path, sources=notebook_sources(), numbers=self._numbers(), cell=self._cell(), variables=variables
            )
        except (OptionError, RecordingError) as error:
            return f"the allocation history was not saved: {first_line(error)}"
        self.saved = None if result.path is None else path
        return result.sentence()
