"""The reading with which a session is compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipygpumem.core.to_dict import PlainData

if TYPE_CHECKING:
    from ipygpumem.core.reading import Reading

__all__ = ["PRELOAD_OFF", "Baseline"]

PRELOAD_OFF = "preload is off"
"""The note of a baseline for which CUDA was not started: there may be a GPU."""


@dataclass(frozen=True, slots=True)
class Baseline(PlainData):
    """Memory in use before the first cell, after PyTorch and its first kernels were preloaded.

    Attributes:
        reading: The reading of all devices and of the host.
        device: Name of the preloaded device; None if CUDA was not started.
        label: Product name of that device.
        context: Size of its CUDA context in bytes; None if CUDA had started before.
        kernels: Size of the first kernels and their libraries, outside PyTorch, in bytes; None if unknown.
        workspace: Size of the workspace that cuBLAS keeps in PyTorch's allocator, in bytes; None if unknown.
        note: Why the preload was incomplete; empty if it was not.
    """

    reading: Reading
    device: str | None = None
    label: str = ""
    context: int | None = None
    kernels: int | None = None
    workspace: int | None = None
    note: str = ""

    written_properties = ("outside",)

    @property
    def outside(self) -> int | None:
        """Memory outside PyTorch on the preloaded device, in bytes; None if unknown."""
        device = self.reading.devices.get(self.device or "")
        return None if device is None else device.outside
