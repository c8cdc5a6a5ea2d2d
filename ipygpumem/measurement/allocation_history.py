"""Recording of PyTorch's allocation history for one or more cells.

PyTorch supports one recording per process, whose options cannot be queried. If the program has already started a
recording, this package uses that recording and does not stop it. If the program starts a recording later, the recording
of this package ends.

PyTorch assigns the stack of the allocation to an event that frees memory, unless it records the stacks of frees.
"""

from __future__ import annotations

import inspect
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.errors import OptionError, RecordingError, check_choice
from ipygpumem.core.interrupts import DeferredInterrupts
from ipygpumem.core.introspection import pause_gc
from ipygpumem.sources import allocator, pytorch
from ipygpumem.sources.pytorch import FunctionWrappers

_RECORD = "_cuda_record_memory_history"
_GET_METADATA = "_cuda_getMemoryMetadata"
_OWN_OPTIONS = {"enabled", "stacks", "max_entries", "device", "clear_history"}


@dataclass(frozen=True, slots=True)
class RecordingOptions:
    """Options for recording allocation history. Invalid values raise `OptionError`.

    Attributes:
        stacks: Stacks to record: ``"python"``, ``"all"`` (also C++ frames) or ``"none"``.
        max_entries: Maximum number of recorded events per device.
        extra: Additional arguments of ``torch.cuda.memory._record_memory_history``.
    """

    stacks: str = "python"
    max_entries: int = 1_000_000
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_choice("stacks", self.stacks, ("python", "all", "none"))
        if isinstance(self.max_entries, bool) or not isinstance(self.max_entries, int) or self.max_entries < 1:
            raise OptionError(f"max_entries must be a positive integer, but got {self.max_entries!r}")

    def arguments(self, torch: Any) -> dict[str, Any]:
        parameters = inspect.signature(torch.cuda.memory._record_memory_history).parameters
        for name in self.extra:
            if name in _OWN_OPTIONS or name not in parameters:
                available = ", ".join(sorted(set(parameters) - _OWN_OPTIONS))
                version = torch.__version__
                raise OptionError(
                    f"{name!r} is not an additional recording option of torch {version}: choose from {available}"
                )
        arguments = {
            "enabled": "all",
            "context": None if self.stacks == "none" else "alloc",
            "stacks": "all" if self.stacks == "all" else "python",
            "max_entries": self.max_entries,
            "clear_history": True,  # discard the events of earlier recordings
            **self.extra,
        }
        return {name: value for name, value in arguments.items() if name in parameters}


def recording_problem() -> str | None:
    problem = pytorch.problem(load=True)
    if problem:
        return f"PyTorch records allocation history only for GPU memory, and {problem}"
    backend = sys.modules["torch"].cuda.get_allocator_backend()
    return None if backend == "native" else f"the allocator backend {backend} cannot record allocation history"


class ActiveRecording:
    """The recording of allocation history that this package has started, if any. Each `Runtime` has one instance."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._history: AllocationHistory | None = None
        self._functions = FunctionWrappers("torch._C")
        self._metadata: dict[int, str] = {}  # by thread

    def start(self, history: AllocationHistory, arguments: Mapping[str, Any]) -> bool:
        """Return False if PyTorch is already recording."""
        with self._lock, DeferredInterrupts():
            if allocator.is_recording():
                return False
            record = history.torch.cuda.memory._record_memory_history
            if "clear_history" not in arguments:  # before PyTorch 2.8, only stopping discards earlier events
                record(enabled=None)
            record(**arguments)
            self._history = history
            self._functions.wrap({_RECORD: self._program_records})
            return True

    def set_context(self, context: str | None = None) -> None:
        """Change the option ``context`` of this package's recording; None restores the value from the start."""
        with self._lock, DeferredInterrupts():
            history = self._history
            if history is not None and history.context is not None:
                arguments = {name: value for name, value in history.arguments.items() if name != "clear_history"}
                self._history = None  # otherwise, the wrapper would mistake this call for a call by the program
                try:
                    history.torch.cuda.memory._record_memory_history(
                        **{**arguments, "context": context or history.context}
                    )
                finally:
                    self._history = history

    def stop(self, history: AllocationHistory) -> None:
        with self._lock, DeferredInterrupts():
            if self._history is history:
                self._release()
                history.torch.cuda.memory._record_memory_history(enabled=None)

    def close(self) -> None:
        self.end_cell()
        if self._history is not None:
            self.stop(self._history)

    def set_cell(self, number: int | None) -> None:
        """Set this thread's user metadata to ``In[n]`` if this package is recording and the metadata is empty.

        PyTorch 2.10 and later versions store the metadata with each event. If the program reads its own metadata, it
        does not receive this value.
        """
        torch_c: Any = sys.modules["torch"]._C if self._history is not None else None
        if number is None or not hasattr(torch_c, _GET_METADATA):
            return
        if not self._functions.original(_GET_METADATA)():
            text = self._metadata[threading.get_ident()] = f"In[{number}]"
            torch_c._cuda_setMemoryMetadata(text)
            self._functions.wrap({_GET_METADATA: self._program_metadata})

    def end_cell(self) -> None:
        """Clear the user metadata set by `set_cell`, unless the program has set other metadata since then."""
        text = self._metadata.pop(threading.get_ident(), None)
        if text is not None:
            if self._functions.original(_GET_METADATA)() == text:
                sys.modules["torch"]._C._cuda_setMemoryMetadata("")
            if not self._metadata:
                self._functions.unwrap(_GET_METADATA)

    def _program_metadata(self, original: Callable[[], str]) -> str:
        text = original()
        return "" if text == self._metadata.get(threading.get_ident()) else text

    @property
    def running(self) -> bool:
        return self._history is not None

    def has_options(self, options: RecordingOptions) -> bool:
        history = self._history
        return history is not None and replace(history.options, max_entries=options.max_entries) == options

    @property
    def max_entries(self) -> int:
        """Maximum number of events per device in the running recording; 0 if none is running."""
        return 0 if self._history is None else self._history.options.max_entries

    def _program_records(self, original: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        with self._lock:
            if self._history is not None:
                self._history.lost = "events are missing because the program itself started or stopped a recording"
                self._release()
        return original(*arguments, **options)

    def _release(self) -> None:
        self._history = None
        self._functions.unwrap(_RECORD)


class AllocationHistory:
    """Allocation history from `start` to `take`, recorded by this package or by the program.

    The constructor raises `RecordingError` if recording is impossible and `OptionError` for an unsupported option.

    Attributes:
        own: Whether this package started the recording.
        context: Events that should have stacks: ``"all"``, ``"alloc"`` (only allocations), or None for no stacks.
        pauses: Whether stacks of frees are not recorded during backward passes, because of a bug in PyTorch.
        lost: Reason why events are missing; empty if no events are known to be missing.
        started_us: Time of the call to `start` in microseconds since the Unix epoch; 0 before the call.
    """

    def __init__(self, active: ActiveRecording, options: RecordingOptions) -> None:
        problem = recording_problem()
        if problem:
            raise RecordingError(problem)
        self.options = options
        self.torch = sys.modules["torch"]
        self.own = False
        self.lost = ""
        self.started_us = 0
        self._active = active
        self.arguments = options.arguments(self.torch)
        self.pauses = self.arguments["context"] == "all" and pytorch.discards_exceptions(self.torch)
        if self.pauses and self.torch._C._current_autograd_node() is not None:  # in a backward pass
            self.arguments["context"], self.pauses = "alloc", False
        self.context: str | None = self.arguments["context"]
        self._allocations: dict[int, int] = {}

    def start(self) -> None:
        self.torch.cuda.init()
        self.own = self._active.start(self, self.arguments)
        if not self.own and self.context == "all":
            self._active.set_context("all")
        self.started_us = time.time_ns() // 1000
        self._allocations = self._count_allocations()

    def pause(self, paused: bool) -> None:
        """Stop recording the stacks of frees, or resume it if ``paused`` is False. No effect if `pauses` is False."""
        if self.pauses:
            self._active.set_context("alloc" if paused else "all")

    def take(self) -> dict[str, Any]:
        if not self.lost and not allocator.is_recording():
            self.lost = "the recording was stopped before the measurement ended, and its events were discarded"
        with pause_gc(), allocator.without_inductor():
            snapshot: dict[str, Any] = self.torch.cuda.memory._snapshot()
        if not self.own:
            traces = snapshot.get("device_traces", [])
            for trace in traces:
                remove_allocation_stacks(trace)
            since = self.started_us
            snapshot["device_traces"] = [[event for event in trace if event["time_us"] >= since] for trace in traces]
        return snapshot

    def dropped(self, snapshot: Mapping[str, Any]) -> list[int | None]:
        """Return, for each device, the number of allocations whose events were dropped, or None if unknown."""
        counts = self._count_allocations()
        unknown = bool(self.lost or self.options.extra.get("skip_actions"))
        result: list[int | None] = []
        for index, trace in enumerate(snapshot.get("device_traces", [])):
            recorded_count = sum(1 for event in trace if event["action"] == "alloc")
            missing_count = counts.get(index, 0) - self._allocations.get(index, 0) - recorded_count
            # negative if the program reset the counters; the program's own recording may exclude allocations
            reliable = missing_count >= 0 and (self.own or recorded_count or not missing_count)
            result.append(missing_count if reliable and index in counts and not unknown else None)
        return result

    def stop(self) -> None:
        if self.own:
            self._active.stop(self)
        elif self.context == "all" and self.started_us:
            self._active.set_context()

    def _count_allocations(self) -> dict[int, int]:
        return {
            index: allocator.allocator_statistics(allocator.stats(index)).allocations
            for index in range(self.torch.cuda.device_count())
        }


_FREES = {"free_requested", "free_completed", "segment_free", "segment_unmap"}


def remove_stacks(events: Iterable[dict[str, Any]]) -> None:
    """Remove the stacks of all events that free memory."""
    for event in events:
        if event["action"] in _FREES:
            event.pop("frames", None)


def remove_allocation_stacks(events: Iterable[dict[str, Any]]) -> None:
    """Remove the stack of each event that frees memory if it is the same object as the stack of the allocation."""
    stacks: dict[tuple[bool, int], Any] = {}
    for event in events:
        if "addr" in event and "frames" in event:
            block = event["action"].startswith("segment"), event["addr"]
            if event["action"] not in _FREES:
                stacks[block] = event["frames"]
            elif stacks.get(block) is event["frames"]:
                del event["frames"]


def remove_stacks_between(events: Sequence[dict[str, Any]], spans: Iterable[tuple[int, int]]) -> None:
    """Remove the stacks of events that free memory within spans of a trace.

    Each span is a ``(begin, end)`` pair of positions, counted in allocations and free requests since the first event.
    """
    counted = [index for index, event in enumerate(events) if event["action"] in {"alloc", "free_requested"}]
    counted.append(len(events))
    for begin, end in spans:
        for number in range(max(begin, 0), min(end, len(counted) - 1)):
            remove_stacks(events[counted[number] : counted[number + 1]])
