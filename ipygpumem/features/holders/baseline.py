"""Baselines for ``%gpumem who --new``: the storages of one moment, with which later ones are compared."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ipygpumem.features.holders.model import StorageBaseline
from ipygpumem.sources import pytorch
from ipygpumem.sources.allocator import allocated_blocks

if TYPE_CHECKING:
    from ipygpumem.measurement.runtime import Runtime

_COMPARES = re.compile(r"%gpumem\s+who\b.*--new\b")


class CellBaselines:
    """The baselines of one shell: ``cell`` from before the running cell, if needed, ``reported`` from the last search.

    That of a cell has only the allocator's blocks. Reading them takes milliseconds, but tensors that reuse the memory
    of tensors that the cell has freed are not recognized as new.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.cell: StorageBaseline | None = None
        self.reported: StorageBaseline | None = None

    def start_cell(self, text: str) -> None:
        """Take a baseline if the text of the cell contains ``%gpumem who --new`` after other statements."""
        self.cell = None
        lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        if len(lines) > 1 and _COMPARES.search(text):
            self.record_blocks()

    def record_blocks(self) -> None:
        """Take a baseline of GPU memory before the cell."""
        if pytorch.started() is not None:
            blocks = allocated_blocks()
            self.cell = None if blocks is None else StorageBaseline.of({}, blocks)
        elif not self._runtime.host_only:
            self.cell = StorageBaseline()

    def comparison(self) -> tuple[StorageBaseline | None, str]:
        """What ``--new`` compares with, and its description; None before the first ``%gpumem who``."""
        if self.cell is not None:
            return self.cell, "this cell began"
        return self.reported, "the last %gpumem who"
