"""What ipygpumem's own recorder adds to a snapshot: cells, devices, dropped events, curves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Cell", "RecorderMetadata"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of a notebook cell.

    Attributes:
        number: The n of In[n], or None for code without a number.
        filename: The file name in the frames of code that the cell defines; empty if unknown.
        start_us: Microseconds since 1970.
        end_us: Microseconds since 1970.
        success: Whether it finished without an exception; None if unknown.
    """

    number: int | None
    filename: str
    start_us: int
    end_us: int
    success: bool | None

    @property
    def label(self) -> str:
        """``"In[3]"``, or the file name of a cell without a number."""
        return (self.filename or "(a cell)") if self.number is None else f"In[{self.number}]"


@dataclass(frozen=True, slots=True)
class RecorderMetadata:
    """The ``ipygpumem`` key of a file; defaults for a file without one.

    Attributes:
        version: Version of ipygpumem that wrote the file, or None if another program did.
        torch: Version of torch.
        host: Name of the machine.
        cells: Runs of cells, ordered by start.
        numbers: The n of In[n] of cells that ran before the recording, by file name.
        dropped: For each device, the number of allocations that the ring buffer dropped; None if unknown.
        device_names: Name of each device, by index.
        device_totals: Bytes of each device, by index.
        readings: Byte counts ``before`` and ``after``, as written.
        curves: Further curves by name, as written: device, time_us, bytes.
    """

    version: str | None = None
    torch: str | None = None
    host: str | None = None
    cells: tuple[Cell, ...] = ()
    numbers: dict[str, int] = field(default_factory=dict)
    dropped: tuple[int | None, ...] = ()
    device_names: dict[int, str] = field(default_factory=dict)
    device_totals: dict[int, int] = field(default_factory=dict)
    readings: dict[str, Any] = field(default_factory=dict)
    curves: dict[str, Any] = field(default_factory=dict)

    def dropped_of(self, device: int) -> int | None:
        """The number of allocations of a device that the ring buffer dropped; None if unknown."""
        return self.dropped[device] if device < len(self.dropped) else None
