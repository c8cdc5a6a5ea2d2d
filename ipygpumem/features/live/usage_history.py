"""Memory usage during the last hour, and the cells that ran in that time, as JSON data for the monitor's page."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

from ipygpumem.core.reading import DeviceReading, Reading
from ipygpumem.core.report import Report

_Running = tuple[int | None, float] | None
"""Execution count and start time of the running cell."""

_VALUES = {name: name for name in ("allocated", "cached", "outside", "others", "capacity")} | {"used": "in_use"}
"""Attribute names of `DeviceReading` by key in the JSON data."""
_MAX_CELLS = 1_000


class UsageHistory:
    """Readings taken at intervals of ``every`` seconds during the last ``seconds`` seconds."""

    def __init__(self, every: float, seconds: float = 3600) -> None:
        self.every = every
        self._readings: deque[Reading] = deque(maxlen=max(int(seconds / every), 1))

    def add(self, reading: Reading) -> None:
        """Add a reading and drop the oldest one if the history is full."""
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
    """Return a reading and the cells that ended after the Unix time ``since`` as JSON data."""
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
    """Return ``[execution count, start, end, success]`` for each cell that ended after ``since``, oldest first."""
    newest_first = takewhile(lambda report: report.time + report.seconds >= since, reversed(reports[-_MAX_CELLS:]))
    return [
        [report.cell, round(report.time, 3), round(report.time + report.seconds, 3), report.success is not False]
        for report in reversed(list(newest_first))
        if report.cell is not None
    ]
