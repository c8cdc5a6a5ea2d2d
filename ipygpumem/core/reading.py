"""Readings of the memory counters of devices and of the host. Sizes are in bytes; unknown values are None, never 0."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ipygpumem.core.serialization import PlainData
from ipygpumem.core.units import difference

Mode = Literal["process", "device", "torch-only"]


class Counters(NamedTuple):
    """Counters of PyTorch's allocator (`torch.cuda.memory_stats`), in bytes.

    Attributes:
        allocated: Total size of live blocks, including rounding by the allocator.
        reserved: Total size of segments allocated from CUDA.
        active: As ``allocated``, but including freed blocks that another stream may still use.
        requested: Total size of live blocks as requested by the program, without rounding.
    """

    allocated: int
    reserved: int
    active: int
    requested: int


class DeviceMemory(NamedTuple):
    """Memory of a whole device, in bytes.

    Attributes:
        used: Memory in use, including memory reserved by the driver.
        reserved: Memory reserved by the driver; None if unknown.
        source: The query that returned the values.
    """

    total: int
    used: int
    reserved: int | None
    source: str


@dataclass(frozen=True, slots=True)
class DeviceReading(PlainData):
    """Counters of one device at one instant. Sizes are in bytes.

    Attributes:
        name: Name of the device, such as ``cuda:0``.
        context: Whether this process has a CUDA context on the device.
        allocated, reserved, active, requested: Allocator counters (see `Counters`).
        inactive_split: Total size of free blocks in segments that are partly in use.
        retries: Number of failed cudaMalloc calls that caused PyTorch to release its cache and try again.
        ooms: Number of out-of-memory errors.
        rejections: Number of allocations that PyTorch rejected because they would have exceeded its memory limit; None
            before PyTorch 2.12.
        used: Memory in use on the device, including memory reserved by the driver.
        driver_reserved: Memory reserved by the driver.
        process: Memory usage of this process according to NVML.
        others: Total memory usage of other processes according to NVML.
        total: Total memory of the device.
        mode: ``process`` if the memory usage of this process is known and verified, ``device`` if only the memory usage
            of the whole device is known, or ``torch-only`` if neither is known.
        why: Reason for the mode.
        source: The query that returned ``used`` and ``total``.
        busy: Whether this process had pending work on the current stream of the device.
        torch_why: Reason why PyTorch's counters are missing or come from another source.
        listed: Process ID and memory usage of each other process in NVML's list.
        highest: Peak of ``process`` since the process started; None if the driver's accounting mode is off.
    """

    name: str
    context: bool
    allocated: int | None = None
    reserved: int | None = None
    active: int | None = None
    requested: int | None = None
    inactive_split: int | None = None
    retries: int | None = None
    ooms: int | None = None
    rejections: int | None = None
    used: int | None = None
    driver_reserved: int | None = None
    process: int | None = None
    others: int | None = None
    total: int | None = None
    mode: Mode = "torch-only"
    why: str = ""
    source: str | None = None
    busy: bool | None = None
    torch_why: str = ""
    # not written to files, which should not contain the process IDs of other users
    listed: tuple[tuple[int, int | None], ...] = field(default=(), compare=False, metadata={"key": None})
    highest: int | None = None

    written_properties = ("pending", "cached", "outside", "unattributed", "capacity", "in_use", "free")

    @property
    def pending(self) -> int | None:
        """Total size of freed blocks that another stream may still use."""
        return difference(self.allocated, self.active)

    @property
    def cached(self) -> int | None:
        """Reserved memory that is neither allocated nor pending."""
        return difference(self.active, self.reserved)

    @property
    def outside(self) -> int | None:
        """Memory outside PyTorch, used by this process or, in mode ``device``, by all processes on the device."""
        if self.process is None and self.mode == "device":
            return self.device_outside
        return difference(self.reserved, self.process)

    @property
    def device_outside(self) -> int | None:
        """Memory in use by any process, excluding this process's PyTorch memory and memory reserved by the driver."""
        return difference(self.reserved, self.in_use)

    @property
    def unattributed(self) -> int | None:
        """Memory in use that NVML does not attribute to a process, for example page tables and managed memory."""
        return difference(self.others, difference(self.process, self.in_use))

    @property
    def capacity(self) -> int | None:
        """Total memory of the device, excluding memory reserved by the driver."""
        return difference(self.driver_reserved or 0, self.total)

    @property
    def in_use(self) -> int | None:
        """Memory in use, excluding memory reserved by the driver, as shown by nvidia-smi."""
        return difference(self.driver_reserved or 0, self.used)

    @property
    def free(self) -> int | None:
        """Free memory of the device."""
        return difference(self.used, self.total)


@dataclass(frozen=True, slots=True)
class HostReading(PlainData):
    """Counters of host memory, in bytes.

    Attributes:
        rss: Resident memory of this process.
        peak: Peak resident memory of this process (VmHWM).
        pinned: Pinned memory reserved by PyTorch's host allocator.
    """

    rss: int | None = None
    peak: int | None = None
    pinned: int | None = None
    total: int | None = None
    available: int | None = None


@dataclass(frozen=True, slots=True)
class Reading(PlainData):
    """Counters of all monitored devices and of the host. ``time`` is in seconds since the Unix epoch."""

    time: float
    devices: dict[str, DeviceReading]
    host: HostReading

    def only(self, names: tuple[str, ...]) -> Reading:
        """Return a copy of the reading that contains only the devices with the given names."""
        return Reading(self.time, {name: self.devices[name] for name in names if name in self.devices}, self.host)
