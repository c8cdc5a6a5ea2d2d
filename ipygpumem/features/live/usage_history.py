"""The levels of the last hour, and the cells that ran in that time, as plain data for the monitor's page."""

from __future__ import annotations

from collections import deque
from itertools import takewhile
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.core.reading import DeviceReading, Reading
    from ipygpumem.core.report import Report

    _Running = tuple[int | None, float] | None
    """In number and start of the running cell."""

_FIGURES = {name: name for name in ("allocated", "cached", "outside", "others", "capacity")} | {"used": "in_use"}
"""The page's names of figures, with the attributes of `DeviceReading`."""
_MAX_CELLS = 1_000


class UsageHistory:
    """The levels of the last ``seconds``, with ``every`` seconds between readings."""

    def __init__(self, every: float, seconds: float = 3600) -> None:
        self.every = every
        self._levels: deque[Reading] = deque(maxlen=max(int(seconds / every), 1))

    def add(self, levels: Reading) -> None:
        """Add a reading."""
        self._levels.append(levels)

    def data(self, reports: Sequence[Report], running: _Running) -> dict[str, Any]:
        """One list per figure, in bytes and seconds since 1970; None means unknown."""
        history = list(self._levels)
        names = dict.fromkeys(name for levels in history for name in levels.devices)
        return {
            "every": self.every,
            "time": [round(levels.time, 3) for levels in history],
            "devices": {name: _columns([levels.devices.get(name) for levels in history]) for name in names},
            "rss": [levels.host.rss for levels in history],
            "total": history[-1].host.total if history else None,
            "cells": _cells(reports, history[0].time if history else float("inf")),
            "running": running,
        }


def level_update(levels: Reading, reports: Sequence[Report], since: float, running: _Running) -> dict[str, Any]:
    """One reading, with the cells that ended after ``since``."""
    return {
        "time": round(levels.time, 3),
        "devices": {name: _figures(device) for name, device in levels.devices.items()},
        "rss": levels.host.rss,
        "total": levels.host.total,
        "cells": _cells(reports, since),
        "running": running,
    }


def _columns(devices: Sequence[DeviceReading | None]) -> dict[str, list[Any]]:
    rows = [_figures(device) for device in devices]
    return {figure: [row[figure] for row in rows] for figure in rows[0]}


def _figures(device: DeviceReading | None) -> dict[str, Any]:
    """``own`` is whether memory outside PyTorch is known to belong to this process."""
    figures = {figure: getattr(device, attribute, None) for figure, attribute in _FIGURES.items()}
    return {**figures, "own": device is None or device.outside is None or device.process is not None}


def _cells(reports: Sequence[Report], since: float) -> list[list[Any]]:
    """In number, start, end and success of the cells that ended after a time, oldest first."""
    newest_first = takewhile(lambda report: report.time + report.seconds >= since, reversed(reports[-_MAX_CELLS:]))
    return [
        [report.cell, round(report.time, 3), round(report.time + report.seconds, 3), report.success is not False]
        for report in reversed(list(newest_first))
        if report.cell is not None
    ]
