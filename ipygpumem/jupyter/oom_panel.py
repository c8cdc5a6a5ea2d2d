"""The panel below a cell that ran out of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.features.oom import collect as oom
from ipygpumem.features.oom.observer import failed_allocations
from ipygpumem.features.oom.table import oom_tables
from ipygpumem.jupyter import display

if TYPE_CHECKING:
    from ipygpumem.core.report import Report
    from ipygpumem.features.oom.history import OomHistory
    from ipygpumem.measurement.runtime import Runtime

__all__ = ["OomPanel"]


class OomPanel:
    """The failed allocations of one shell's cells.

    Attributes:
        observer: Counts the failed allocations since the last panel.
        history: The allocation history that is saved when an allocation fails.
        report: The report of the cell, if the panel is to show it.
    """

    def __init__(self, shell: Any, runtime: Runtime, history: OomHistory) -> None:
        self._shell = shell
        self._runtime = runtime
        self.observer = failed_allocations()
        self.history = history
        self.report: Report | None = None

    def install(self) -> None:
        """Observe failed allocations as soon as CUDA has started."""
        self._runtime.monitor.call_when_started(self._listen)

    def _listen(self) -> None:
        oom.listen(self.history.save)

    def show(self, result: Any) -> None:
        """Show the panel below the cell with this result, in which allocations failed."""
        count = self.observer.count
        failures = self.observer.take()
        # a cell that failed did not catch the error, whatever its own error is
        panel = oom.explain(failures, count, caught=result is None or bool(result.success))
        if panel is not None:
            display.show_tables(self._shell, oom_tables(panel, self._runtime.baseline), self.report)
        elif self.report is not None:
            display.show_line(self._shell, self.report)

    def discard(self) -> None:
        """Discard failed allocations of a cell that has no report."""
        if self.observer.count:
            self.observer.take()

    def remove(self) -> None:
        """Stop observing."""
        self._runtime.monitor.cancel_when_started(self._listen)
        self.history.configure(None)
        self.observer.stop()
