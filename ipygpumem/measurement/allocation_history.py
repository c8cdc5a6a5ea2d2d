"""PyTorch's allocation history, switched on for a while: for a cell, or across cells.

PyTorch has one recording for everybody and no way to ask for its options. So where the user records already nothing of
theirs is touched, and where we record and the user takes over, we let go.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from ipygpumem.core.errors import OptionError, RecordingError
from ipygpumem.core.garbage_collection import collector_paused
from ipygpumem.sources import allocator, pytorch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["History", "HistoryOptions"]

_RECORD = "_cuda_record_memory_history"
_OWN_OPTIONS = {"enabled", "stacks", "max_entries", "device", "clear_history"}


@dataclass(frozen=True, slots=True)
class HistoryOptions:
    """How to record. ``stacks``: ``python``, ``all`` (C++ too, slow to save) or ``none``.

    ``max_entries`` bounds the events per device. ``extra`` goes to torch's ``_record_memory_history`` as it stands.
    """

    stacks: str = "python"
    max_entries: int = 1_000_000
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what torch would take for something else.

        Raises:
            OptionError: Unknown stacks, or a bound that is no positive number.
        """
        if self.stacks not in {"python", "all", "none"}:
            raise OptionError(f"stacks is python, all or none, not {self.stacks!r}")
        if isinstance(self.max_entries, bool) or not isinstance(self.max_entries, int) or self.max_entries < 1:
            raise OptionError(f"max-entries is a number of events from 1 on, not {self.max_entries!r}")

    def arguments(self, torch: Any) -> dict[str, Any]:
        """Keyword arguments for this torch's ``_record_memory_history``.

        Raises:
            OptionError: An extra option that this torch does not have.
        """
        known = inspect.signature(torch.cuda.memory._record_memory_history).parameters
        for name in self.extra:
            if name in _OWN_OPTIONS or name not in known:
                others = ", ".join(sorted(set(known) - _OWN_OPTIONS))
                raise OptionError(f"torch {torch.__version__} has no recording option {name!r} here; it has {others}")
        arguments: dict[str, Any] = {
            "enabled": "all",
            "context": None if self.stacks == "none" else "all",
            "stacks": "all" if self.stacks == "all" else "python",
            "max_entries": self.max_entries,
            "clear_history": True,  # what an earlier recording left is not ours to tell
        }
        return {name: value for name, value in {**arguments, **self.extra}.items() if name in known}


class History:
    """One use of PyTorch's recording: our own, or a guest in the user's.

    Raises:
        RecordingError: This machine or this allocator cannot record.
        OptionError: An option that this torch does not have.
    """

    _lock = threading.RLock()
    _running: ClassVar[History | None] = None
    _wrapper: ClassVar[Callable[..., Any] | None] = None

    def __init__(self, options: HistoryOptions) -> None:
        why = self.obstacle()
        if why:
            raise RecordingError(why)
        self.options = options
        self.torch = sys.modules["torch"]
        self._arguments = options.arguments(self.torch)
        self.own = False
        self.lost = ""
        self.started_us = 0
        self._allocations: dict[int, int] = {}

    @staticmethod
    def obstacle() -> str | None:
        """Why no history can be recorded here; None where it can."""
        why = pytorch.problem(load=True)
        if why:
            return f"PyTorch records the history of GPU memory only, and {why}"
        backend = pytorch.backend(sys.modules["torch"])
        return None if backend == "native" else f"the allocator {backend} cannot record its history"

    def start(self) -> None:
        """Begin: switch recording on, unless somebody has already."""
        with History._lock:
            torch = self.torch
            torch.cuda.init()
            self.own = not torch._C._cuda_isHistoryEnabled()
            if self.own:
                torch.cuda.memory._record_memory_history(**self._arguments)
                History._running = self
                pytorch.wrap(_RECORD, History._wrapper, _observer)
            self.started_us = time.time_ns() // 1000
            self._allocations = self._count_allocations()

    @classmethod
    def taken_over(cls) -> None:
        """Somebody else calls PyTorch's recording while ours runs: from now on it is theirs."""
        if cls._running is not None:
            cls._running.lost = "the code switched PyTorch's recording itself"
            cls._running._let_go()

    @classmethod
    def ours(cls) -> bool:
        """Whether the recording that is on is one of ours."""
        return cls._running is not None

    def _let_go(self) -> None:
        with History._lock:
            if History._running is self:
                History._running = None
                if History._wrapper is not None and pytorch.unwrap(_RECORD, History._wrapper):
                    History._wrapper = None

    def take(self) -> dict[str, Any]:
        """PyTorch's snapshot of now, with the events since `start`."""
        if not self.lost and not self.torch._C._cuda_isHistoryEnabled():
            self.lost = "the recording was stopped before its end, and its events are gone"
        with collector_paused():
            snapshot: dict[str, Any] = self.torch.cuda.memory._snapshot()
        if not self.own:
            snapshot["device_traces"] = [_since(trace, self.started_us) for trace in snapshot.get("device_traces", [])]
        return snapshot

    def dropped(self, snapshot: Mapping[str, Any]) -> list[int | None]:
        """Allocations that the ring lost, per device: those counted minus those recorded. None where not known."""
        now = self._count_allocations()
        result: list[int | None] = []
        for index, trace in enumerate(snapshot.get("device_traces", [])):
            if self.lost or self.options.extra.get("skip_actions") or index not in now:
                result.append(None)
                continue
            recorded = sum(1 for event in trace if event["action"] == "alloc")
            missing = now[index] - self._allocations.get(index, 0) - recorded
            # below 0 the user reset the accumulated counters; somebody else's recording may keep no allocations at all
            known = missing >= 0 and (self.own or recorded or not missing)
            result.append(missing if known else None)
        return result

    def stop(self) -> None:
        """End: switch our own recording off and leave anybody else's alone."""
        with History._lock:
            if self.own and History._running is self:
                self._let_go()
                self.torch.cuda.memory._record_memory_history(enabled=None)

    def _count_allocations(self) -> dict[int, int]:
        counts = {}
        for index in range(self.torch.cuda.device_count()):
            counts[index] = allocator.allocator_state(allocator.stats(index)).allocations
        return counts


def _observer(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def wrapper(*arguments: Any, **options: Any) -> Any:
        History.taken_over()
        return original(*arguments, **options)

    History._wrapper = wrapper
    return wrapper


def _since(trace: list[dict[str, Any]], start_us: int) -> list[dict[str, Any]]:
    """The events from a time on. Events without a time (torch 2.1) cannot be cut and stay."""
    return [event for event in trace if event.get("time_us", start_us) >= start_us]
