"""Readings of the memory counters of devices and of the host, their accuracy, and the breakdown of a device's memory.

Sizes are in bytes; unknown values are None, never 0. The lines of the breakdown add up to the memory in use::

    device used      = driver reserved + this process + other processes + unattributed
    this process     = PyTorch reserved + outside PyTorch
    PyTorch reserved = allocated + pending + cached
    outside PyTorch  = baseline (context, first kernels) + since the baseline

If NVML does not report the memory usage of this process, ``outside PyTorch`` also includes the memory of all other
processes, and the lines ``this process``, ``other processes`` and ``unattributed`` are unknown.
"""

from __future__ import annotations

from dataclasses import field
from functools import lru_cache
from typing import Literal, NamedTuple

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.serialization import Serializable
from ipygpumem.core.units import difference

Trust = Literal["exact", "derived", "bound", "sampled", "device", "unknown"]


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Accuracy of a reported value.

    Attributes:
        trust: ``exact``, ``derived`` (computed from other values, which may have been read at different times),
            ``bound`` (an upper bound), ``sampled`` (a lower bound), ``device`` (the value of the whole device, not only
            of this process), or ``unknown`` (the value is None).
        reason: Origin of an exact value, or the reason why the value is not exact.
    """

    trust: Trust
    reason: str = ""

    @property
    def qualifier(self) -> str:
        """Text to write before the value: ``"at most "`` or ``"at least "`` for a bound; otherwise empty."""
        return {"bound": "at most ", "sampled": "at least "}.get(self.trust, "")

    def __str__(self) -> str:
        return f"{self.trust} ({self.reason})" if self.reason else self.trust


@lru_cache(maxsize=256)
def make_accuracy(trust: Trust, reason: str = "") -> Accuracy:
    return Accuracy(trust, reason)


def exact_if_known(metric: int | None, source: str, problem: str) -> Accuracy:
    return make_accuracy("unknown", problem) if metric is None else make_accuracy("exact", source)


Mode = Literal["process", "device", "torch-only"]


class AllocatorCounters(NamedTuple):
    """Counters of PyTorch's allocator (`torch.cuda.memory_stats`), in bytes.

    Attributes:
        allocated: Total size of live blocks, including rounding by the allocator.
        reserved: Total size of segments allocated from CUDA.
        active: Total size of live blocks and of freed blocks that another stream may still use.
        requested: Total size of the blocks in ``active`` as requested by the program, without rounding.
    """

    allocated: int
    reserved: int
    active: int
    requested: int


@dataclass(frozen=True, slots=True)
class DeviceReading(Serializable):
    """Counters of one device at one instant. Sizes are in bytes, and unknown values are None.

    Attributes:
        name: Name of the device, such as ``cuda:0``.
        context: Whether this process has a CUDA context on the device.
        allocated, reserved, active, requested: Allocator counters (see `AllocatorCounters`).
        inactive_split: Total size of free blocks in segments that are partly in use.
        retries: Number of failed cudaMalloc calls that caused PyTorch to release its cache and try again.
        ooms: Number of out-of-memory errors.
        rejections: Number of allocations that PyTorch rejected because they would have exceeded its memory limit; None
            before PyTorch 2.12.
        used: Memory in use on the device, including memory reserved by the driver.
        process: Memory usage of this process according to NVML; 0 if it has no CUDA context on the device.
        others: Total memory usage of other processes according to NVML.
        mode: ``process`` if NVML reports the memory usage of this process, ``device`` if only the memory usage of the
            whole device is known, or ``torch-only`` if neither is known.
        why: Reason for the mode.
        source: Query that returned ``used`` and ``total``.
        busy: Whether this process had pending work on the current stream of the device.
        torch_why: Reason why PyTorch's counters are missing or come from another source.
        listed: Process ID and memory usage (None if unknown) of each other process in NVML's list.
        highest: Peak of ``process`` since the process started; None if unknown, for example because the driver's
            accounting mode is off.
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
        """Memory outside PyTorch; includes the memory of all other processes if only ``process`` is unknown."""
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
class HostReading(Serializable):
    """Counters of host memory, in bytes. Unknown values are None.

    Attributes:
        rss: Resident memory of this process.
        peak: Peak resident memory of this process (VmHWM on Linux).
        pinned: Pinned memory reserved by PyTorch's host allocator.
        total: Total memory of the machine.
        available: Memory that programs can allocate without swapping.
    """

    rss: int | None = None
    peak: int | None = None
    pinned: int | None = None
    total: int | None = None
    available: int | None = None


@dataclass(frozen=True, slots=True)
class Reading(Serializable):
    """Counters of all monitored devices and of the host. ``time`` is in seconds since the Unix epoch."""

    time: float
    devices: dict[str, DeviceReading]
    host: HostReading

    def only(self, names: tuple[str, ...]) -> Reading:
        """Return a copy of the reading that contains only the devices with the given names."""
        return Reading(self.time, {name: self.devices[name] for name in names if name in self.devices}, self.host)


PRELOAD_OFF = "preload is off"
"""Value of `Baseline.note` if nothing was preloaded because the ``preload`` setting is ``off``."""


@dataclass(frozen=True, slots=True)
class Baseline(Serializable):
    """Memory usage before the first cell, measured after CUDA was initialized and common kernels were run.

    Attributes:
        reading: Counters of all devices and of the host.
        device: Name of the device on which CUDA was initialized; None if CUDA was not initialized.
        label: Product name of the device.
        context: Size of the CUDA context in bytes; None if it is unknown or the context already existed.
        kernels: Memory outside PyTorch used by the first kernels and their libraries, in bytes; None if unknown.
        workspace: Size of the cuBLAS workspace in PyTorch's allocator, in bytes; None if unknown.
        note: Reason why the preload is incomplete; empty if it is complete.
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
        """Memory outside PyTorch in bytes, on the device on which CUDA was initialized; None if unknown."""
        device = self.reading.devices.get(self.device or "")
        return None if device is None else device.outside


@dataclass(frozen=True, slots=True)
class BreakdownLine:
    """A line of a breakdown: label, size in bytes or None, level (0 for a total, 1 for its parts, ...) and accuracy."""

    label: str
    nbytes: int | None
    level: int
    grade: Accuracy


def breakdown(reading: DeviceReading, baseline: Baseline | None = None) -> list[BreakdownLine]:
    torch_accuracy = make_accuracy("exact", reading.torch_why or "allocator counter")
    device_accuracy = make_accuracy("exact", reading.source or "CUDA's device properties")
    process_accuracy = make_accuracy("exact", reading.why)
    outside_accuracy = process_accuracy
    if reading.process is None:
        outside_accuracy = make_accuracy("device", f"may include the memory of other processes: {reading.why}")
    torch_problem = reading.torch_why or reading.why
    outside_problem = torch_problem if reading.reserved is None else reading.why
    driver_problem = "the driver does not report its reserved memory"
    lines = [
        ("device total", reading.total, 0, device_accuracy, reading.why),
        ("free", reading.free, 0, device_accuracy, reading.why),
        ("used", reading.used, 0, device_accuracy, reading.why),
        ("driver reserved", reading.driver_reserved, 1, device_accuracy, driver_problem),
        ("this process", reading.process, 1, process_accuracy, reading.why),
        ("PyTorch reserved", reading.reserved, 2, torch_accuracy, torch_problem),
        ("allocated (tensors)", reading.allocated, 3, torch_accuracy, torch_problem),
        ("pending (freed, waiting for another stream)", reading.pending, 3, torch_accuracy, torch_problem),
        ("cached", reading.cached, 3, torch_accuracy, torch_problem),
        ("outside PyTorch", reading.outside, 2, outside_accuracy, outside_problem),
        *((*line, outside_accuracy, "") for line in _outside_parts(reading, baseline)),
        ("other processes", reading.others, 1, process_accuracy, reading.why),
        ("unattributed", reading.unattributed, 1, process_accuracy, reading.why),
    ]
    return [
        BreakdownLine(label, nbytes, level, accuracy if nbytes is not None else make_accuracy("unknown", problem))
        for label, nbytes, level, accuracy, problem in lines
    ]


def _outside_parts(reading: DeviceReading, baseline: Baseline | None) -> list[tuple[str, int, int]]:
    before = None if baseline is None else baseline.reading.devices.get(reading.name)
    if baseline is None or before is None or (before.process is None) != (reading.process is None):
        return []  # one of the values includes other processes
    at_baseline, now = before.outside, reading.outside
    if at_baseline is None or now is None or (reading.process is None and before.source != reading.source):
        return []
    parts = []
    if baseline.device == reading.name:
        parts = [("CUDA context", baseline.context), ("first kernels", baseline.kernels)]
    lines = [(label, nbytes, 3) for label, nbytes in parts if nbytes is not None]
    remainder = at_baseline - sum(nbytes for _, nbytes, _ in lines)
    if remainder or not lines:
        lines.append(("other memory at the baseline" if lines else "at the baseline", remainder, 3))
    return [*lines, ("since the baseline", now - at_baseline, 3)]
