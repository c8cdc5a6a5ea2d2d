"""Read memory usage in a thread, a few times per second, while code is running.

Reading PyTorch's counters holds the GIL and waits for the allocator's lock, so they are read rarely, and only while a
display is visible. NVML's list of processes is protected by a system-wide lock, so it is read only after memory outside
PyTorch has changed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import IpyGpuMemError
from ipygpumem.core.reading import DeviceReading, Reading
from ipygpumem.measurement.reserved_bound import CounterReading
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import allocator, host, pytorch
from ipygpumem.sources.device import device_memory

if TYPE_CHECKING:
    from ipygpumem.sources.device import Device
    from ipygpumem.sources.device_monitor import DeviceMonitor

_MIN_CHANGE = 2 << 20
_MIN_INTERVAL = 1.0
_ATTEMPTS = 2


class Poller:
    """Reader of memory usage that never raises an exception. Its only CUDA call checks for a context."""

    def __init__(self, monitor: DeviceMonitor) -> None:
        self._monitor = monitor
        self._other_processes: dict[int, tuple[int, int, float]] = {}
        """Memory of other processes, memory outside PyTorch, and the time of the reading, by device index."""

    def read(self) -> Reading:
        """Return the current memory usage, with fewer values than `DeviceMonitor.read` but at a lower cost."""
        torch = pytorch.started()
        devices = {}
        for device in self._monitor.selected_devices() if torch is not None else ():
            try:
                if pytorch.has_context(torch, device.index):
                    devices[device.name] = self._read_device(device)
            except Exception:
                devices[device.name] = DeviceReading(device.name, context=True)
        return Reading(time.time(), devices, host.read_host(None, available=False))

    def _read_device(self, device: Device) -> DeviceReading:
        for _ in range(_ATTEMPTS):
            stats = self._stats(device.index)
            memory = None if device.nvml is None else device_memory(device.nvml, device.handle)
            stats_after = self._stats(device.index)
            if stats is None or stats_after is None or _segment_count(stats) == _segment_count(stats_after):
                break
        used, driver, total = None, None, device.total
        allocated = reserved = process = others = None
        if memory is not None:
            used, driver, total = memory.used, memory.reserved, memory.total
        if stats is not None:
            counters = allocator.allocator_state(stats).now
            allocated, reserved = counters.allocated, counters.reserved
        if used is not None and reserved is not None:
            # the device's memory may have been read before the latest segment was allocated
            in_use = max(used - (driver or 0), reserved)
            used = in_use + (driver or 0)
            others = self._others(device, in_use, in_use - reserved)
            process = None if others is None else max(in_use - others, reserved)
        return DeviceReading(
            device.name,
            context=True,
            allocated=allocated,
            reserved=reserved,
            active=allocated,  # pending blocks count as cache
            used=used,
            driver_reserved=driver,
            process=process,
            others=others,
            total=total,
            mode="device" if process is None else "process",
        )

    def _stats(self, index: int) -> dict[str, Any] | None:
        """Return PyTorch's counters; None for an allocator without counters."""
        begin = time.perf_counter()
        try:
            stats = allocator.stats(index)
        except Exception:
            return None
        end = time.perf_counter()
        reserved = stats["reserved_bytes"]["all"]
        for window in current().sampler.windows:
            window.add_counters(
                index, CounterReading(begin, end, reserved["current"], reserved["allocated"], reserved["freed"])
            )
        return stats

    def _others(self, device: Device, in_use: int, outside_pytorch: int) -> int | None:
        """Return the memory used by other processes; None if the memory usage of this process is unknown."""
        if device.own_pid is None:
            return None
        others, outside_before, read_at = self._other_processes.get(device.index, (None, 0, 0.0))
        now = time.monotonic()
        due = abs(outside_pytorch - outside_before) >= _MIN_CHANGE and now - read_at >= _MIN_INTERVAL
        if others is None or due:
            try:
                own = device.entries().get(device.own_pid)
            except IpyGpuMemError:
                own = None
            if own is not None:
                others = max(in_use - own, 0)
                self._other_processes[device.index] = others, outside_pytorch, now
        return others


def _segment_count(stats: dict[str, Any]) -> int:
    """Count allocated and freed segments. The count changes whenever PyTorch's reserved memory changes."""
    segment = stats["segment"]["all"]
    return int(segment["allocated"] + segment["freed"])
