"""Cells that run out of memory: the observer while the extension is loaded, and the panel under the cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.features.oom import collect as oom
from ipygpumem.features.oom.observer import FAILURES
from ipygpumem.features.oom.table import oom_tables
from ipygpumem.jupyter import display as show

if TYPE_CHECKING:
    from ipygpumem.core.report import Report
    from ipygpumem.features.oom.history import Ring
    from ipygpumem.measurement.session import Session

__all__ = ["Ooms"]


class Ooms:
    """The failures of one shell's cells."""

    def __init__(self, shell: Any, session: Session, ring: Ring) -> None:
        self._shell = shell
        self._session = session
        self.ring = ring
        self._listening = False
        self.report: Report | None = None
        """The cell's report, where it has no display of its own: the panel carries its figures."""

    def begin(self) -> None:
        """A cell begins: from the moment on that CUDA has started, every failure is taken down."""
        self.report = None
        if not self._listening:
            self._listening = oom.listen(self.ring.save)
        if self.ring.wanted:
            self.ring.resume()

    @property
    def pending(self) -> bool:
        """Whether something failed that nobody was told of."""
        return FAILURES.count > 0

    def tell(self, result: Any) -> None:
        """A cell has ended: if allocations failed in it, show the panel."""
        count = FAILURES.count
        if not count:
            return
        failures = FAILURES.take()
        # a cell that failed has not gone on, whatever its error says of how it came
        panel = oom.explain(failures, count, caught=result is None or bool(result.success))
        if panel is None:
            if self.report is not None:
                show.show_line(self._shell, self.report)
            return
        show.show_tables(self._shell, oom_tables(panel, self._session.baseline), self.report)

    def drop(self) -> None:
        """Nobody is to be told."""
        if FAILURES.count:
            FAILURES.take()

    def remove(self) -> None:
        """The extension is unloaded."""
        self.ring.set(None)
        if self._listening:
            FAILURES.deafen()
            self._listening = False
