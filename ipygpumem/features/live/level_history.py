"""What has been followed: levels of the last hour, and the cells that ran meanwhile, as plain data for a page."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.core.report import Report
    from ipygpumem.features.live.model import DeviceLevels, Levels

__all__ = ["LevelHistory", "point"]

_PARTS = ("allocated", "cached", "outside", "others", "used", "capacity")
_KEPT_CELLS = 1_000


class LevelHistory:
    """The levels that were read, ``every`` so many seconds; kept for ``seconds``."""

    def __init__(self, every: float, seconds: float = 3600) -> None:
        self.every = every
        self.seconds = seconds
        self._levels: deque[Levels] = deque(maxlen=max(int(seconds / every), 1))

    def add(self, levels: Levels) -> None:
        """Take in the newest."""
        self._levels.append(levels)

    def data(self, reports: Sequence[Report], running: tuple[int | None, float] | None) -> dict[str, Any]:
        """Everything, one list of numbers for each figure; bytes, seconds since 1970, None where unknown."""
        levels = list(self._levels)
        names = dict.fromkeys(device.name for one in levels for device in one.devices)
        rows = [{device.name: device for device in one.devices} for one in levels]
        since = levels[0].time if levels else float("inf")
        return {
            "every": self.every,
            "time": [round(one.time, 3) for one in levels],
            "devices": {name: _columns([row.get(name) for row in rows]) for name in names},
            "rss": [one.rss for one in levels],
            "total": levels[-1].total if levels else None,
            "cells": _cells(reports, since),
            "running": _running(running),
        }


def _columns(levels: list[DeviceLevels | None]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = {
        part: [None if one is None else getattr(one, part) for one in levels] for part in _PARTS
    }
    columns["own"] = [one is None or one.own for one in levels]
    return columns


def point(
    levels: Levels, reports: Sequence[Report], since: float, running: tuple[int | None, float] | None
) -> dict[str, Any]:
    """One instant, with the cells that ended after ``since``."""
    return {
        "time": round(levels.time, 3),
        "devices": {
            one.name: {**{part: getattr(one, part) for part in _PARTS}, "own": one.own} for one in levels.devices
        },
        "rss": levels.rss,
        "total": levels.total,
        "cells": _cells(reports, since),
        "running": _running(running),
    }


def _cells(reports: Sequence[Report], since: float) -> list[list[Any]]:
    """Number, begin, end and success of the cells that ended after a time, the oldest first."""
    found: list[list[Any]] = []
    for place in range(1, min(len(reports), _KEPT_CELLS) + 1):
        report = reports[-place]
        end = report.time + report.seconds
        if end < since:
            break
        if report.cell is not None:
            found.append([report.cell, round(report.time, 3), round(end, 3), report.success is not False])
    return found[::-1]


def _running(cell: tuple[int | None, float] | None) -> list[Any] | None:
    return None if cell is None else [cell[0], round(cell[1], 3)]
