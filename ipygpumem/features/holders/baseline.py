"""Baselines for ``%gpumem who --new``: the storages of one moment, with which later ones are compared."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ipygpumem.features.holders.model import StorageBaseline
from ipygpumem.features.holders.search import find_storages
from ipygpumem.sources import pytorch
from ipygpumem.sources.allocator import allocated_blocks

if TYPE_CHECKING:
    from ipygpumem.measurement.runtime import Runtime

__all__ = ["CellBaselines", "storage_baseline"]

_COMPARES = re.compile(r"%gpumem\s+who\b.*--new\b")


def storage_baseline(*, host: bool = False, blocks_only: bool = False) -> StorageBaseline:
    """The storages that exist now.

    Args:
        host: Whether to include those in main memory.
        blocks_only: Read only the allocator's blocks, which takes milliseconds instead of a look at every object. Then
            a storage that reuses the address of a freed one is not recognized as new.
    """
    torch = pytorch.module()
    if torch is None:
        return StorageBaseline()
    blocks = allocated_blocks() if pytorch.started() is not None else None
    references = {} if blocks_only else find_storages(torch, lambda device: host or device != "cpu")
    return StorageBaseline.of(references, blocks)


class CellBaselines:
    """The baselines of one shell.

    Attributes:
        cell: The storages before the running cell, if that asks what is new.
        reported: The storages at the last ``%gpumem who``.
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
            self.cell = storage_baseline(host=self._runtime.host_only)

    def record_blocks(self) -> None:
        """Take a cheap baseline, of GPU memory only, unless the cell has one."""
        if self.cell is None and not self._runtime.host_only:
            self.cell = storage_baseline(blocks_only=True)

    def comparison(self) -> tuple[StorageBaseline | None, str]:
        """What ``--new`` compares with, and its description; None before the first ``%gpumem who``."""
        if self.cell is not None:
            return self.cell, "this cell began"
        return self.reported, "the last %gpumem who"
