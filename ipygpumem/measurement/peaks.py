"""Exact peaks for nested measurements, without changing the peaks that the user reads.

PyTorch has one peak per counter and one reset for all users of it (pytorch#16266). Here each measurement opens a scope.
Before we reset the counters, their peaks are added to every open scope and saved for the user; wrappers around the four
C functions that all of PyTorch's readers use raise the user's figures to the saved peaks, and pass a reset by the user
on to the open scopes. Memory that another thread allocates between a read and the reset that follows it is missing
from the peak: the only known exception.
"""

from __future__ import annotations

import contextlib
import threading
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from ipygpumem.core.reading import Counters
from ipygpumem.core.report import Peak
from ipygpumem.sources import allocator, pytorch
from ipygpumem.sources.pytorch import WrappedFunctions

if TYPE_CHECKING:
    from collections.abc import Callable

_READERS = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")

_values = attrgetter("allocated", "reserved", "active", "requested")


class PeakScope:
    """The peaks of one open measurement, by device index.

    ``reached`` are the highest counters that were reached while the scope was open, and ``peaks`` the results for
    devices whose counters were read at the end. For devices whose counters were never reset meanwhile, ``earlier`` are
    the peaks when the scope opened: a peak that is not higher may be older, and is only one of the upper ``bounds``.
    """

    __slots__ = ("bounds", "earlier", "peaks", "reached")

    def __init__(self) -> None:
        self.reached: dict[int, Counters] = {}
        self.bounds: dict[int, Counters] = {}
        self.earlier: dict[int, Counters] = {}
        self.peaks: dict[int, Peak] = {}

    def add(self, index: int, state: allocator.AllocatorStatistics) -> None:
        """Take the counters of a device into account."""
        earlier = self.earlier.get(index)
        if earlier is None:
            self.reached[index] = _maximum(self.reached.get(index), state.peak)
            return
        self.reached[index] = _maximum(self.reached.get(index), _new_peaks(state.peak, earlier, state.now))
        self.bounds[index] = _maximum(self.bounds.get(index), state.peak)

    def finish(self, index: int, state: allocator.AllocatorStatistics) -> None:
        """Take the counters of a device at the end into account."""
        self.add(index, state)
        reached = self.reached[index]
        highest = _maximum(self.bounds.get(index), reached)
        self.peaks[index] = Peak(*_values(highest), exact=highest.allocated == reached.allocated)


class PeakTracker:
    """All open scopes, and the user's peaks that our resets have lowered. One per process, as the counters are."""

    def __init__(self) -> None:
        self._scopes: list[PeakScope] = []
        self._user_stats: dict[int, dict[str, Any]] = {}
        self._lock = threading.RLock()
        self._functions = WrappedFunctions("torch._C")
        self._removing = False

    def install(self) -> None:
        """Wrap PyTorch's functions that read and reset peaks, if that has not been done and this is a CUDA build."""
        if pytorch.module() is None:
            return
        self._removing = False
        for name in _READERS:
            self._functions.wrap(name, self._read)
        for name in _RESETS:
            self._functions.wrap(name, self._reset)

    def stats(self, index: int) -> dict[str, Any]:
        """Return what `allocator.stats` returns, with the counters' own peaks instead of the user's."""
        counters: dict[str, Any] = self._functions.original(_READERS[0])(index)
        return counters

    def remove(self) -> None:
        """Remove the wrappers as soon as no scope is open and the user's peaks are the counters' own again."""
        with self._lock:
            self._removing = True
            self._remove_if_unused()

    def close(self) -> None:
        """Forget all scopes and remove the wrappers now."""
        with self._lock:
            self._scopes.clear()
            self._user_stats.clear()
            self._unwrap()

    def _remove_if_unused(self) -> None:
        if self._scopes:  # a reset by the user must still reach them
            return
        for index, user_stats in tuple(self._user_stats.items()):
            if not _raise_peaks(self.stats(index), user_stats):
                del self._user_stats[index]
        if not self._user_stats:
            self._unwrap()

    def _unwrap(self) -> None:
        for name in (*_READERS, *_RESETS):
            self._functions.unwrap(name)

    def scope(self) -> PeakScope:
        """Open a scope. On a device that it never enters, memory use began at zero, so its peak is exact too."""
        scope = PeakScope()
        with self._lock:
            self._scopes.append(scope)
        return scope

    def enter(self, scope: PeakScope, index: int, *, reset: bool) -> allocator.AllocatorStatistics:
        """Start tracking a device that has a context, and return its counters.

        With ``reset``, the counters are reset afterwards. Without, a peak may be only an upper bound. Raises
        RuntimeError for a pluggable allocator, which has no counters.
        """
        with self._lock:
            stats = self.stats(index)
            state = allocator.allocator_state(stats)
            if reset:
                for open_scope in self._scopes:
                    if open_scope is not scope:
                        open_scope.add(index, state)
                if index in self._user_stats:
                    _raise_peaks(stats, self._user_stats[index])
                self._user_stats[index] = stats
                self._functions.original(_RESETS[0])(index)
                self._forget_earlier(index)
            else:
                scope.earlier[index] = state.peak
            scope.reached[index] = state.now
        return state

    def leave(self, scope: PeakScope, index: int) -> allocator.AllocatorStatistics:
        """Add the final counters of a device to a scope, and return them; raises RuntimeError as `enter` does."""
        with self._lock:
            state = allocator.allocator_state(self.stats(index))
            scope.finish(index, state)
        return state

    def drop(self, scope: PeakScope) -> None:
        """Close a scope."""
        with self._lock:
            if scope in self._scopes:
                self._scopes.remove(scope)
            if self._removing:
                self._remove_if_unused()

    def discard(self, index: int) -> None:
        """Exclude what happened since the last scope opened from all peaks, as for the preload's own kernels."""
        with self._lock:
            self._functions.original(_RESETS[0])(index)
            self._forget_earlier(index)

    def _forget_earlier(self, index: int) -> None:
        for scope in self._scopes:
            scope.earlier.pop(index, None)

    def _read(self, original: Callable[..., Any], *arguments: Any) -> Any:
        stats = original(*arguments)
        user_stats = self._user_stats.get(arguments[0]) if arguments else None
        if user_stats is not None:
            _raise_peaks(stats, user_stats)
        return stats

    def _reset(self, original: Callable[..., Any], *arguments: Any) -> Any:
        with self._lock:
            index = arguments[0] if arguments else None
            if index is not None and self._scopes:
                # an invalid argument gets its error message from the original function
                with contextlib.suppress(Exception):
                    state = allocator.allocator_state(self.stats(index))
                    for scope in self._scopes:
                        scope.add(index, state)
            result = original(*arguments)
            if index is not None:
                self._user_stats.pop(index, None)
                self._forget_earlier(index)
            if self._removing:
                self._remove_if_unused()
        return result


def _maximum(first: Counters | None, second: Counters) -> Counters:
    return second if first is None else Counters(*map(max, _values(first), _values(second)))


def _new_peaks(peak: Counters, earlier: Counters, now: Counters) -> Counters:
    """Each peak that is higher than the earlier one, else the current level, which was certainly reached."""
    triples = zip(_values(peak), _values(earlier), _values(now), strict=True)
    return Counters(*(new if new > old else level for new, old, level in triples))


def _raise_peaks(stats: dict[str, Any], earlier: dict[str, Any]) -> bool:
    """Raise each ``peak`` of nested counters to an earlier one; return whether any was lower. Runs once per cell."""
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
