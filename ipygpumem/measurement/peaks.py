"""Exact peaks that nest, and that leave what the user reads as it was.

PyTorch has one peak per counter and one reset for everybody (pytorch#16266). Here each measurement is a scope. Before
our own reset the counters are folded into every open scope and into what the user is owed; wrappers on the four C names
that all of PyTorch's readers go through put the user's figures back, and fold a user's own reset into the open scopes.
What another thread allocates between a read and its reset is lost to the peak: the one stated exception.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from typing import TYPE_CHECKING, Any

from ipygpumem.core.reading import Counters
from ipygpumem.core.report import Peak
from ipygpumem.sources import allocator, pytorch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["PEAKS", "PeakBook", "Scope"]

_READERS = ("_cuda_memoryStats", "_accelerator_getDeviceStats")
_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")

_PRIVATE = "reserved_bytes_by_private_pools"
"""The one part whose shape changes while a program runs."""

_Leaves = dict[tuple[str, ...], int]
_places: dict[tuple[str, ...], tuple[tuple[str, ...], ...]] = {}
"""Where the peaks of this torch stand, by the names of its counters."""


class Scope:
    """One open measurement: the highest counters seen, by device index.

    ``floor`` holds, for a device whose counters nobody has reset since the scope opened, the record that stood then: a
    peak that does not exceed it may be older than the scope.
    """

    __slots__ = ("bounds", "floor", "left", "reached")

    def __init__(self) -> None:
        self.reached: dict[int, Counters] = {}
        self.bounds: dict[int, Counters] = {}
        self.floor: dict[int, Counters] = {}
        self.left: set[int] = set()

    def fold(self, index: int, state: allocator.AllocatorState) -> None:
        """Take in the counters' peaks; those not above the floor count as bounds only."""
        floor = self.floor.get(index)
        if floor is None:
            self.reached[index] = _higher(self.reached.get(index), state.peak)
            return
        self.reached[index] = _higher(self.reached.get(index), _above(state.peak, floor, state.now))
        self.bounds[index] = _higher(self.bounds.get(index), state.peak)

    def peaks(self) -> dict[int, Peak]:
        """The peaks by device index, of the devices whose counters could be read to the end."""
        return {index: self._peak(index) for index in self.left}

    def _peak(self, index: int) -> Peak:
        reached, bound = self.reached[index], self.bounds.get(index)
        if bound is None:
            return Peak(reached)
        highest = _higher(reached, bound)
        return Peak(highest, exact=highest.allocated == reached.allocated)


class PeakBook:
    """All open scopes and the peaks that are owed to the user. One per process: the counters are the process's."""

    def __init__(self) -> None:
        self._scopes: list[Scope] = []
        self._owed: dict[int, _Leaves] = {}
        self._lock = threading.RLock()
        self._wrappers: dict[str, Callable[..., Any]] = {}
        self._leaving = False

    def install(self) -> None:
        """Stand behind PyTorch's readers and resets. Again is nothing; without a CUDA build there is nothing to do."""
        self._leaving = False
        for name in (*_READERS, *_RESETS):
            pytorch.wrap(name, self._wrappers.get(name), functools.partial(self._wrapper, name))

    def remove(self) -> None:
        """Take the wrappers back: at once, or when the last open scope has ended and nothing is owed any more.

        One that still owes the user a higher peak than the counter's stays until the user's next reset.
        """
        with self._lock:
            self._leaving = True
            self._leave()

    def _leave(self) -> None:
        if self._scopes:  # a user's reset must still reach them
            return
        for index in list(self._owed):
            self._settle_debt(index)
        if not self._owed:
            self._unwrap()

    def _unwrap(self) -> None:
        for name, wrapper in list(self._wrappers.items()):
            if pytorch.unwrap(name, wrapper):
                del self._wrappers[name]

    def _settle_debt(self, index: int) -> None:
        """Forget what the counters themselves show by now."""
        shown = dict(_peak_leaves(allocator.stats(index)))
        rest = {path: value for path, value in self._owed[index].items() if value > shown.get(path, value)}
        if rest:
            self._owed[index] = rest
        else:
            del self._owed[index]

    def scope(self) -> Scope:
        """A new scope, open on no device yet. A device that it never enters began from nothing, and is exact too."""
        scope = Scope()
        with self._lock:
            self._scopes.append(scope)
        return scope

    def enter(self, scope: Scope, index: int, *, reset: bool) -> allocator.AllocatorState:
        """Open the scope on a device that has a context; ``reset`` False never resets a counter.

        Returns:
            The counters as they stood.

        Raises:
            RuntimeError: A pluggable allocator keeps no counters.
        """
        with self._lock:
            stats = allocator.stats(index)
            state = allocator.allocator_state(stats)
            if reset:
                self._fold(index, state, but=scope)
                self._owed[index] = _highest(self._owed.get(index), _peak_leaves(stats))
                pytorch.original(_RESETS[0])(index)
                self._forget_floor(index)
            else:
                scope.floor[index] = state.peak
            scope.reached[index] = state.now
        return state

    def leave(self, scope: Scope, index: int) -> allocator.AllocatorState:
        """Take a device's last peaks into the scope.

        Returns:
            The counters as they stand.

        Raises:
            RuntimeError: A pluggable allocator keeps no counters.
        """
        with self._lock:
            state = allocator.state(index)
            scope.fold(index, state)
            scope.left.add(index)
        return state

    def drop(self, scope: Scope) -> None:
        """End a scope without asking for its peaks."""
        with self._lock:
            if scope in self._scopes:
                self._scopes.remove(scope)
            if self._leaving:
                self._leave()

    def _fold(self, index: int, state: allocator.AllocatorState, but: Scope | None = None) -> None:
        for scope in self._scopes:
            if scope is not but:
                scope.fold(index, state)

    def _forget_floor(self, index: int) -> None:
        for scope in self._scopes:
            scope.floor.pop(index, None)

    def excuse(self, index: int) -> None:
        """Let nobody's peak show what happened since the last scope opened: our own warm-up is not the user's."""
        with self._lock:
            pytorch.original(_RESETS[0])(index)
            self._forget_floor(index)

    def _wrapper(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        if name in _READERS:

            @functools.wraps(original)
            def wrapper(*arguments: Any) -> Any:
                return self._read(original, *arguments)
        else:

            @functools.wraps(original)
            def wrapper(*arguments: Any) -> Any:
                return self._reset(original, *arguments)

        # to compiled code a call stays what it was, one opaque call: dynamo does not look inside
        wrapper._torchdynamo_disable = True  # type: ignore[attr-defined]
        self._wrappers[name] = wrapper
        return wrapper

    def _read(self, original: Callable[..., Any], *arguments: Any) -> Any:
        stats = original(*arguments)
        owed = self._owed.get(arguments[0]) if arguments else None
        if owed:
            _raise_leaves(stats, owed)
        return stats

    def _reset(self, original: Callable[..., Any], *arguments: Any) -> Any:
        with self._lock:
            index = arguments[0] if arguments else None
            if index is not None and self._scopes:
                # what is wrong with the call the original says, in its own words
                with contextlib.suppress(Exception):
                    self._fold(index, allocator.state(index))
            result = original(*arguments)
            if index is not None:
                self._owed.pop(index, None)
                self._forget_floor(index)
            if self._leaving:
                self._leave()
        return result


def _higher(one: Counters | None, other: Counters) -> Counters:
    if one is None:
        return other
    return Counters(
        max(one.allocated, other.allocated),
        max(one.reserved, other.reserved),
        max(one.active, other.active),
        max(one.requested, other.requested),
    )


def _above(peak: Counters, floor: Counters, now: Counters) -> Counters:
    """Each peak that is a new record, else the level of now, which was reached for certain."""
    return Counters(
        peak.allocated if peak.allocated > floor.allocated else now.allocated,
        peak.reserved if peak.reserved > floor.reserved else now.reserved,
        peak.active if peak.active > floor.active else now.active,
        peak.requested if peak.requested > floor.requested else now.requested,
    )


def _peak_leaves(stats: dict[str, Any]) -> _Leaves:
    """Every ``*.peak`` of the nested counters, by its path. In each cell twice: hence the list of known places."""
    names = tuple(stats)
    places = _places.get(names)
    if places is None:
        found: _Leaves = {}
        _walk({name: value for name, value in stats.items() if name != _PRIVATE and isinstance(value, dict)}, (), found)
        places = _places[names] = tuple(found)
    leaves: _Leaves = {}
    for path in places:
        node = stats
        for key in path:
            node = node[key]
        leaves[path] = node["peak"]
    pools = stats.get(_PRIVATE)
    if pools:
        _walk(pools, (_PRIVATE,), leaves)
    return leaves


def _walk(node: dict[str, Any], path: tuple[str, ...], leaves: _Leaves) -> None:
    for key, value in node.items():
        if isinstance(value, dict):
            _walk(value, (*path, key), leaves)
        elif key == "peak":
            leaves[path] = value


def _highest(one: _Leaves | None, other: _Leaves) -> _Leaves:
    if one is None:
        return other
    known = one.get
    higher = {path: value for path, value in other.items() if value > known(path, -1)}
    return {**one, **higher} if higher else one


def _raise_leaves(stats: dict[str, Any], owed: _Leaves) -> None:
    """Lift each peak of a fresh answer to what the user would have read."""
    for path, value in owed.items():
        node: Any = stats
        for key in path:
            node = node.get(key) if isinstance(node, dict) else None
        if isinstance(node, dict) and node.get("peak", value) < value:
            node["peak"] = value


PEAKS = PeakBook()
"""The process's one book."""
