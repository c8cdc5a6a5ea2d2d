"""All counters of all monitored devices at one instant. Sizes are in bytes; an unknown value is None, never 0."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from operator import attrgetter
from typing import Literal

from ipygpumem.core.to_dict import PlainData
from ipygpumem.core.units import difference

Mode = Literal["process", "device", "torch-only"]


@dataclass(frozen=True, slots=True)
class Counters:
    """Counters of PyTorch's allocator (`torch.cuda.memory_stats`), in bytes.

    Attributes:
        allocated: Live blocks, with the allocator's rounding.
        reserved: Segments allocated from CUDA.
        active: Live blocks, and freed blocks that wait for a stream, with the allocator's rounding.
        requested: Live blocks, as requested by the program.
    """

    allocated: int
    reserved: int
    active: int
    requested: int


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of a whole device, in bytes. ``source`` is the query that returned the values.

    ``used`` includes what the driver has ``reserved``, which is None if unknown.
    """

    total: int
    used: int
    reserved: int | None
    source: str


@dataclass(frozen=True, slots=True)
class DeviceReading(PlainData):
    """One device at one instant. Sizes are in bytes.

    Attributes:
        name: Name of the device, such as ``cuda:0``.
        context: Whether this process has a CUDA context on the device.
        allocated: See `Counters`; so are ``reserved``, ``active`` and ``requested``.
        inactive_split: Free parts of segments that are also in use.
        retries: Number of allocations for which PyTorch freed its cache first.
        ooms: Number of out-of-memory errors.
        used: Memory in use on the device, including the driver's.
        driver_reserved: Memory reserved by the driver.
        process: NVML's entry of this process.
        others: Sum of the entries of other processes.
        total: Total memory of the device.
        mode: What is known: ``process`` (our entry is known and verified), ``device`` (only figures of the whole
            device) or ``torch-only`` (no NVML).
        why: Reason for the mode.
        source: The query that returned ``used`` and ``total``.
        busy: Whether kernels of this process were running.
        torch_why: Why counters of PyTorch are missing or from another source.
        listed: Process id and bytes of each other process.
        highest: Highest value of ``process`` so far, if the driver's accounting mode is on.
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
    # not written to files: process ids of other users do not belong there
    listed: tuple[tuple[int, int | None], ...] = field(default=(), compare=False, metadata={"key": None})
    highest: int | None = None

    written_properties = ("pending", "cached", "outside", "unattributed", "capacity", "in_use", "free")

    @property
    def pending(self) -> int | None:
        """Freed blocks that wait for a stream."""
        return difference(self.allocated, self.active)

    @property
    def cached(self) -> int | None:
        """Memory that PyTorch reserves for later allocations: neither allocated nor pending."""
        return difference(self.active, self.reserved)

    @property
    def outside(self) -> int | None:
        """Memory outside PyTorch: of this process, or in mode ``device`` of all processes on the device."""
        if self.process is None and self.mode == "device":
            return self.device_outside
        return difference(self.reserved, self.process)

    @property
    def device_outside(self) -> int | None:
        """Memory in use on the device outside PyTorch and the driver, by any process."""
        return difference(self.reserved, self.in_use)

    @property
    def unattributed(self) -> int | None:
        """Memory in use that is in no process's entry: page tables, managed memory, hidden processes."""
        return difference(self.others, difference(self.process, self.in_use))

    @property
    def capacity(self) -> int | None:
        """Memory that programs can use: the total without the driver's."""
        return difference(self.driver_reserved or 0, self.total)

    @property
    def in_use(self) -> int | None:
        """Memory in use by programs, without the driver's, as nvidia-smi shows it."""
        return difference(self.driver_reserved or 0, self.used)

    @property
    def free(self) -> int | None:
        """Memory that is not in use."""
        return difference(self.used, self.total)


@dataclass(frozen=True, slots=True)
class HostReading(PlainData):
    """Main memory, in bytes.

    Attributes:
        rss: Resident memory of this process.
        peak: Peak resident memory of this process so far (VmHWM).
        pinned: Page-locked memory of PyTorch's host allocator.
        total: Total memory of the machine.
        available: Available memory of the machine.
    """

    rss: int | None = None
    peak: int | None = None
    pinned: int | None = None
    total: int | None = None
    available: int | None = None


@dataclass(frozen=True, slots=True)
class Reading(PlainData):
    """All counters of all monitored devices and of the host, at ``time`` in seconds since 1970."""

    time: float
    devices: dict[str, DeviceReading]
    host: HostReading

    def only(self, names: tuple[str, ...]) -> Reading:
        """Return the same reading with these devices only."""
        return Reading(self.time, {name: self.devices[name] for name in names if name in self.devices}, self.host)


_all_fields = attrgetter(*(attribute.name for attribute in fields(DeviceReading)))


def shared(before: DeviceReading, after: DeviceReading) -> DeviceReading:
    """Return ``after`` with the objects of ``before`` for equal values, which halves the memory of stored reports."""
    pairs = zip(_all_fields(before), _all_fields(after), strict=True)
    return DeviceReading(*(old if old == new else new for old, new in pairs))
