"""The reading that a session's deltas are told against, and what stands in it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ipygpumem.core.reading import Reading

__all__ = ["PRELOAD_OFF", "Baseline"]

PRELOAD_OFF = "preload is off"
"""The note of a baseline that was taken without a look at CUDA: there may be a GPU."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """What was there before the first cell, in bytes, on the device that was preloaded.

    ``reading``: all devices. ``context``: the CUDA context; ``kernels``: the first kernels and their libraries, both
    outside PyTorch; None where they cannot be told apart because CUDA had started before. ``workspace``: what cuBLAS
    left allocated in PyTorch's own allocator. ``note``: why a preload did less than it was asked for.
    """

    reading: Reading
    device: str | None = None
    label: str = ""
    context: int | None = None
    kernels: int | None = None
    workspace: int | None = None
    note: str = ""

    @property
    def outside(self) -> int | None:
        """All that stood outside PyTorch on that device."""
        device = self.reading.devices.get(self.device or "")
        return None if device is None else device.outside

    def to_dict(self) -> dict[str, Any]:
        """The baseline as plain data."""
        return {**asdict(self), "reading": self.reading.to_dict(), "outside": self.outside}
