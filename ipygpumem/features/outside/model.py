"""Memory outside PyTorch by library.

::

    outside PyTorch = libraries (device memory, arrays, static variables) + unused memory in CUDA's pools + rest

The rest was not allocated by a call that CUPTI records: the CUDA context, kernel code, stacks and graphs, and memory
mapped by cuMemCreate, which the tested versions of CUPTI do not record. Pinned and managed memory are separate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ipygpumem.core.to_dict import PlainData

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.core.grade import Grade
    from ipygpumem.core.report import DeviceReport

Memory = Literal["device", "array", "static", "managed", "pinned"]
"""``device``: cudaMalloc and similar; ``array``: textures and surfaces; ``static``: variables of kernels; ``managed``:
moves between device and host; ``pinned``: page-locked memory of the host."""

EARLIER = "allocated before recording began"
"""Stands for the library of memory whose allocation was not recorded."""

DEVICE_MEMORY = ("device", "array", "static")


@dataclass(frozen=True, slots=True)
class LibraryMemory:
    """The allocations of one kind of memory by one library during a measurement, in bytes.

    ``file`` is the name of the library's file without folders, empty if unknown; ``change`` is ``allocated`` minus
    ``freed``, which includes memory allocated earlier; ``peak`` is the highest change. ``pooled`` memory comes from a
    CUDA pool (cudaMallocAsync), which may keep it when it is freed.
    """

    library: str
    file: str
    memory: Memory
    change: int
    peak: int
    allocated: int
    freed: int
    allocations: int
    pooled: bool = False


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """The counters of a memory pool, in bytes. Its memory is included in that of the libraries.

    Attributes:
        change: The change of the memory that it holds; None if it counts only what is in use.
        used: The change of the memory in use.
        now: The memory that it holds at the end, or that is in use if it counts only that.
        peak: The highest such value minus the value before; None unless it was reached during this measurement.
    """

    name: str
    change: int | None
    used: int | None
    now: int | None
    peak: int | None
    grade: Grade


@dataclass(frozen=True, slots=True)
class OutsideMemory(PlainData):
    """Memory outside PyTorch on one device during a measurement, in bytes.

    Attributes:
        libraries: The libraries that allocated memory, the largest change first.
        peak: The highest sum of the libraries' device memory minus its value before; None without records.
        idle: The change of unused memory in CUDA's default pool and in the memory of CUDA graphs.
        rest: The change that belongs to no library; None if it cannot be computed.
        seconds: How long recording was paused, because torch.profiler was using CUPTI.
        grade: The confidence in the libraries' values.
    """

    device: str
    libraries: tuple[LibraryMemory, ...]
    pools: tuple[PoolMemory, ...]
    peak: int | None
    idle: int
    rest: int | None
    seconds: float
    grade: Grade

    written_properties = ("named",)

    @property
    def named(self) -> int:
        """The change of the libraries' device memory."""
        return sum(library.change for library in self.libraries if library.memory in DEVICE_MEMORY)


def balance(
    device: DeviceReport,
    libraries: Iterable[LibraryMemory],
    pools: Iterable[PoolMemory],
    *,
    peak: int | None,
    reserved: int | None,
    graphs: int | None,
    seconds: float,
    grade: Grade,
) -> OutsideMemory:
    """Subtract the memory of libraries and pools from the change that NVML reports.

    ``reserved`` is the change of the memory that CUDA's default pool holds, and ``graphs`` that of the memory reserved
    for CUDA graphs; None if unknown. The other arguments are attributes of the result.
    """
    ordered = tuple(sorted(libraries, key=lambda library: (-abs(library.change), -library.peak, library.library)))
    on_device = [library for library in ordered if library.memory in DEVICE_MEMORY]
    pooled = sum(library.change for library in on_device if library.pooled)
    idle = (0 if reserved is None else reserved - pooled) + (graphs or 0)
    rest = None if device.outside is None else device.outside - sum(library.change for library in on_device) - idle
    return OutsideMemory(device.name, ordered, tuple(pools), peak, idle, rest, seconds, grade)
