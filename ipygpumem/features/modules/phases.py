"""The phases of a step, by the allocator's own counters: exact peaks, and changes that add up."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ipygpumem.measurement.peaks import PEAKS, Scope
from ipygpumem.sources import pytorch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["PhaseSums", "PhaseTracker"]


@dataclass(slots=True)
class PhaseSums:
    """One phase on one device so far, in bytes; ``peak`` None where it was only a bound."""

    change: int = 0
    after: int = 0
    peak: int | None = 0


@dataclass(slots=True)
class _Times:
    times: int = 0
    seconds: float = 0.0
    devices: dict[int, PhaseSums] = field(default_factory=dict)


class PhaseTracker:
    """One phase at a time; entered phases lie in each other, and the innermost counts.

    A forward inside a backward pass is the backward's: that is how checkpointing computes again. ``reset`` False never
    resets a counter.
    """

    def __init__(self, *, reset: bool) -> None:
        self.totals: dict[str, _Times] = {}
        self.cost = 0.0
        """Seconds that are no phase's: what we took for ourselves."""
        self._reset = reset
        self._stack: list[str] = []
        self._scope: Scope | None = None
        self._name = ""
        self._since = 0.0
        self._levels: dict[int, int] = {}

    @property
    def inside(self) -> tuple[str, ...]:
        """The phases that are entered, the outermost first."""
        return tuple(self._stack)

    @contextmanager
    def aside(self) -> Iterator[None]:
        """What is done in here is no phase's time: our own looking about."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - begun
            self._since += spent
            self.cost += spent

    def begin(self) -> None:
        """From here on everything is in some phase."""
        self._open("other")

    def enter(self, name: str) -> None:
        """A phase begins."""
        shown = self._shown()
        self._stack.append(name)
        if self._shown() != shown:
            self._switch()

    def leave(self, name: str) -> None:
        """The innermost phase of this name ends, with whatever was left open inside it."""
        if name not in self._stack:
            return
        shown = self._shown()
        while self._stack.pop() != name:
            pass
        if self._shown() != shown:
            self._switch()

    def end(self) -> None:
        """No more phases. A second time is nothing."""
        self._close()
        self._stack.clear()

    def _shown(self) -> str:
        if not self._stack:
            return "other"
        if "backward" in self._stack and set(self._stack[self._stack.index("backward") :]) <= {"backward", "forward"}:
            return "backward"
        return self._stack[-1]

    def _switch(self) -> None:
        begun = time.perf_counter()
        self._close()
        self._open(self._shown())
        self.cost += self._since - begun

    def _open(self, name: str) -> None:
        self._name = name
        self._scope = scope = PEAKS.scope()
        self._levels = {}
        for index in _contexts():
            self._levels[index] = PEAKS.enter(scope, index, reset=self._reset).now.allocated
        self._since = time.perf_counter()

    def _close(self) -> None:
        scope, self._scope = self._scope, None
        if scope is None:
            return
        total = self.totals.setdefault(self._name, _Times())
        total.times += 1
        total.seconds += time.perf_counter() - self._since
        levels = {index: PEAKS.leave(scope, index).now.allocated for index in _contexts()}
        peaks = scope.peaks()
        PEAKS.drop(scope)
        for index, level in levels.items():
            sums = total.devices.setdefault(index, PhaseSums())
            sums.change += level - self._levels.get(index, 0)
            sums.after = level
            peak = peaks[index]
            known = peak.exact and sums.peak is not None
            sums.peak = max(sums.peak or 0, peak.counters.allocated) if known else None


def _contexts() -> list[int]:
    """Devices on which this process has a context."""
    torch = pytorch.started()
    if torch is None:
        return []
    return [index for index in range(torch.cuda.device_count()) if pytorch.has_context(torch, index)]
