"""Poller of memory usage for the display below a running cell and ``%gpumem monitor``, and the monitor itself.

Reading PyTorch's counters holds the GIL and waits for the allocator's lock, so the counters are read only while a
display is visible. NVML's process list is protected by a system-wide lock, so the list is read only after memory
outside PyTorch has changed. The monitor shows the readings of the last hour and the cells that ran in that time.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.files import import_library
from ipygpumem.core.introspection import attempt
from ipygpumem.core.reading import DeviceReading, Reading
from ipygpumem.core.report import Report
from ipygpumem.features.history.reports import session_reports
from ipygpumem.measurement.periodic_thread import PeriodicThread
from ipygpumem.measurement.reserved_bound import CounterReading
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import allocator, host, pytorch
from ipygpumem.sources.allocator import AllocatorStatistics
from ipygpumem.sources.device import Device, device_memory
from ipygpumem.sources.device_monitor import DeviceMonitor
from ipygpumem.viewer.display_target import shell_target

if TYPE_CHECKING:
    from ipygpumem.features.live.widget import MonitorWidget
    from ipygpumem.measurement.runtime import Runtime

_MIN_CHANGE = 2 << 20
_MIN_INTERVAL = 1.0  # shortest interval between updates in seconds
_ATTEMPTS = 2


class MemoryPoller:
    """Poller that neither raises exceptions nor creates a CUDA context."""

    def __init__(self, monitor: DeviceMonitor) -> None:
        self._monitor = monitor
        self._other_processes: dict[int, tuple[int, int, float]] = {}
        """The latest reading of NVML's process list as a tuple ``(others, outside, time)``, by device index."""

    def read(self) -> Reading:
        """Read fewer values than `DeviceMonitor.read`, in less time, and only for devices with a CUDA context."""
        torch = pytorch.initialized_torch()
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
        allocated = reserved = process = other_memory = None
        if memory is not None:
            used, driver, total = memory.used, memory.reserved, memory.total
        if state is not None:
            allocated, reserved = state.now.allocated, state.now.reserved
        if used is not None and reserved is not None:
            # the device's memory may have been read before the latest segment was allocated
            in_use = max(used - (driver or 0), reserved)
            used = in_use + (driver or 0)
            other_memory = self._others(device, in_use, in_use - reserved)
            process = None if other_memory is None else max(in_use - other_memory, reserved)
        return DeviceReading(
            device.name,
            context=True,
            allocated=allocated,
            reserved=reserved,
            active=allocated,  # pending blocks count as cache
            used=used,
            driver_reserved=driver,
            process=process,
            others=other_memory,
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
        reading = CounterReading(begin, end, reserved["current"], reserved["allocated"], reserved["freed"])
        for window in current().sampler.windows:
            window.add_counters(index, reading)
        return allocator.allocator_statistics(stats)

    def _others(self, device: Device, in_use: int, outside_pytorch: int) -> int | None:
        own_pid = device.own_pid
        if own_pid is None:  # the memory usage of this process is unknown
            return None
        other_memory, outside_before, read_at = self._other_processes.get(device.index, (None, 0, 0.0))
        now = time.monotonic()
        due = abs(outside_pytorch - outside_before) >= _MIN_CHANGE and now - read_at >= _MIN_INTERVAL
        if other_memory is None or due:
            own_memory = attempt(lambda: device.entries().get(own_pid))
            if own_memory is not None:
                other_memory = max(in_use - own_memory, 0)
                self._other_processes[device.index] = other_memory, outside_pytorch, now
        return other_memory


_EVERY = 1.0
_VIEW_TIMEOUT = 20.0
"""Seconds without a message after which the page is considered closed, unless the Jupyter kernel was busy."""


class MemoryMonitor:
    """The memory monitor of an IPython shell.

    Opening it again moves it to the current cell. The readings so far are kept unless the interval changes.
    """

    def __init__(self, shell: Any, runtime: Runtime, running: Callable[[], tuple[int | None, float] | None]) -> None:
        self._shell = shell
        self._runtime = runtime
        self._running_cell = running
        self._poller = MemoryPoller(runtime.monitor)
        self._history = UsageHistory(_EVERY)
        self._last_update = 0.0
        self._widget: MonitorWidget | None = None
        self._thread = PeriodicThread("ipygpumem-monitor", self._update)
        self._active = False
        self._opened = 0.0
        self._last_seen: dict[str, float] = {}
        self._pid = os.getpid()

    def open(self, every: float | None = None) -> None:
        """``every`` is the interval in seconds between readings; None keeps the current interval.

        Raises `OptionError` if widgets cannot be displayed.
        """
        target = shell_target(self._shell)
        if target.kind != "live":
            where = "an interactive notebook" if target.kind == "batch" else "a notebook"
            raise OptionError(f"the monitor requires {where}; use %gpumem to show the current memory usage")
        import_library("anywidget", "the monitor")
        from ipygpumem.features.live.widget import MonitorWidget

        self._remove_widget()
        if every is not None and every != self._history.every:
            self._history = UsageHistory(every)
        self._widget = MonitorWidget(self._data, self._on_view)
        bundle: Any = self._widget._repr_mimebundle_()
        self._start()
        target.publish(*bundle)

    def _data(self) -> dict[str, Any]:
        labels = {device.name: device.label for device in self._runtime.monitor.devices.values()}
        return {**self._history.data(session_reports(), self._running_cell()), "labels": labels}

    def _on_view(self, view: str, visible: bool) -> None:
        self._last_seen.pop(view, None)
        if visible:
            self._last_seen[view] = time.monotonic()
        if not self._last_seen:
            self._pause()
        elif not self._active:
            self._start()

    def _start(self) -> None:
        self._active = True
        self._thread.start(0, self._history.every)

    def _pause(self) -> None:
        self._active = False
        self._thread.pause()

    def _update(self) -> None:
        widget = self._widget
        if widget is None or widget.comm is None:
            self._pause()
            return
        running_cell, now = self._running_cell(), time.monotonic()
        if running_cell is not None:  # a busy Jupyter kernel does not receive messages from pages
            self._last_seen = dict.fromkeys(self._last_seen, now)
        self._last_seen = {view: last for view, last in self._last_seen.items() if now - last < _VIEW_TIMEOUT}
        if running_cell is None and not self._last_seen and now - self._opened > _VIEW_TIMEOUT:
            self._pause()
            return
        reading = self._poller.read()
        self._history.add(reading)
        since, self._last_update = self._last_update, reading.time
        update = usage_update(reading, session_reports(), since - 2 * self._history.every, running_cell)
        widget.send({"now": update})

    def _remove_widget(self) -> None:
        widget, self._widget = self._widget, None
        self._opened = time.monotonic()
        self._last_seen = {}
        if widget is not None:
            self._pause()
            widget.close()

    def close(self) -> None:
        if os.getpid() == self._pid:
            self._remove_widget()
            self._thread.close()


_Running = tuple[int | None, float] | None  # execution count and start time of the running cell

_VALUES = {name: name for name in ("allocated", "cached", "outside", "others", "capacity")} | {"used": "in_use"}
"""Attribute names of `DeviceReading` by key in the JSON data."""
_MAX_CELLS = 1_000


class UsageHistory:
    """The newest readings: as many as are taken in ``seconds`` seconds at intervals of ``every`` seconds."""

    def __init__(self, every: float, seconds: float = 3600) -> None:
        self.every = every
        self._readings: deque[Reading] = deque(maxlen=max(int(seconds / every), 1))

    def add(self, reading: Reading) -> None:
        self._readings.append(reading)

    def data(self, reports: Sequence[Report], running: _Running) -> dict[str, Any]:
        """Return all readings and the cells as JSON data. Sizes are in bytes, times in seconds since the Unix epoch."""
        history = list(self._readings)
        names = dict.fromkeys(name for reading in history for name in reading.devices)
        return {
            "every": self.every,
            "time": [round(reading.time, 3) for reading in history],
            "devices": {name: _columns([reading.devices.get(name) for reading in history]) for name in names},
            "rss": [reading.host.rss for reading in history],
            "total": history[-1].host.total if history else None,
            "cells": _cells(reports, history[0].time if history else float("inf")),
            "running": running,
        }


def usage_update(reading: Reading, reports: Sequence[Report], since: float, running: _Running) -> dict[str, Any]:
    """Return a reading and the cells that ended after ``since`` as JSON data, with the units of `UsageHistory.data`."""
    return {
        "time": round(reading.time, 3),
        "devices": {name: _values(device) for name, device in reading.devices.items()},
        "rss": reading.host.rss,
        "total": reading.host.total,
        "cells": _cells(reports, since),
        "running": running,
    }


def _columns(devices: Sequence[DeviceReading | None]) -> dict[str, list[Any]]:
    rows = [_values(device) for device in devices]
    return {name: [row[name] for row in rows] for name in rows[0]}


def _values(device: DeviceReading | None) -> dict[str, Any]:
    values = {name: getattr(device, attribute, None) for name, attribute in _VALUES.items()}
    # "own" is false if memory outside PyTorch may belong to other processes
    return {**values, "own": device is None or device.outside is None or device.process is not None}


def _cells(reports: Sequence[Report], since: float) -> list[list[Any]]:
    """Return ``[execution count, start, end, success]`` of the cells that ended after ``since``, oldest first.

    Only the newest `_MAX_CELLS` reports are considered.
    """
    newest = islice(reversed(reports), _MAX_CELLS)
    newest_first = takewhile(lambda report: report.time + report.seconds >= since, newest)
    return [
        [report.cell, round(report.time, 3), round(report.time + report.seconds, 3), report.success is not False]
        for report in reversed(list(newest_first))
        if report.cell is not None
    ]
