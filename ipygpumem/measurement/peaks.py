"""Exact peaks of nested measurements. The peaks that PyTorch reports to the user do not change.

PyTorch has a single peak per counter, which any code can reset (pytorch#16266). Each measurement therefore opens a
scope with its own peaks. Before a measurement resets PyTorch's peaks, they are saved for the user, and each lower peak
of an open scope is raised to PyTorch's peak. The four C functions that read and reset PyTorch's peaks are wrapped: the
user never reads a peak below the saved peak, and the open scopes are updated before the user resets PyTorch's peaks.
Known limitation: a peak is missed if another thread causes it after the counters are read and before they are reset.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import field
from typing import Any

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.reading import AllocatorCounters
from ipygpumem.core.report import PeakCounters
from ipygpumem.sources import allocator, pytorch
from ipygpumem.sources.pytorch import FunctionWrappers

_READERS = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")


@dataclass(eq=False, slots=True)
class PeakScope:
    """Peaks of one open measurement, by device index.

    Attributes:
        reached: Highest values that are known to have been reached while the scope was open.
        bounds: Upper bounds on the highest values, for devices whose counters were not reset when the scope was opened.
        earlier: Peaks from before the scope was opened, for devices whose counters have not been reset since.
        peaks: Final peaks of the devices whose counters were read at the end of the measurement.
    """

    reached: dict[int, AllocatorCounters] = field(default_factory=dict)
    bounds: dict[int, AllocatorCounters] = field(default_factory=dict)
    earlier: dict[int, AllocatorCounters] = field(default_factory=dict)
    peaks: dict[int, PeakCounters] = field(default_factory=dict)

    def add(self, index: int, state: allocator.AllocatorStatistics) -> None:
        earlier = self.earlier.get(index)
        if earlier is None:
            self.reached[index] = _maximum(self.reached.get(index), state.peak)
            return
        self.reached[index] = _maximum(self.reached.get(index), _new_peaks(state.peak, earlier, state.now))
        self.bounds[index] = _maximum(self.bounds.get(index), state.peak)

    def finish(self, index: int, state: allocator.AllocatorStatistics) -> None:
        self.add(index, state)
        reached = self.reached[index]
        highest = _maximum(self.bounds.get(index), reached)
        self.peaks[index] = PeakCounters(*highest, exact=highest.allocated == reached.allocated)


class PeakTracker:
    """Tracker of the open scopes and of the peaks saved for the user. Each `Runtime` has one instance."""

    def __init__(self) -> None:
        self._scopes: list[PeakScope] = []
        self._user_stats: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
        """Pairs by device index: counters with the peaks saved for the user, and counters before the latest reset."""
        self._lock = threading.RLock()
        self._functions = FunctionWrappers("torch._C")
        self._calls = dict.fromkeys(_READERS, self._read) | dict.fromkeys(_RESETS, self._reset)
        self._removing = self._installed = False

    def install(self) -> None:
        self._removing = False
        if not self._installed and pytorch.module() is not None:
            self._functions.wrap(self._calls)
            self._installed = True

    def stats(self, index: int) -> dict[str, Any]:
        """Return PyTorch's counters for a device as `allocator.stats` does, but ignore the peaks saved for the user."""
        counters: dict[str, Any] = self._functions.original(_READERS[0])(index)
        return counters

    def remove(self) -> None:
        """Remove the wrappers once no scope is open and PyTorch's peaks have reached all saved peaks."""
        with self._lock:
            self._removing = True
            self._remove_if_unused()

    def close(self) -> None:
        with self._lock:
            self._scopes.clear()
            self._user_stats.clear()
            self._unwrap()

    def _remove_if_unused(self) -> None:
        if self._scopes:  # a reset by the user must still update the open scopes
            return
        for index, (saved_stats, _) in tuple(self._user_stats.items()):
            if not _raise_peaks(self.stats(index), saved_stats):
                del self._user_stats[index]
        if not self._user_stats:
            self._unwrap()

    def _unwrap(self) -> None:
        self._installed = False
        for name in (*_READERS, *_RESETS):
            self._functions.unwrap(name)

    def scope(self) -> PeakScope:
        """Open and return a scope. The caller must then call `enter` for each device that has a CUDA context."""
        scope = PeakScope()
        with self._lock:
            self._scopes.append(scope)
        return scope

    def enter(self, scope: PeakScope, index: int, *, reset: bool) -> allocator.AllocatorStatistics:
        """Start tracking a device's peaks and return its counters. Raises `RuntimeError` for a pluggable allocator."""
        with self._lock:
            stats = self.stats(index)
            state = allocator.allocator_statistics(stats)
            saved_stats, latest = self._user_stats.get(index, (stats, None))
            if not reset:
                scope.earlier[index] = state.peak
            # if nothing was allocated since the latest reset, another reset would change nothing
            elif latest is None or state.peak != state.now or stats["allocation"] != latest["allocation"]:
                for open_scope in self._scopes:
                    if open_scope is not scope:
                        open_scope.add(index, state)
                if stats != (latest or saved_stats):  # comparing is much faster than `_with_peaks`
                    saved_stats = _with_peaks(stats, saved_stats)
                self._user_stats[index] = saved_stats, stats
                self._functions.original(_RESETS[0])(index)
                self._forget_earlier(index)
            scope.reached[index] = state.now
        return state

    def leave(self, scope: PeakScope, index: int) -> allocator.AllocatorStatistics:
        with self._lock:
            state = allocator.allocator_statistics(self.stats(index))
            scope.finish(index, state)
        return state

    def drop(self, scope: PeakScope) -> None:
        with self._lock:
            if scope in self._scopes:
                self._scopes.remove(scope)
            if self._removing:
                self._remove_if_unused()

    def user_stats(self) -> dict[int, tuple[dict[str, Any], dict[str, Any]]]:
        return dict(self._user_stats)

    def restore_user_stats(self, saved: dict[int, tuple[dict[str, Any], dict[str, Any]]]) -> None:
        """Restore the user's peaks as of a call to `user_stats`, even if PyTorch's peaks have been reset since then."""
        with self._lock:
            self._user_stats.update(saved)

    def discard(self, index: int) -> None:
        """Reset the peaks of a device to exclude allocations by this package, such as those of the first kernels."""
        with self._lock:
            self._functions.original(_RESETS[0])(index)
            self._forget_earlier(index)

    def _forget_earlier(self, index: int) -> None:
        for scope in self._scopes:
            scope.earlier.pop(index, None)

    def _read(self, original: Callable[..., Any], *arguments: Any) -> Any:
        stats = original(*arguments)
        saved_stats, _ = self._user_stats.get(arguments[0], (None, None)) if arguments else (None, None)
        if saved_stats is not None:
            _raise_peaks(stats, saved_stats)
        return stats

    def _reset(self, original: Callable[..., Any], *arguments: Any) -> Any:
        with self._lock:
            index = arguments[0] if arguments else None
            if index is not None and self._scopes:
                # the original function reports invalid arguments
                with contextlib.suppress(Exception):
                    state = allocator.allocator_statistics(self.stats(index))
                    for scope in self._scopes:
                        scope.add(index, state)
            result = original(*arguments)
            if index is not None:
                self._user_stats.pop(index, None)
                self._forget_earlier(index)
            if self._removing:
                self._remove_if_unused()
        return result


def _maximum(first: AllocatorCounters | None, second: AllocatorCounters) -> AllocatorCounters:
    return second if first is None or first == second else AllocatorCounters(*map(max, first, second))


def _new_peaks(peak: AllocatorCounters, earlier: AllocatorCounters, now: AllocatorCounters) -> AllocatorCounters:
    triples = zip(peak, earlier, now, strict=True)
    return AllocatorCounters(*(new if new > old else current for new, old, current in triples))


def _with_peaks(stats: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of ``stats`` in which each peak is at least the peak in ``earlier``."""
    return {
        name: _with_peaks(value, earlier.get(name, {}))
        if isinstance(value, dict)
        else max(value, earlier.get(name, value))
        if name == "peak"
        else value
        for name, value in stats.items()
    }


def _raise_peaks(stats: dict[str, Any], earlier: dict[str, Any]) -> bool:
    if "peak" in earlier:
        if stats.get("peak", earlier["peak"]) >= earlier["peak"]:
            return False
        stats["peak"] = earlier["peak"]
        return True
    raised = False
    for name, counters in earlier.items():
        if isinstance(counters, dict) and name in stats and _raise_peaks(stats[name], counters):
            raised = True
    return raised
