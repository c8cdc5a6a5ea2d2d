"""Memory outside PyTorch by library: who took how much in a measurement, and what is left without a name.

::

    outside PyTorch = libraries (device memory, arrays, static variables) + pools' unused part + rest

The rest is what no allocation asked for: the CUDA context, kernel code, stacks, graphs; and what was mapped piece by
piece (cuMemCreate), of which the tested versions of CUPTI tell nothing. Pinned memory is the host's and managed memory
the whole card's: both stand apart.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.core.grade import Grade
    from ipygpumem.core.report import DeviceReport

__all__ = ["EARLIER", "LibraryMemory", "Memory", "OutsideMemory", "PoolMemory", "balance"]

Memory = Literal["device", "array", "static", "managed", "pinned"]
"""``device``: cudaMalloc and its kin; ``array``: textures and surfaces; ``static``: variables of kernels; ``managed``:
moves between card and host; ``pinned``: page-locked memory of the host."""

EARLIER = "allocated before it was watched"
"""In the place of a library: memory that was given back, of which nobody saw the allocation."""

_ON_THE_CARD = ("device", "array", "static")


@dataclass(frozen=True, slots=True)
class LibraryMemory:
    """One library's own allocations of one kind in a measurement, in bytes.

    Attributes:
        library: Its name, as people know it.
        file: The file that asked, without its folders; empty where nobody knows.
        memory: The kind.
        change: Allocated minus freed.
        peak: The highest that `change` has been meanwhile, from 0 on.
        allocated: All that was allocated.
        freed: All that was freed, also of what had been allocated before.
        allocations: How many.
        pooled: Whether it came from a memory pool of CUDA's (cudaMallocAsync): freed, it may stay in that pool.
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
    """What a pool of this process says of itself, in bytes. It is part of what the libraries hold, not beside it.

    Attributes:
        name: Whose pool.
        change: What it took from the card, minus what it gave back; None where it tells only what is in use.
        used: The change of what is in use.
        now: What it holds at the end, or has in use where it tells only that.
        peak: The highest of that over its level before; None unless it is this measurement's own for certain.
    """

    name: str
    change: int | None
    used: int | None
    now: int | None
    peak: int | None
    grade: Grade


@dataclass(frozen=True, slots=True)
class OutsideMemory:
    """One device's memory outside PyTorch in a measurement, in bytes.

    Attributes:
        device: The device.
        libraries: Who allocated, the largest first.
        pools: What pools of this process say of themselves.
        peak: The highest sum of the libraries' device memory over its level before; None without records.
        idle: What CUDA's default pool and its graph memory hold beyond what is allocated from them.
        rest: The change of memory outside PyTorch that belongs to no library; None where either is unknown.
        seconds: How long nothing was recorded, because torch.profiler had CUPTI to itself.
        grade: The trust in the libraries' figures.
    """

    device: str
    libraries: tuple[LibraryMemory, ...]
    pools: tuple[PoolMemory, ...]
    peak: int | None
    idle: int
    rest: int | None
    seconds: float
    grade: Grade

    @property
    def named(self) -> int:
        """The change of device memory that has a library's name."""
        return sum(one.change for one in self.libraries if one.memory in _ON_THE_CARD)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "named": self.named}


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
    """One device's libraries and pools with what is left of the change that NVML saw.

    Args:
        device: The settled report of the device.
        libraries: Its allocations.
        pools: Its pools.
        peak: Of the records, all libraries together.
        reserved: The change of what CUDA's default memory pool holds; None where nobody can tell.
        graphs: The change of what CUDA reserves for the memory of graphs.
        seconds: How long nothing was recorded.
        grade: The trust in the records.
    """
    ordered = tuple(sorted(libraries, key=lambda one: (-abs(one.change), -one.peak, one.library)))
    pooled = sum(one.change for one in ordered if one.pooled and one.memory in _ON_THE_CARD)
    idle = (0 if reserved is None else reserved - pooled) + (graphs or 0)
    named = sum(one.change for one in ordered if one.memory in _ON_THE_CARD)
    rest = None if device.outside is None else device.outside - named - idle
    return OutsideMemory(device.name, ordered, tuple(pools), peak, idle, rest, seconds, grade)
