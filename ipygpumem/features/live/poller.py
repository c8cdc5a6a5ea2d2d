"""Read memory levels from a thread, a few times a second, while code is running.

Reading PyTorch's counters holds the GIL and waits for the allocator's lock, so it happens rarely, and only while a
display is visible. NVML's list of processes has a lock that all processes share, so it is read only after memory
outside PyTorch has changed.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import IpyGpuMemError
from ipygpumem.features.live.model import DeviceLevels, Levels
from ipygpumem.measurement.reserved_bound import CounterReading
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import allocator, host, pytorch

if TYPE_CHECKING:
    from ipygpumem.core.reading import DeviceMemory
    from ipygpumem.sources.device import Device
    from ipygpumem.sources.device_monitor import DeviceMonitor

__all__ = ["Poller"]

_MIN_CHANGE = 2 << 20
_MIN_INTERVAL = 1.0
_ATTEMPTS = 2


class Poller:
    """Reads memory levels. Never raises, and makes no CUDA call except to check for a context."""

    def __init__(self, monitor: DeviceMonitor) -> None:
        self._monitor = monitor
        self._other_processes: dict[int, tuple[int, int, float]] = {}
        """By device: memory of other processes, the memory outside PyTorch and the time when that was read."""

    def levels(self) -> Levels:
        """The levels now."""
        torch = pytorch.started()
        levels = []
        for device in self._monitor.selected_devices() if torch is not None else ():
            try:
                if pytorch.has_context(torch, device.index):
                    levels.append(self._device_levels(device))
            except Exception:
                levels.append(DeviceLevels(device.name))
        reading = host.read_host(None, available=False)
        return Levels(time.time(), tuple(levels), reading.rss, reading.total)

    def _device_levels(self, device: Device) -> DeviceLevels:
        memory: DeviceMemory | None = None
        for _ in range(_ATTEMPTS):
            stats = self._stats(device.index)
            memory = _memory(device)
            stats_after = self._stats(device.index)
            if stats is None or stats_after is None or _segment_count(stats) == _segment_count(stats_after):
                break
        counters = None if stats is None else allocator.allocator_state(stats).now
        driver = 0 if memory is None else memory.reserved or 0
        outside = others = None
        if counters is not None and memory is not None:
            outside_pytorch = memory.used - driver - counters.reserved
            others = self._others(device, memory, outside_pytorch)
            outside = max(outside_pytorch - (others or 0), 0)
        return DeviceLevels(
            device.name,
            None if counters is None else counters.allocated,
            None if counters is None else counters.reserved - counters.allocated,
            outside,
            others,
            None if memory is None else memory.used - driver,
            device.total if memory is None else memory.total - driver,
            own=outside is None or others is not None,
        )

    def _stats(self, index: int) -> dict[str, Any] | None:
        """PyTorch's counters; None for an allocator without counters."""
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

    def _others(self, device: Device, memory: DeviceMemory, outside_pytorch: int) -> int | None:
        """Memory of other processes; None if processes cannot be told apart."""
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
                others = max(memory.used - (memory.reserved or 0) - own, 0)
                self._other_processes[device.index] = others, outside_pytorch, now
        return others


def _memory(device: Device) -> DeviceMemory | None:
    if device.nvml is None or device.handle is None:
        return None
    try:
        return device.nvml.memory(device.handle)
    except IpyGpuMemError:
        return None


def _segment_count(stats: dict[str, Any]) -> int:
    """Allocated plus freed segments: unchanged if PyTorch's reserved memory has not changed in between."""
    segment = stats["segment"]["all"]
    return int(segment["allocated"] + segment["freed"])
