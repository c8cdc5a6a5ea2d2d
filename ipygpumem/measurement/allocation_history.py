"""PyTorch's allocation history, recorded for a cell or across cells.

PyTorch has one recording per process, whose options cannot be read. If the program is already recording, its recording
is used and continues; if the program starts one while ours is running, ours ends.
"""

from __future__ import annotations

import inspect
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError, RecordingError
from ipygpumem.core.interpreter import collector_paused
from ipygpumem.sources import allocator, pytorch
from ipygpumem.sources.pytorch import WrappedFunctions

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_RECORD = "_cuda_record_memory_history"
_OWN_OPTIONS = {"enabled", "stacks", "max_entries", "device", "clear_history"}


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """How to record; invalid values raise OptionError.

    ``stacks`` is ``python``, ``all`` (C++ too, slow to save) or ``none``; ``max_entries`` the maximum number of events
    per device; ``extra`` has further arguments of torch's ``_record_memory_history``.
    """

    stacks: str = "python"
    max_entries: int = 1_000_000
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.stacks not in {"python", "all", "none"}:
            raise OptionError(f"stacks must be python, all or none, not {self.stacks!r}")
        if isinstance(self.max_entries, bool) or not isinstance(self.max_entries, int) or self.max_entries < 1:
            raise OptionError(f"max-entries must be a number of events, 1 or more, not {self.max_entries!r}")

    def arguments(self, torch: Any) -> dict[str, Any]:
        """Arguments for this torch's ``_record_memory_history``; raises OptionError for those it does not have."""
        parameters = inspect.signature(torch.cuda.memory._record_memory_history).parameters
        for name in self.extra:
            if name in _OWN_OPTIONS or name not in parameters:
                available = ", ".join(sorted(set(parameters) - _OWN_OPTIONS))
                raise OptionError(
                    f"torch {torch.__version__} does not accept the recording option {name!r}; it accepts {available}"
                )
        arguments: dict[str, Any] = {
            "enabled": "all",
            "context": None if self.stacks == "none" else "all",
            "stacks": "all" if self.stacks == "all" else "python",
            "max_entries": self.max_entries,
            "clear_history": True,  # events of an earlier recording do not belong to this one
        }
        return {name: value for name, value in {**arguments, **self.extra}.items() if name in parameters}


def recording_problem() -> str | None:
    """Return why allocation history cannot be recorded in this process; None if it can."""
    problem = pytorch.problem(load=True)
    if problem:
        return f"PyTorch records the history of GPU memory only, and {problem}"
    backend = pytorch.backend(sys.modules["torch"])
    return None if backend == "native" else f"the allocator {backend} cannot record its history"


class ActiveRecording:
    """Which of our recordings PyTorch is running; one per runtime."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._history: History | None = None
        self._functions = WrappedFunctions("torch._C")

    def start(self, history: History, arguments: Mapping[str, Any]) -> bool:
        """Switch recording on for a history. Returns False if the program is recording already."""
        with self._lock:
            torch = history.torch
            if torch._C._cuda_isHistoryEnabled():
                return False
            torch.cuda.memory._record_memory_history(**arguments)
            self._history = history
            self._functions.wrap(_RECORD, self._program_records)
            return True

    def stop(self, history: History) -> None:
        """Switch recording off if it is still this history's."""
        with self._lock:
            if self._history is history:
                self._release()
                history.torch.cuda.memory._record_memory_history(enabled=None)

    def close(self) -> None:
        """Stop the recording that is running, if it is ours."""
        if self._history is not None:
            self.stop(self._history)

    @property
    def running(self) -> bool:
        """Whether PyTorch is running one of our recordings."""
        return self._history is not None

    def _program_records(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Let the program start or stop a recording itself."""
        with self._lock:
            if self._history is not None:
                self._history.lost = "the code switched PyTorch's recording on or off itself"
                self._release()
        return original(*arguments, **options)

    def _release(self) -> None:
        self._history = None
        self._functions.unwrap(_RECORD)


class History:
    """One use of PyTorch's recording: our own, or a part of the one that the program is running.

    ``own`` is whether the recording is ours, ``started_us`` its start in microseconds since 1970, and ``lost`` why
    events are missing, as far as that is known. Raises RecordingError if this machine or allocator records no history,
    and OptionError for an option that this torch does not have.
    """

    def __init__(self, active: ActiveRecording, options: HistoryOptions) -> None:
        problem = recording_problem()
        if problem:
            raise RecordingError(problem)
        self.options = options
        self.torch = sys.modules["torch"]
        self.own = False
        self.lost = ""
        self.started_us = 0
        self._active = active
        self._arguments = options.arguments(self.torch)
        self._allocations: dict[int, int] = {}

    def start(self) -> None:
        """Switch recording on, unless the program is recording already."""
        self.torch.cuda.init()
        self.own = self._active.start(self, self._arguments)
        self.started_us = time.time_ns() // 1000
        self._allocations = self._count_allocations()

    def take(self) -> dict[str, Any]:
        """PyTorch's snapshot, with the events since `start`."""
        if not self.lost and not self.torch._C._cuda_isHistoryEnabled():
            self.lost = "the recording was stopped before the measurement ended, and its events are gone"
        with collector_paused():
            snapshot: dict[str, Any] = self.torch.cuda.memory._snapshot()
        if not self.own:
            snapshot["device_traces"] = [
                # events without a time (torch 2.1) cannot be selected, and stay
                [event for event in trace if event.get("time_us", self.started_us) >= self.started_us]
                for trace in snapshot.get("device_traces", [])
            ]
        return snapshot

    def dropped(self, snapshot: Mapping[str, Any]) -> list[int | None]:
        """Number of allocations missing from the recording, per device; None if unknown.

        The ring buffer drops the oldest events when it is full.
        """
        counts = self._count_allocations()
        unknown = bool(self.lost or self.options.extra.get("skip_actions"))
        result: list[int | None] = []
        for index, trace in enumerate(snapshot.get("device_traces", [])):
            recorded = sum(1 for event in trace if event["action"] == "alloc")
            missing = counts.get(index, 0) - self._allocations.get(index, 0) - recorded
            # below 0 the program reset the accumulated counters; its own recording may not contain allocations
            reliable = missing >= 0 and (self.own or recorded or not missing)
            result.append(missing if reliable and index in counts and not unknown else None)
        return result

    def stop(self) -> None:
        """Switch recording off if it is ours."""
        if self.own:
            self._active.stop(self)

    def _count_allocations(self) -> dict[int, int]:
        return {
            index: allocator.allocator_state(allocator.stats(index)).allocations
            for index in range(self.torch.cuda.device_count())
        }
