"""Panel below a cell that ran out of device memory."""

from __future__ import annotations

from typing import Any

from ipygpumem.core.interrupts import AllowedInterrupts
from ipygpumem.core.report import Report
from ipygpumem.core.tables import tables_bundle
from ipygpumem.features.commands.command import Notebook
from ipygpumem.features.history.model import output_metadata
from ipygpumem.features.oom.observer import failed_allocations
from ipygpumem.features.oom.recording import OomRecording


class OomPanel:
    """Panel that explains the failed allocations in a cell.

    Attributes:
        observer: Observer that stores the allocations that failed since the previous panel.
        recording: Recording of the allocation history, which is saved when an allocation fails.
        report: Report of the cell if it is shown together with the panel, otherwise None.
    """

    def __init__(self, magics: Notebook, recording: OomRecording) -> None:
        self._magics = magics
        self._monitor = magics.session.monitor
        self.observer = failed_allocations()
        self.recording = recording
        self.report: Report | None = None

    def install(self) -> None:
        """Start observing failed allocations as soon as CUDA is initialized."""
        self._monitor.call_when_started(self._listen)

    def _listen(self) -> None:
        self.observer.listen(self.recording.save)

    def end_cell(self, result: Any) -> None:
        """Show the panel below the cell with this result, or only the cell's report if no allocation failed.

        A cell in which no allocation failed is stored as an earlier run.
        """
        count = self.observer.count
        failures = self.observer.take()
        source = getattr(getattr(result, "info", None), "raw_cell", None) or ""
        if not count:
            if result is not None and result.success:
                self.recording.earlier_runs.end(source, self._magics.shell.user_ns)
            return
        from ipygpumem.features.oom import collect as oom  # on first use, because few cells run out of memory
        from ipygpumem.features.oom.table import oom_tables

        snapshot, self.recording.saved = self.recording.saved, None
        # a cell that failed did not catch the error, even if it raised a different one
        with AllowedInterrupts():  # searches the heap
            caught = result is None or bool(result.success)
            cell = oom.FailedCell(source, self._magics.shell.user_ns, self.recording.earlier_runs)
            panel = oom.failure_report(failures, count, caught=caught, snapshot=snapshot, cell=cell)
        if panel is not None:
            tables = oom_tables(panel, self._magics.session.baseline)
            metadata = None if self.report is None else output_metadata(self.report)
            self._magics.publish(tables_bundle(tables), metadata)
        elif self.report is not None:
            self._magics.show_line(self.report)

    def remove(self) -> None:
        """Stop observing failed allocations."""
        self._monitor.cancel_when_started(self._listen)
        self.recording.configure(None)
        self.observer.stop()
