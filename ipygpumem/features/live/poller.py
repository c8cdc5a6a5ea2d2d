"""Read memory usage a few times per second, in a thread, while code is running.

Reading PyTorch's counters holds the GIL and waits for the allocator's lock, so they are read only while a display is
visible. NVML's process list is protected by a system-wide lock, so it is read only after memory outside PyTorch has
changed.
"""

from __future__ import annotations

import time

from ipygpumem.core.introspection import attempt
from ipygpumem.core.reading import DeviceReading, Reading
from ipygpumem.measurement.reserved_bound import CounterReading
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import allocator, host, pytorch
from ipygpumem.sources.allocator import AllocatorStatistics
from ipygpumem.sources.device import Device, device_memory
from ipygpumem.sources.device_monitor import DeviceMonitor

_MIN_CHANGE = 2 << 20
_MIN_INTERVAL = 1.0
_ATTEMPTS = 2


class Poller:
    """Reader of memory usage that never raises an exception. It checks for a CUDA context but does not create one."""

    def __init__(self, monitor: DeviceMonitor) -> None:
        self._monitor = monitor
        self._other_processes: dict[int, tuple[int, int, float]] = {}
        """The latest reading of NVML's process list as a tuple ``(others, outside, time)``, by device index."""

    def read(self) -> Reading:
        """Return the current memory usage. This is faster than `DeviceMonitor.read` but returns fewer values."""
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
            state = self._allocator_state(device.index)
            memory = None if device.nvml is None else device_memory(device.nvml, device.handle)
            state_after = self._allocator_state(device.index)
            if state is None or state_after is None or state.segments == state_after.segments:
                break
        used, driver, total = None, None, device.total
        allocated = reserved = process = others = None
        if memory is not None:
            used, driver, total = memory.used, memory.reserved, memory.total
        if state is not None:
            allocated, reserved = state.now.allocated, state.now.reserved
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

    def _allocator_state(self, index: int) -> AllocatorStatistics | None:
        begin = time.perf_counter()
        stats = attempt(lambda: allocator.stats(index))
        if stats is None:  # an allocator without counters
            return None
        end = time.perf_counter()
        reserved = stats["reserved_bytes"]["all"]
        for window in current().sampler.windows:
            window.add_counters(
                index, CounterReading(begin, end, reserved["current"], reserved["allocated"], reserved["freed"])
            )
        return allocator.allocator_statistics(stats)

    def _others(self, device: Device, in_use: int, outside_pytorch: int) -> int | None:
        own_pid = device.own_pid
        if own_pid is None:  # the memory usage of this process is unknown
            return None
        others, outside_before, read_at = self._other_processes.get(device.index, (None, 0, 0.0))
        now = time.monotonic()
        due = abs(outside_pytorch - outside_before) >= _MIN_CHANGE and now - read_at >= _MIN_INTERVAL
        if others is None or due:
            own = attempt(lambda: device.entries().get(own_pid))
            if own is not None:
                others = max(in_use - own, 0)
                self._other_processes[device.index] = others, outside_pytorch, now
        return others
