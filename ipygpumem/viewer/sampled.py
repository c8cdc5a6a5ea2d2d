"""Curves that were sampled while a snapshot was recorded, such as the memory that the whole device uses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.snapshot.export.text import clip

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.snapshot import Snapshot
    from ipygpumem.viewer.detail import Columns

__all__ = ["SampledCurve", "highest", "sampled_curves"]

_INT_LIMIT = 1 << 62
_MAX_RATIO = 4
"""A sampled curve scales the picture up to this multiple of the reserved bytes: a device that is full because of other
processes must not flatten it."""


@dataclass(frozen=True, slots=True, eq=False)
class SampledCurve:
    """Bytes that were sampled beside the allocator's own counters.

    Attributes:
        name: What was counted.
        event: int64, last event before each sample; -1 before the first event.
        bytes: int64, the samples.
    """

    name: str
    event: NDArray[np.int64]
    bytes: NDArray[np.int64]

    @property
    def style(self) -> Any:
        """Matplotlib's line style: dashed for memory outside PyTorch, which is part of the device's total."""
        return (0, (4, 3)) if self.name.startswith("outside") else "solid"

    def by_column(self, chosen: Columns) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the center of each column with samples and the highest sample there."""
        column = np.searchsorted(chosen.first, self.event, side="right") - 1
        first = np.flatnonzero(np.diff(column, prepend=-2))
        centers = (chosen.edges[:-1] + chosen.edges[1:])[column[first]] / 2
        return centers, np.maximum.reduceat(self.bytes, first)


def sampled_curves(snapshot: Snapshot, timeline: Timeline) -> list[SampledCurve]:
    """Return the sampled curves of a device; malformed entries of the file are ignored."""
    curves = []
    for name, entry in snapshot.own.curves.items() if timeline.trace.timed else ():
        curve: dict[str, Any] = entry if isinstance(entry, dict) else {}
        time, samples = _integers(curve.get("time_us")), _integers(curve.get("bytes"))
        if curve.get("device") != timeline.device or not time or len(time) != len(samples):
            continue
        event = np.searchsorted(timeline.trace.time, np.asarray(time, np.int64), side="right") - 1
        curves.append(SampledCurve(clip(name), event, np.asarray(samples, np.int64)))
    return curves


def _integers(values: Any) -> list[int]:
    """Return a list of integers unchanged, and an empty list for anything else."""
    valid = isinstance(values, list) and all(type(value) is int and abs(value) < _INT_LIMIT for value in values)
    return values if valid else []


def highest(curves: list[SampledCurve], reserved: int) -> int:
    """Return the highest value that the picture has to show, given the most bytes reserved."""
    peaks = [int(curve.bytes.max()) for curve in curves]
    return max([reserved, *(peak for peak in peaks if peak < _MAX_RATIO * reserved)])
