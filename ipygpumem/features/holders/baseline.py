"""Baselines of ``%gpumem who --new``, which lists only storages that did not exist at the baseline."""

from __future__ import annotations

import re

from ipygpumem.features.holders.model import StorageBaseline
from ipygpumem.measurement.runtime import Runtime
from ipygpumem.sources import pytorch
from ipygpumem.sources.allocator import allocated_blocks

_WHO_NEW = re.compile(r"%gpumem\s+who\b.*--new\b")


class HolderBaselines:
    """The baselines of one IPython shell.

    Attributes:
        cell: Baseline before the current cell; None if not required. The baseline contains only the allocator's
            blocks, which can be read in milliseconds. Therefore, tensors that reuse memory freed by the same cell are
            not recognized as new.
        reported: Baseline created by the last ``%gpumem who``; None before the first ``%gpumem who``.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.cell: StorageBaseline | None = None
        self.reported: StorageBaseline | None = None

    def start_cell(self, text: str) -> None:
        """Create the baseline of a cell if its text contains ``%gpumem who --new`` and other lines of code."""
        self.cell = None
        lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        if len(lines) > 1 and _WHO_NEW.search(text):
            self.record_blocks()

    def record_blocks(self) -> None:
        """Create the baseline of a cell from the allocated blocks."""
        if pytorch.started() is not None:
            blocks = allocated_blocks()
            self.cell = None if blocks is None else StorageBaseline.of({}, blocks)
        elif not self._runtime.host_only:
            self.cell = StorageBaseline()

    def comparison(self) -> tuple[StorageBaseline | None, str]:
        """Return ``(baseline, description)`` for ``--new``. The baseline is None if none has been created yet."""
        if self.cell is not None:
            return self.cell, "this cell began"
        return self.reported, "the last %gpumem who"
