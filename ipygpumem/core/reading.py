"""Every counter of every watched device at one instant. Bytes; what is not known is None, never 0."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter
from typing import Any, Literal

__all__ = ["Counters", "DeviceMemory", "DeviceReading", "HostReading", "Mode", "Reading", "shared"]

Mode = Literal["process", "device", "torch-only"]


@dataclass(frozen=True, slots=True)
class Counters:
    """One family of allocator counters: bytes that the allocator rounded up, but for ``requested``.

    ``allocated``: live blocks. ``reserved``: segments taken from CUDA. ``active``: live blocks and those that are
    freed but still wait for a stream. ``requested``: what the program asked for. Source: `torch.cuda.memory_stats`.
    """

    allocated: int
    reserved: int
    active: int
    requested: int


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A whole card, in bytes. ``used`` includes ``reserved``, the driver's own part (None where not told apart)."""

    total: int
    used: int
    reserved: int | None
    source: str


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """One device at one instant, in bytes.

    ``used`` is what the card has given away, the driver's own reserve included; ``process`` and ``others`` come from
    NVML's process list. ``mode`` says how the card could be attributed: ``process`` (our entry in that list is known
    and verified), ``device`` (only the whole card is known), ``torch-only`` (no NVML); ``why`` is the reason.
    ``listed`` has the other processes of that list, each with its number and bytes. ``highest`` is the most that
    ``process`` has ever been, where the administrator has switched the driver's accounting mode on.
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
    listed: tuple[tuple[int, int | None], ...] = field(default=(), compare=False)
    highest: int | None = None

    @property
    def pending(self) -> int | None:
        """Blocks that are freed but still wait for a stream."""
        if self.active is None or self.allocated is None:
            return None
        return self.active - self.allocated

    @property
    def cached(self) -> int | None:
        """What PyTorch keeps for its next tensors: reserved, neither allocated nor pending."""
        if self.reserved is None or self.active is None:
            return None
        return self.reserved - self.active

    @property
    def outside(self) -> int | None:
        """Memory outside PyTorch: of this process, or in mode ``device`` of everybody on the card."""
        if self.reserved is None:
            return None
        if self.process is not None:
            return self.process - self.reserved
        if self.mode == "device" and self.used is not None:
            return self.used - (self.driver_reserved or 0) - self.reserved
        return None

    @property
    def unattributed(self) -> int | None:
        """What the card has given away to nobody in NVML's list: page tables, managed memory, hidden processes."""
        if self.used is None or self.process is None or self.others is None:
            return None
        return self.used - (self.driver_reserved or 0) - self.process - self.others

    @property
    def capacity(self) -> int | None:
        """What programs can have of the card: the total without the driver's reserve."""
        return None if self.total is None else self.total - (self.driver_reserved or 0)

    @property
    def in_use(self) -> int | None:
        """What programs have of the capacity: used without the driver's reserve, as nvidia-smi shows it."""
        return None if self.used is None else self.used - (self.driver_reserved or 0)

    @property
    def free(self) -> int | None:
        """What programs can still have."""
        return None if self.total is None or self.used is None else self.total - self.used

    def to_dict(self) -> dict[str, Any]:
        """Every counter and every derived figure by name."""
        facts = asdict(self)
        del facts["listed"]  # a report tells who moved; numbers of everybody's processes are nobody else's business
        derived = ("pending", "cached", "outside", "unattributed", "capacity", "in_use", "free")
        return facts | {name: getattr(self, name) for name in derived}


@dataclass(frozen=True, slots=True)
class HostReading:
    """This process in main memory, in bytes.

    ``rss``: resident now. ``peak``: the kernel's high-water mark of it (VmHWM). ``pinned``: page-locked memory owned
    by PyTorch's host allocator. ``total`` and ``available``: the machine's.
    """

    rss: int | None = None
    peak: int | None = None
    pinned: int | None = None
    total: int | None = None
    available: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Every counter by name."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Reading:
    """Every counter of every watched device at one instant; ``time`` in seconds since 1970."""

    time: float
    devices: dict[str, DeviceReading]
    host: HostReading

    def only(self, names: tuple[str, ...]) -> Reading:
        """The same instant with these devices alone."""
        return Reading(self.time, {name: self.devices[name] for name in names if name in self.devices}, self.host)

    def to_dict(self) -> dict[str, Any]:
        """The reading as plain data."""
        return {
            "time": self.time,
            "devices": {name: device.to_dict() for name, device in self.devices.items()},
            "host": self.host.to_dict(),
        }


_all_fields = attrgetter(*(one.name for one in fields(DeviceReading)))


def shared(before: DeviceReading, after: DeviceReading) -> DeviceReading:
    """``after`` with the very int objects of ``before`` where they are equal: half the memory of a kept report."""
    pairs = zip(_all_fields(before), _all_fields(after), strict=True)
    return DeviceReading(*(old if old == new else new for old, new in pairs))
