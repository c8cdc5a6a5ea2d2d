"""Memory levels while code is running: fewer figures than a reading has, at a lower cost.

`LevelHistory` and `level_update` return plain data for the monitor's page.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.core.report import Report

    _Running = tuple[int | None, float] | None
    """In number and start of the running cell."""

__all__ = ["DeviceLevels", "LevelHistory", "Levels", "level_update"]

_FIGURES = ("allocated", "cached", "outside", "others", "used", "capacity", "own")
_MAX_CELLS = 1_000


@dataclass(frozen=True, slots=True)
class DeviceLevels:
    """One device at one instant. Sizes are in bytes; None means unknown.

    ``outside`` belongs to this process if ``own`` is True. Otherwise it includes other processes, and ``others`` is
    unknown. ``others`` is neither this process's nor the driver's. ``used`` and ``capacity`` exclude the memory that
    the driver reserves.
    """

    name: str
    allocated: int | None = None
    cached: int | None = None
    outside: int | None = None
    others: int | None = None
    used: int | None = None
    capacity: int | None = None
    own: bool = True

    @property
    def reserved(self) -> int | None:
        """Memory that PyTorch has reserved: tensors and cache."""
        return None if self.allocated is None or self.cached is None else self.allocated + self.cached


@dataclass(frozen=True, slots=True)
class Levels:
    """All devices in use at one instant, and the host: ``rss`` of this process, ``total`` of the machine.

    ``time`` is in seconds since 1970.
    """

    time: float
    devices: tuple[DeviceLevels, ...]
    rss: int | None
    total: int | None


class LevelHistory:
    """The levels of the last ``seconds``, with ``every`` seconds between readings."""

    def __init__(self, every: float, seconds: float = 3600) -> None:
        self.every = every
        self._levels: deque[Levels] = deque(maxlen=max(int(seconds / every), 1))

    def add(self, levels: Levels) -> None:
        """Add a reading."""
        self._levels.append(levels)

    def data(self, reports: Sequence[Report], running: _Running) -> dict[str, Any]:
        """One list per figure, in bytes and seconds since 1970; None means unknown."""
        history = list(self._levels)
        rows = [{device.name: device for device in levels.devices} for levels in history]
        names = dict.fromkeys(name for row in rows for name in row)
        columns = {name: [row.get(name, DeviceLevels(name)) for row in rows] for name in names}
        return {
            "every": self.every,
            "time": [round(levels.time, 3) for levels in history],
            "devices": {
                name: {figure: [getattr(level, figure) for level in column] for figure in _FIGURES}
                for name, column in columns.items()
            },
            "rss": [levels.rss for levels in history],
            "total": history[-1].total if history else None,
            "cells": _cells(reports, history[0].time if history else float("inf")),
            "running": running,
        }


def level_update(levels: Levels, reports: Sequence[Report], since: float, running: _Running) -> dict[str, Any]:
    """One reading, with the cells that ended after ``since``."""
    return {
        "time": round(levels.time, 3),
        "devices": {device.name: {name: getattr(device, name) for name in _FIGURES} for device in levels.devices},
        "rss": levels.rss,
        "total": levels.total,
        "cells": _cells(reports, since),
        "running": running,
    }


def _cells(reports: Sequence[Report], since: float) -> list[list[Any]]:
    """In number, start, end and success of the cells that ended after a time, oldest first."""
    cells: list[list[Any]] = []
    for index in range(1, min(len(reports), _MAX_CELLS) + 1):
        report = reports[-index]
        end = report.time + report.seconds
        if end < since:
            break
        if report.cell is not None:
            cells.append([report.cell, round(report.time, 3), round(end, 3), report.success is not False])
    return cells[::-1]
