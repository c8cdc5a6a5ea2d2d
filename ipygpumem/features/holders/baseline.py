"""Baselines for ``%gpumem who --new``: the storages of one moment, with which later ones are compared."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ipygpumem.sources import pytorch
from ipygpumem.sources.allocator import allocated_blocks

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from ipygpumem.measurement.runtime import Runtime
    from ipygpumem.sources.allocator import AllocatedBlocks
    from ipygpumem.sources.storages import StorageLocation

__all__ = ["CellBaselines", "StorageBaseline"]

_COMPARES = re.compile(r"%gpumem\s+who\b.*--new\b")


@dataclass(frozen=True, slots=True)
class StorageBaseline:
    """The storages of one moment. As addresses are reused, storages are identified by themselves where possible.

    Attributes:
        addresses: Device and address of every block, and of every storage outside a block.
        identified: Those of the addresses whose storage is known.
        storages: Addresses of the storage objects in PyTorch.
        references: Weak references: as long as they exist, no other storage object has the same address.
    """

    addresses: frozenset[tuple[str, int]] = frozenset()
    identified: frozenset[tuple[str, int]] = frozenset()
    storages: frozenset[int] = frozenset()
    references: tuple[Any, ...] = field(default=(), repr=False, compare=False)

    @classmethod
    def of(cls, references: Mapping[StorageLocation, Any], blocks: AllocatedBlocks | None) -> StorageBaseline:
        """The baseline of storages, given as weak references by their locations, and of the allocator's blocks."""
        addresses = set() if blocks is None else set(blocks.positions)
        identified, storages = set(), set()
        for memory in references:
            block = None if blocks is None else blocks.block(memory.device, memory.address)
            address = (memory.device, memory.address if block is None else block.address)
            addresses.add(address)
            if memory.storage:
                identified.add(address)
                storages.add(memory.storage)
        return cls(frozenset(addresses), frozenset(identified), frozenset(storages), tuple(references.values()))

    def contains(self, device: str, address: int, storages: Collection[int]) -> bool:
        """Whether the memory at an address already existed; ``storages`` are the storage objects that use it now."""
        if (device, address) not in self.addresses:
            return False
        return (device, address) not in self.identified or not self.storages.isdisjoint(storages)


class CellBaselines:
    """The baselines of one shell.

    Attributes:
        cell: The allocator's blocks before the running cell, if they are needed. Reading them takes milliseconds, but
            tensors that reuse the memory of tensors that the cell has freed are not recognized as new.
        reported: The storages that the last ``%gpumem who`` has seen.
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
