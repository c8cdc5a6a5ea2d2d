"""What lies over the pixels of the still picture: cells, curves, what was sampled, out of memory, the peak."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.units import amount
from ipygpumem.snapshot.export.text import clip
from ipygpumem.snapshot.model.trace import Action
from ipygpumem.viewer.axes import Box

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.recorder_metadata import Cell
    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.snapshot import Snapshot
    from ipygpumem.viewer.axes import Paper
    from ipygpumem.viewer.detail import Columns

    Dashes = tuple[int, int] | None

__all__ = [
    "CAPACITY",
    "CELL_STRIP",
    "OOM",
    "RESERVED",
    "SAMPLED",
    "TOTAL",
    "Level",
    "cells",
    "curves",
    "highest",
    "levels",
    "peak",
]

TOTAL, RESERVED, CAPACITY, OOM, SAMPLED = "#1b1f24", "#c2410c", "#59636e", "#b91c1c", "#6b4aa0"
CELL_STRIP = 16
_INK, _SOFT = "#1b1f24", "#59636e"
_BANDS = ((219, 228, 238, 255), (233, 238, 244, 255))
_LABEL, _LETTER = 12, 6.0
_LARGEST = 1 << 62
_SEEN = 4
"""A card full of other people's memory must not flatten the picture: up to so many times the reserved bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """Bytes that were sampled beside the allocator.

    Attributes:
        name: What was counted.
        event: int64, the last event up to each sample; -1 before the first.
        bytes: int64, as many.
    """

    name: str
    event: NDArray[np.int64]
    bytes: NDArray[np.int64]

    @property
    def dashes(self) -> Dashes:
        """What is outside of PyTorch is a part of what the device has given away."""
        return (4, 3) if self.name.startswith("outside") else None


def levels(snapshot: Snapshot, timeline: Timeline) -> list[Level]:
    """The sampled curves of a device; a file may hold anything there, and what is no curve is left out."""
    found = []
    for name, curve in snapshot.own.curves.items() if timeline.trace.timed else ():
        known: dict[str, Any] = curve if isinstance(curve, dict) else {}
        time, held = _numbers(known.get("time_us")), _numbers(known.get("bytes"))
        if known.get("device") != timeline.device or not time or len(time) != len(held):
            continue
        event = np.searchsorted(timeline.trace.time, np.asarray(time, np.int64), side="right") - 1
        found.append(Level(clip(name), event, np.asarray(held, np.int64)))
    return found


def _numbers(values: Any) -> list[int]:
    """Whole numbers; empty where others are among them."""
    good = isinstance(values, list) and all(type(one) is int and abs(one) < _LARGEST for one in values)
    return values if good else []


def cells(paper: Paper, plot: Box, snapshot: Snapshot, timeline: Timeline, chosen: Columns) -> None:
    """Cells as bands over the plot: the events between their start and end."""
    time = timeline.trace.time
    band = np.zeros((paper.pixels_of(CELL_STRIP - 3), len(chosen), 4), np.uint8)
    labels: list[tuple[float, float, str]] = []
    for number, cell in enumerate(snapshot.own.cells):
        first, after = np.searchsorted(time, [cell.start_us, cell.end_us])
        if first == after:
            continue
        begin, end = chosen.span(int(first), int(after) - 1)
        band[:, begin:end] = _BANDS[number % 2]
        left, right = (plot.left + plot.width * edge / len(chosen) for edge in (begin, end))
        if labels and labels[-1][1] > left:
            labels.pop()  # this one lies on it
        labels.append((left, right, clip(_short(cell), _LABEL)))
    paper.image(Box(plot.left, plot.top - CELL_STRIP, plot.width, CELL_STRIP - 3), band)
    for left, right, label in labels:
        if right - left >= _LETTER * len(label) + 4:
            paper.text((left + right) / 2, plot.top - CELL_STRIP / 2 - 1, label, 10, _SOFT, across="center")


def _short(cell: Cell) -> str:
    """The label of a cell; of one without a number the file's name."""
    return cell.label if cell.number is not None else re.split(r"[/\\]", cell.label)[-1]


def curves(
    paper: Paper, timeline: Timeline, chosen: Columns, sampled: list[Level], *, total: int | None, top: float
) -> None:
    """Requested, reserved, sampled, capacity, and where memory ran out."""
    if total is not None and total <= top:
        paper.rule(total, CAPACITY, dashes=(3, 2))
    for level in sampled:
        column = np.searchsorted(chosen.first, level.event, side="right") - 1
        first = np.flatnonzero(np.diff(column, prepend=-2))
        most = np.maximum.reduceat(level.bytes, first)
        if most.min() <= top:
            paper.line(column[first] + 0.5, most, SAMPLED, 1.1, dashes=level.dashes)
    if chosen.reserved is not None:
        paper.steps(chosen.reserved, RESERVED, 1.4)
    paper.steps(chosen.requested, TOTAL, 0.7)
    failed = timeline.trace.events(Action.OOM).tolist()
    for place in sorted({chosen.of(event) for event in failed}):
        paper.upright(place + 0.5, OOM, 1.2, dashes=(3, 2))


def highest(sampled: list[Level], held: int) -> int:
    """The most bytes that the picture has to show, with those that were sampled."""
    tops = [int(level.bytes.max()) for level in sampled]
    return max([held, *(top for top in tops if top < _SEEN * held)])


def peak(paper: Paper, plot: Box, timeline: Timeline, chosen: Columns) -> None:
    """The instant of the most bytes, by name."""
    event, held = timeline.requested.peak()
    column = chosen.of(event) + 0.5
    paper.upright(column, _INK, 0.8, low=held, dashes=(1, 2))
    paper.dot(column, held, _INK)
    at = plot.left + plot.width * column / len(chosen)
    right = column < len(chosen) * 0.7
    words = f"peak {amount(held)}" + (f" at event {event:,}" if event >= 0 else "")
    x, across = (at + 6, "left") if right else (at - 6, "right")
    paper.text(x, plot.top + 12, words, 12, _INK, across=across, weight="bold", veil=True)
