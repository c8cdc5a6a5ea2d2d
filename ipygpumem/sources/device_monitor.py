"""Monitor that reads the memory counters of all devices and of the host."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from ipygpumem.core.device_names import cuda_device
from ipygpumem.core.errors import DeviceError, NvmlError, first_line
from ipygpumem.core.other_process import OtherProcess
from ipygpumem.core.reading import DeviceReading, Reading
from ipygpumem.core.units import many
from ipygpumem.sources import allocator, host, pytorch
from ipygpumem.sources.device import Device
from ipygpumem.sources.host import ProcessInfoCache, own_pid
from ipygpumem.sources.nvml import Nvml

ReadAllocator: TypeAlias = Callable[[int], allocator.AllocatorStatistics]

_TRIES = 3
_LIFETIME = 0.05  # seconds


class DeviceMonitor:
    """Monitor of the CUDA devices that are visible to this process.

    Attributes:
        devices: Devices by index; empty until CUDA is initialized.
        selected: Names of the devices to read, such as ``cuda:0``; None for all devices.
    """

    def __init__(self, selected: Iterable[str] | None = None) -> None:
        self.selected = None if selected is None else tuple(selected)
        self.devices: dict[int, Device] = {}
        self.process_info_cache = ProcessInfoCache()
        self._recorded_lists: dict[str, object] = {}
        self._callbacks: list[Callable[[], None]] = []

    def call_when_started(self, callback: Callable[[], None]) -> None:
        """Call a function when `find_devices` finds the devices, or immediately if CUDA is already initialized."""
        if self.find_devices() is not None:
            callback()
        else:
            self._callbacks.append(callback)

    def cancel_when_started(self, callback: Callable[[], None]) -> None:
        if callback in self._callbacks:
            self._callbacks.remove(callback)

    def find_devices(self) -> Any | None:
        torch = pytorch.initialized_torch()
        if torch is not None and not self.devices:
            try:
                nvml, reason = Nvml(), ""
            except NvmlError as error:
                nvml, reason = None, str(error)
            for index in range(torch.cuda.device_count()):
                self.devices[index] = Device.find(torch, index, nvml, reason)
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()
        return torch

    def selected_devices(self) -> list[Device]:
        devices = list(self.devices.values())
        return devices if self.selected is None else [device for device in devices if device.name in self.selected]

    def parse_devices(self, names: Iterable[str]) -> tuple[str, ...]:
        """Convert names such as ``0`` and ``cuda`` to the form ``cuda:0``.

        Raises `DeviceError` if a name is invalid or a device does not exist.
        """
        return tuple(dict.fromkeys(_existing_device(str(name)) for name in names))

    def other_processes(self, reading: DeviceReading) -> tuple[OtherProcess, ...]:
        return self.identify(self.devices[int(reading.name.removeprefix("cuda:"))], reading.listed)

    def identify(self, device: Device, entries: Iterable[tuple[int, int | None]]) -> tuple[OtherProcess, ...]:
        """``entries`` contains (PID, memory usage) pairs. The result is in descending order of memory usage."""
        return self.process_info_cache.lookup_all(entries, trusted=self.has_local_pids(device))

    def has_local_pids(self, device: Device) -> bool:
        """Return whether NVML lists this process under its PID in this PID namespace.

        Other PIDs in NVML's process list then belong to the same namespace.
        """
        own_entries = {device.own_pid, *(monitored.own_pid for monitored in self.devices.values())} - {None}
        return own_entries == {own_pid()}

    def record_processes(self, readings: Mapping[str, DeviceReading]) -> None:
        """Look up new processes on the devices, so that their names are known after they have ended."""
        for device in self.devices.values():
            reading = readings.get(device.name)
            if reading is not None and not self.has_recorded_processes(reading):
                self.process_info_cache.record(reading.listed, trusted=self.has_local_pids(device))
                self._recorded_lists[device.name] = reading.listed

    def has_recorded_processes(self, reading: DeviceReading) -> bool:
        return not reading.listed or self._recorded_lists.get(reading.name) is reading.listed

    def read(
        self,
        *,
        available: bool = False,
        busy: bool = True,
        read_allocator: ReadAllocator = allocator.statistics,
        previous: Reading | None = None,
    ) -> Reading:
        """Read all counters. No exception is raised: a value that cannot be read is None, and the reading states why.

        If ``available`` is true, the result includes the available host memory; if ``busy`` is true, it states whether
        each device has pending work. ``read_allocator`` reads the allocator counters of a device with a context. If
        ``previous`` is a reading that is at most 50 ms old, its host values and the latest values of the driver are
        reused. The values of the driver are read again only for a device without a context, or if PyTorch has since
        allocated or freed a segment on the device.
        """
        now, torch = time.time(), self.find_devices()
        if previous is not None and not (previous.devices and 0 <= now - previous.time <= _LIFETIME):
            previous = None
        devices: dict[str, DeviceReading] = {}
        pinned = None
        if torch is not None:
            capturing = None if previous is not None else pytorch.is_capturing(torch)
            for device in self.selected_devices():
                devices[device.name] = _read(torch, device, read_allocator, capturing=capturing, busy=busy)
            if previous is None:
                pinned = allocator.pinned_memory(torch)
        if previous is None:
            return Reading(time.time(), devices, host.read_host(pinned, available=available))
        return Reading(now, devices, previous.host)


def _existing_device(text: str) -> str:
    name = cuda_device(text)
    torch = pytorch.module()
    count = torch.cuda.device_count() if torch is not None and pytorch.problem(load=False) is None else 0
    if torch is None and pytorch.importable():
        count = sys.maxsize  # unknown until torch is imported
    if int(name.removeprefix("cuda:")) >= count:
        names = f" (cuda:0 to cuda:{count - 1})" if count > 1 else ""
        raise DeviceError(f"there is no device {name}: this process sees {many(count, 'device')}{names}")
    return name


def _read(
    torch: Any, device: Device, read_allocator: ReadAllocator, *, capturing: bool | None, busy: bool
) -> DeviceReading:
    """If ``capturing`` is None, the driver's values are reused for a device with a context, unless segments changed."""
    try:
        driver = device.latest if capturing is None else None
        if driver is None or not driver.context:
            capturing = pytorch.is_capturing(torch) if capturing is None else capturing
            if not device.verified and not capturing and pytorch.has_context(torch, device.index):
                statistics, _ = _read_statistics(device, allocator.statistics)
                device.verify(torch, None if statistics is None else statistics.now.reserved)
            driver = device.read_driver(torch, capturing=capturing, busy=busy)
        read_first = read_allocator if driver.context else allocator.statistics
        statistics, reason = _read_statistics(device, read_first)
        # driver and allocator values match only if no segment changed in between; otherwise read again
        for _ in range(_TRIES):
            segments = None if statistics is None else statistics.segments
            if segments == device.segments:
                break
            device.segments = segments
            capturing = pytorch.is_capturing(torch) if capturing is None else capturing
            driver = device.read_driver(torch, capturing=capturing, busy=busy, reuse_list=False)
            statistics, reason = _read_statistics(device, allocator.statistics)
        return device.reading(driver, statistics, reason)
    except Exception as error:
        reason = first_line(error)
        return DeviceReading(name=device.name, context=True, total=device.total, why=reason, torch_why=reason)


def _read_statistics(device: Device, read_allocator: ReadAllocator) -> tuple[allocator.AllocatorStatistics | None, str]:
    try:
        return read_allocator(device.index), device.counter_source
    except Exception as error:
        return None, f"PyTorch's counters cannot be read: {first_line(error)}"
