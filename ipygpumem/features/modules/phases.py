"""Phases of a training step (forward, backward, optimizer), measured with the allocator's counters."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ipygpumem.measurement.runtime import current
from ipygpumem.sources import pytorch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ipygpumem.measurement.peaks import PeakScope

__all__ = ["PhaseSums", "PhaseTotal", "PhaseTracker"]


@dataclass(slots=True)
class PhaseSums:
    """Sums of one phase on one device, in bytes; ``peak`` is None if only an upper bound is known."""

    change: int = 0
    after: int = 0
    peak: int | None = 0


@dataclass(slots=True)
class PhaseTotal:
    """Sums of one phase: number of runs, seconds, and memory by device index."""

    times: int = 0
    seconds: float = 0.0
    devices: dict[int, PhaseSums] = field(default_factory=dict)


class PhaseTracker:
    """Divides a measurement into phases. Phases can be nested; then the innermost counts.

    A forward during a backward pass belongs to the backward phase: that is how activation checkpointing recomputes.

    Attributes:
        totals: Sums by name of the phase; time outside all phases is ``other``.
        cost: Seconds that tracking itself took; they belong to no phase.
        inside: The phases that are running, the outermost first.
    """

    def __init__(self, *, reset: bool) -> None:
        self.totals: dict[str, PhaseTotal] = {}
        self.cost = 0.0
        self.inside: tuple[str, ...] = ()
        self._reset_peaks = reset
        self._scope: PeakScope | None = None
        self._started = 0.0
        self._allocated_before: dict[int, int] = {}

    @contextmanager
    def not_counted(self) -> Iterator[None]:
        """Leave the time of a block out of the current phase."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - begun
            self._started += seconds
            self.cost += seconds

    def begin(self) -> None:
        """Begin with the phase ``other``."""
        tracker = current().peaks
        self._scope = scope = tracker.scope()
        self._allocated_before = {
            index: tracker.enter(scope, index, reset=self._reset_peaks).now.allocated for index in _devices_in_use()
        }
        self._started = time.perf_counter()

    def enter(self, name: str) -> None:
        """Begin a phase."""
        self._switch((*self.inside, name))

    def leave(self, name: str) -> None:
        """End the innermost phase of this name, and any phase still open inside it."""
        if name in self.inside:
            self._switch(self.inside[: -1 - self.inside[::-1].index(name)])

    def _switch(self, phases: tuple[str, ...]) -> None:
        begun = time.perf_counter()
        if _innermost(phases) == _innermost(self.inside):
            self.inside = phases
            return
        self.end()
        self.inside = phases
        self.begin()
        self.cost += self._started - begun

    def end(self) -> None:
        """End all phases. Further calls do nothing."""
        scope, self._scope = self._scope, None
        if scope is None:
            return
        total = self.totals.setdefault(_innermost(self.inside), PhaseTotal())
        self.inside = ()
        total.times += 1
        total.seconds += time.perf_counter() - self._started
        tracker = current().peaks
        allocated = {index: tracker.leave(scope, index).now.allocated for index in _devices_in_use()}
        peaks = scope.peaks
        tracker.drop(scope)
        for index, after in allocated.items():
            sums = total.devices.setdefault(index, PhaseSums())
            sums.change += after - self._allocated_before.get(index, 0)
            sums.after = after
            peak = peaks[index]
            sums.peak = max(sums.peak, peak.allocated) if peak.exact and sums.peak is not None else None


def _innermost(phases: tuple[str, ...]) -> str:
    """The phase that counts: the innermost, or the backward pass in which a forward is recomputed."""
    if "backward" in phases and set(phases[phases.index("backward") :]) <= {"backward", "forward"}:
        return "backward"
    return phases[-1] if phases else "other"


def _devices_in_use() -> list[int]:
    torch = pytorch.started()
    if torch is None:
        return []
    return [index for index in range(torch.cuda.device_count()) if pytorch.has_context(torch, index)]
