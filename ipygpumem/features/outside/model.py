"""Memory outside PyTorch, attributed to libraries.

::

    outside PyTorch = libraries (device memory, arrays, static variables) + unused memory in CUDA's pools + rest

The rest is memory that CUPTI does not record: the CUDA context, kernel code, stacks, graphs, and in the tested versions
of CUPTI also memory created with cuMemCreate. Pinned and managed memory are listed separately.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ipygpumem.core.serialization import PlainData

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.core.grade import Grade
    from ipygpumem.core.report import DeviceReport

Memory = Literal["device", "array", "static", "managed", "pinned"]
"""``device``: cudaMalloc and similar; ``array``: textures and surfaces; ``static``: ``__device__`` variables;
``managed``: unified memory, which migrates between device and host; ``pinned``: page-locked host memory."""

BEFORE_RECORDING = "allocated before recording began"
"""Placeholder for the library that allocated memory before recording began."""

DEVICE_MEMORY = ("device", "array", "static")


@dataclass(frozen=True, slots=True)
class LibraryMemory:
    """Memory of one kind allocated and freed by one library during a measurement, in bytes.

    ``file`` is the base name of the library file, empty if unknown; ``change`` is ``allocated`` minus ``freed``, which
    includes memory allocated before the measurement; ``peak`` is the maximum change. ``pooled`` memory comes
    from a CUDA memory pool (cudaMallocAsync), which may retain it after it is freed.
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
    """Statistics of a memory pool, in bytes. Memory recorded by CUPTI is also included in that of the libraries.

    Attributes:
        change: Change of the reserved memory; None if the pool counts only used memory.
        used: Change of the used memory.
        now: Reserved memory at the end, or used memory if ``change`` is None.
        peak: Peak minus the initial value; None unless a new peak was reached during this measurement.
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
        libraries: Memory by library, sorted by decreasing change.
        peak: Peak of the libraries' total device memory relative to the start; None without records.
        idle: Change of unused memory in CUDA's default memory pool and in memory reserved for CUDA graphs.
        rest: Change that is not attributed to a library; None if unknown.
        seconds: Duration for which recording was paused because torch.profiler was using CUPTI.
        grade: Accuracy of the values by library.
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
        """Total change of the libraries' device memory."""
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
    """Attribute a device's change outside PyTorch to libraries and pools, with the difference as ``rest``.

    ``reserved`` is the change of the memory reserved by CUDA's default memory pool, and ``graphs`` the change of the
    memory reserved for CUDA graphs; None if unknown. The other arguments are attributes of the result.
    """
    ordered = tuple(sorted(libraries, key=lambda library: (-abs(library.change), -library.peak, library.library)))
    on_device = [library for library in ordered if library.memory in DEVICE_MEMORY]
    pooled = sum(library.change for library in on_device if library.pooled)
    idle = (0 if reserved is None else reserved - pooled) + (graphs or 0)
    rest = None if device.outside is None else device.outside - sum(library.change for library in on_device) - idle
    return OutsideMemory(device.name, ordered, tuple(pools), peak, idle, rest, seconds, grade)
