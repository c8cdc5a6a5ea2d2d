"""Measure the phases of a training step (forward, backward, optimizer) with the allocator's counters."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from ipygpumem.features.modules.model import StepPhase
from ipygpumem.measurement.peaks import PeakScope
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import pytorch

_NAMES = ("forward", "backward", "optimizer", "other")


class PhaseTracker:
    """Tracker that divides a measurement into phases, and attributes memory and time to the innermost running phase.

    A forward phase inside a backward phase (activation checkpointing) is counted as part of the backward phase.

    Attributes:
        cost: Overhead of tracking in seconds, which is not attributed to any phase.
        running_phases: Names of the running phases, outermost first.
    """

    def __init__(self, *, reset: bool) -> None:
        self.cost = 0.0
        self.running_phases: tuple[str, ...] = ()
        self._seconds: defaultdict[str, list[float]] = defaultdict(list)
        """Duration of each run of a phase in seconds, by phase name."""
        self._memory: defaultdict[tuple[str, int], list[tuple[int, int, int | None]]] = defaultdict(list)
        """Allocated memory of each run of a phase, as (change, end, exact peak or None), by phase name and device."""
        self._reset_peaks = reset
        self._scope: PeakScope | None = None
        self._started = 0.0
        self._allocated_before: dict[int, int] = {}

    @contextmanager
    def not_counted(self) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            seconds = time.perf_counter() - start
            self._started += seconds
            self.cost += seconds

    def begin(self) -> None:
        tracker = current().peaks
        self._scope = scope = tracker.scope()
        for index in pytorch.devices_in_use():
            self._allocated_before[index] = tracker.enter(scope, index, reset=self._reset_peaks).now.allocated
        self._started = time.perf_counter()

    def enter(self, name: str) -> None:
        self._switch((*self.running_phases, name))

    def leave(self, name: str) -> None:
        """End a phase, and all phases that are running inside it."""
        if name in self.running_phases:
            self._switch(self.running_phases[: -1 - self.running_phases[::-1].index(name)])

    def _switch(self, phases: tuple[str, ...]) -> None:
        start = time.perf_counter()
        if _innermost(phases) == _innermost(self.running_phases):
            self.running_phases = phases
            return
        self.end()
        self.running_phases = phases
        self.begin()
        self.cost += self._started - start

    def end(self) -> None:
        scope, self._scope = self._scope, None
        if scope is None:
            return
        name, self.running_phases = _innermost(self.running_phases), ()
        self._seconds[name].append(time.perf_counter() - self._started)
        tracker = current().peaks
        allocated = {index: tracker.leave(scope, index).now.allocated for index in pytorch.devices_in_use()}
        peaks = scope.peaks
        tracker.drop(scope)
        for index, after in allocated.items():
            change, peak = after - self._allocated_before.get(index, 0), peaks[index]
            self._memory[name, index].append((change, after, peak.allocated if peak.exact else None))

    def of_device(self, index: int) -> tuple[StepPhase, ...]:
        phases = []
        for name in _NAMES:
            if (name, index) in self._memory:
                seconds = self._seconds[name]
                changes, usages, peaks = zip(*self._memory[name, index], strict=True)
                peak = None if None in peaks else max(peaks)
                phases.append(StepPhase(name, len(seconds), sum(seconds), sum(changes), usages[-1], peak))
        return tuple(phases)


def _innermost(phases: tuple[str, ...]) -> str:
    if "backward" in phases and set(phases[phases.index("backward") :]) <= {"backward", "forward"}:
        return "backward"  # a forward phase inside it is a recomputation
    return phases[-1] if phases else "other"
