"""CUDA devices and their NVML handles. Test allocations identify this process in NVML's process list."""

from __future__ import annotations

import functools
import math
import time
from dataclasses import field
from typing import Any, NamedTuple

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.errors import NvmlError, first_line
from ipygpumem.core.introspection import attempt
from ipygpumem.core.reading import DeviceReading, Mode
from ipygpumem.core.units import MIB
from ipygpumem.sources import cuda, pytorch
from ipygpumem.sources.allocator import AllocatorStatistics
from ipygpumem.sources.host import namespace_pids
from ipygpumem.sources.nvml import NOT_LISTED, DeviceMemory, Nvml, missing_entry_reason

_TEST_SIZES = (34 * MIB, 38 * MIB)
"""Sizes of test allocations: multiples of 2 MiB (CUDA's granularity) that programs are unlikely to allocate."""
_TOLERANCE = 2 * MIB
_REQUIRED_FREE = 256 * MIB
_LIST_LIFETIME = 0.5  # seconds
_ASYNC = "cudaMallocAsync: counters of CUDA's default memory pool, which other libraries may also use"


class DriverValues(NamedTuple):
    """Values of a `DeviceReading` that the driver returns. ``problem`` is the message of a failed query, or empty."""

    context: bool
    memory: DeviceMemory | None
    process: int | None
    others: int | None
    listed: tuple[tuple[int, int | None], ...]
    highest: int | None
    problem: str
    busy: bool | None


_new_values: Any = functools.partial(tuple.__new__, DriverValues)  # three times as fast as calling the class


@dataclass(slots=True)
class Device:
    """CUDA device visible to this process.

    Attributes:
        index, name: Index of the device, and its name, such as ``cuda:0``.
        label, total: Product name, and total memory in bytes; None if unknown.
        uuid: UUID of the device; None if PyTorch does not return it.
        threads: Number of threads that the device can run at the same time; None if unknown.
        nvml, handle: Interface to NVML, and NVML's handle of the device; None if NVML cannot query this device.
        own_pid: ID of this process in NVML's process list; None if unknown.
        mode, reason: How memory usage is attributed, and why (``mode`` and ``why`` of `DeviceReading`).
        graphics, accounting: Whether graphics processes use the device, and whether accounting mode is enabled.
        verified: Whether `verify` has been called.
        segments: Number of segment allocations and frees at the last reading.
        listed, others: ID and memory usage of each other process at the last reading, and their total usage in bytes.
        counter_source: Source of PyTorch's counters if it is not PyTorch's own allocator, otherwise empty.
        latest: Latest values of the driver, without ``busy``; None if they were not read or the last attempt failed.
    """

    index: int
    label: str
    uuid: str | None
    total: int | None
    threads: int | None = None
    nvml: Nvml | None = None
    handle: Any = None
    own_pid: int | None = None
    mode: Mode = "torch-only"
    reason: str = ""
    graphics: bool = False
    accounting: bool = False
    verified: bool = False
    segments: int | None = None
    listed: tuple[tuple[int, int | None], ...] = ()
    others: int = 0
    counter_source: str = ""
    latest: DriverValues | None = None
    name: str = field(init=False)
    _process: tuple[DeviceMemory | None, float, int | None] = (None, 0.0, None)  # with the memory and time of the list
    _newest: tuple[Any, ...] = ()
    _readings: dict[bool | None, tuple[tuple[Any, ...], tuple[Any, ...], DeviceReading]] = field(default_factory=dict)
    """Inputs, values and object of the newest reading for each value of ``busy`` (None if it was not checked)."""

    def __post_init__(self) -> None:
        self.name = f"cuda:{self.index}"

    @classmethod
    def find(cls, torch: Any, index: int, nvml: Nvml | None, reason: str) -> Device:
        """Return a device without creating a CUDA context. ``reason`` states why ``nvml`` is None."""
        properties = torch.cuda.get_device_properties(index)
        uuid = str(properties.uuid) if hasattr(properties, "uuid") else None
        names = ("multi_processor_count", "max_threads_per_multi_processor")
        threads = math.prod(getattr(properties, name, 0) for name in names) or None
        device = cls(index, str(properties.name), uuid, int(properties.total_memory), threads, reason=reason)
        if torch.cuda.get_allocator_backend() == "cudaMallocAsync":  # cannot change after CUDA is initialized
            device.counter_source = _ASYNC
        if nvml is None:
            return device
        try:
            handle, is_mig_parent = nvml.handle(uuid or "", _pci_bus_id(properties))
        except NvmlError as error:
            device.reason = str(error)
            return device
        if is_mig_parent:
            device.reason = "NVML cannot query this MIG instance, only the whole GPU, which other users may share"
            return device
        device.graphics, device.accounting = _has_graphics(nvml, handle), nvml.has_accounting(handle)
        device.nvml, device.handle = nvml, handle
        device.mode, device.reason = "device", "this process has no CUDA context yet"
        return device

    def verify(self, torch: Any, reserved: int | None) -> None:
        """Identify this process in NVML's process list by test allocations. Do not call this during graph capture."""
        self.verified = True
        if self.nvml is None:
            return
        try:
            self._verify(torch, self.nvml, reserved)
        except Exception as error:  # NVML or a kernel has failed, but other values can still be read
            self._set_mode("device", f"this process cannot be identified in NVML's process list: {first_line(error)}")

    def _set_mode(self, mode: Mode, reason: str, own_pid: int | None = None) -> None:
        self.mode, self.reason, self.own_pid = mode, reason, own_pid

    def _verify(self, torch: Any, nvml: Nvml, reserved: int | None) -> None:
        entries = nvml.processes(self.handle)
        # on machines with unified memory, NVML reports processes but no values for the whole device
        memory = device_memory(nvml, self.handle) or pytorch.device_memory(torch, self.index)
        if memory is not None and memory.total - memory.used < _REQUIRED_FREE:
            self._match_pid(entries, reserved, "too little free memory for a test allocation")
            return
        candidates = set(entries)
        device_changed = False
        with torch.cuda.device(self.index):
            for nbytes in _TEST_SIZES:
                result = self._test_allocation(nvml, nbytes)
                if result is None:
                    self._match_pid(entries, reserved, "the test allocation outside PyTorch failed")
                    return
                pids, changed = result
                candidates &= pids
                device_changed |= changed
                if len(candidates) == 1 and changed:
                    break
        if len(candidates) == 1:
            self._set_mode("process", "NVML entry verified by a test allocation", candidates.pop())
        elif not device_changed and not candidates:
            self.nvml = None
            self._set_mode("torch-only", "the test allocation did not change the memory usage reported by NVML")
        else:
            several = "the test allocation changed several entries in NVML's process list"
            self._set_mode("device", several if candidates else missing_entry_reason(entries))

    def _test_allocation(self, nvml: Nvml, nbytes: int) -> tuple[set[int], bool] | None:
        """Allocate and free ``nbytes``. Return a tuple ``(pids, device_changed)``; None if the allocation fails.

        ``pids`` contains the PID of each process whose memory usage increased by about ``nbytes`` at that time.
        ``device_changed`` is true if the memory usage of the whole device increased as well or, if it is unknown, if
        ``pids`` is not empty.
        """
        before, memory_before = nvml.processes(self.handle), _used(nvml, self.handle)
        with cuda.raw_allocation(nbytes) as allocated:
            if not allocated:
                return None
            during, memory_during = nvml.processes(self.handle), _used(nvml, self.handle)
        after, memory_after = nvml.processes(self.handle), _used(nvml, self.handle)
        pids = {
            pid
            for pid, now in during.items()
            if _is_test_allocation(before.get(pid) or 0, now, after.get(pid) or 0, nbytes)
        }
        if memory_before is None or memory_during is None or memory_after is None:
            return pids, bool(pids)  # no value for the whole device, so the entry is sufficient
        return pids, _is_test_allocation(memory_before, memory_during, memory_after, nbytes)

    def _match_pid(self, entries: dict[int, int | None], reserved: int | None, reason: str) -> None:
        for pid in namespace_pids():
            size = entries.get(pid)
            if size is not None and size >= max(reserved or 0, 1):
                self._set_mode("process", f"NVML entry found by process ID ({reason})", pid)
                return
        self._set_mode("device", f"{missing_entry_reason(entries)} ({reason})")

    def entries(self) -> dict[int, int | None]:
        """Return the memory usage in bytes (None on WSL2 and WDDM) by PID. Raises `NvmlError` if the query fails."""
        if self.nvml is None:
            raise NvmlError(self.reason or "NVML cannot query this device")
        return self.nvml.processes(self.handle, graphics=self.graphics)

    def read_driver(self, torch: Any, *, capturing: bool, busy: bool, reuse_list: bool = True) -> DriverValues:
        """Read the values of a `DeviceReading` from the driver. If ``busy`` is true, check for pending work.

        NVML's process list, which takes the most time, is reused for up to 0.5 seconds while the memory usage of the
        device does not change, unless ``reuse_list`` is false.
        """
        self.latest = None
        context = pytorch.has_context(torch, self.index)
        memory, process, others, highest, problem = None, None, None, None, ""
        listed: tuple[tuple[int, int | None], ...] = ()
        if self.nvml is not None:
            try:
                memory = self.nvml.memory(self.handle)
            except NvmlError as error:  # the process list may still work, for example with unified memory
                problem = str(error)
            if self.own_pid is not None:
                now = time.monotonic()
                unchanged, list_time, process = self._process
                if not reuse_list or memory is None or memory != unchanged or now > list_time + _LIST_LIFETIME:
                    try:
                        process = self._read_processes(self.nvml, self.own_pid)
                    except NvmlError as error:
                        process, problem = None, str(error)
                    self._process = None if process is None else memory, now, process
                if process is not None:
                    highest = self.nvml.highest(self.handle, self.own_pid) if self.accounting else None
                    others, listed = self.others, self.listed
        if context and not capturing and memory is None and process is None:
            memory = pytorch.device_memory(torch, self.index)
        pending = pytorch.is_busy(torch, self.index) if busy and context and not capturing else None
        values: DriverValues = _new_values((context, memory, process, others, listed, highest, problem, None))
        self.latest = values
        if pending is not None:
            values = _new_values((*values[:-1], pending))
        return values

    def _read_processes(self, nvml: Nvml, own_pid: int) -> int | None:
        """Return the memory usage of this process in bytes. If it is None (unknown), keep ``listed`` and ``others``."""
        entries = nvml.processes(self.handle, graphics=self.graphics)
        process = entries.pop(own_pid, None) or None  # missing and 0 both mean unknown
        listed = tuple(entries.items())
        if process is not None and listed != self.listed:  # otherwise keep the old object
            self.listed, self.others = listed, sum(filter(None, entries.values()))
        return process

    def reading(self, driver: DriverValues, counters: AllocatorStatistics | None, torch_why: str) -> DeviceReading:
        allocator: tuple[Any, ...] = (None,) * 5
        if counters is not None:
            allocator = (counters.now, *counters[2:6])  # inactive_split, retries, ooms and rejections
        inputs = (driver, allocator, torch_why, self.mode, self.reason)
        earlier = self._readings.get(driver.busy)
        if earlier is not None and earlier[0] == inputs:
            _, self._newest, reading = earlier
            return reading
        context, memory, process, others, listed, highest, problem, busy = driver
        mode, why = self.mode, problem or self.reason
        total, used, reserved, source = memory or (self.total, None, None, None)
        if counters is not None and process is not None and process < counters.now.reserved:
            # the entry is inconsistent or belongs to another process
            mode, process = "device", None
            why = "NVML reports less memory for this process than PyTorch has reserved"
        if mode == "process" and process is None:
            mode, why = "device", problem or NOT_LISTED
        if mode == "device" and used is None:
            mode = "torch-only"
        elif mode == "torch-only" and used is not None:
            mode = "device"
        if process is None:  # without a context, this process uses no memory
            process, others, listed, highest = None if context else 0, None, (), None
        now, *counts = allocator
        usage = (used, reserved, process, others, total, mode, why, source, busy, torch_why, listed, highest)
        values: tuple[Any, ...] = (self.name, context, *(now or (None,) * 4), *counts, *usage)
        if self._newest:
            values = tuple([old if old == new else new for old, new in zip(self._newest, values, strict=True)])
        self._newest = values
        reading = DeviceReading(*values)
        self._readings[busy] = inputs, values, reading
        return reading


def device_memory(nvml: Nvml, handle: Any) -> DeviceMemory | None:
    memory: DeviceMemory | None = attempt(lambda: nvml.memory(handle))
    return memory


def _used(nvml: Nvml, handle: Any) -> int | None:
    memory = device_memory(nvml, handle)
    return None if memory is None else memory.used


def _is_test_allocation(before: int, during: int | None, after: int, nbytes: int) -> bool:
    return during is not None and all(abs(during - usage - nbytes) <= _TOLERANCE for usage in (before, after))


def _pci_bus_id(properties: Any) -> str | None:
    if not hasattr(properties, "pci_bus_id"):
        return None
    return f"{properties.pci_domain_id:08X}:{properties.pci_bus_id:02X}:{properties.pci_device_id:02X}.0"


def _has_graphics(nvml: Nvml, handle: Any) -> bool:
    return bool(attempt(lambda: nvml.processes(handle, graphics=True).keys() != nvml.processes(handle).keys()))
