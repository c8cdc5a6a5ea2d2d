"""The books of one device: the lines that add up to what the card has given away.

::

    device used      = driver reserved + this process + other processes + unattributed
    this process     = PyTorch reserved + outside PyTorch
    PyTorch reserved = allocated + pending + cached
    outside PyTorch  = baseline (context, first kernels) + since the baseline

In mode ``device`` nobody can tell processes apart: then ``outside PyTorch`` is everybody's, and the lines of other
processes and of the unattributed are unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipygpumem.ledger.grade import Grade, grade

if TYPE_CHECKING:
    from ipygpumem.ledger.baseline import Baseline
    from ipygpumem.ledger.reading import DeviceReading

__all__ = ["Line", "books", "imbalance"]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the books: ``level`` 0 is a total, 1 its parts, 2 the parts' parts. ``amount`` in bytes."""

    label: str
    amount: int | None
    level: int
    grade: Grade


def imbalance(reading: DeviceReading) -> int | None:
    """Used minus the sum of its parts: 0, or None where a part is unknown. The identity that every reading keeps."""
    if reading.used is None or reading.reserved is None or reading.outside is None:
        return None
    if reading.process is not None and reading.others is None:
        return None
    parts = (
        reading.driver_reserved,
        reading.allocated,
        reading.pending,
        reading.cached,
        reading.outside,
        reading.others,
        reading.unattributed,
    )
    return reading.used - sum(part or 0 for part in parts)


def books(reading: DeviceReading, baseline: Baseline | None = None) -> list[Line]:
    """Every line of the identity for one device, from the card's total down."""
    known = reading.process is not None
    torch_grade = grade("unknown" if reading.reserved is None else "exact", reading.torch_why or "allocator counter")
    card = grade("unknown" if reading.used is None else "exact", reading.source or reading.why)
    by_process = grade("exact" if known else "unknown", reading.why)
    outside = grade("exact", reading.why) if known else grade("device", f"this process or another: {reading.why}")
    if reading.outside is None:
        outside = grade("unknown", reading.torch_why or reading.why)
    driver = card if reading.driver_reserved is not None else grade("unknown", "this driver does not tell it apart")
    lines = [
        Line("device total", reading.total, 0, card),
        Line("free", reading.free, 0, card),
        Line("used", reading.used, 0, card),
        Line("driver reserved", reading.driver_reserved, 1, driver),
        Line("this process", reading.process, 1, by_process),
        Line("PyTorch reserved", reading.reserved, 2, torch_grade),
        Line("allocated (tensors)", reading.allocated, 3, torch_grade),
        Line("pending (freed, wait for a stream)", reading.pending, 3, torch_grade),
        Line("cached", reading.cached, 3, torch_grade),
        Line("outside PyTorch", reading.outside, 2, outside),
    ]
    lines += _outside_lines(reading, baseline, outside)
    lines += [
        Line("other processes", reading.others, 1, by_process),
        Line("unattributed", reading.unattributed, 1, by_process),
    ]
    return lines


def _outside_lines(reading: DeviceReading, baseline: Baseline | None, trust: Grade) -> list[Line]:
    if baseline is None or reading.outside is None:
        return []
    lines = []
    base = None
    if baseline.device == reading.name:
        base = baseline.outside
        if baseline.context is not None:
            lines.append(Line("CUDA context", baseline.context, 3, trust))
        if baseline.kernels is not None:
            lines.append(Line("first kernels", baseline.kernels, 3, trust))
    elif reading.name in baseline.reading.devices:
        base = baseline.reading.devices[reading.name].outside
    if base is None:
        return lines
    if not lines:
        lines.append(Line("at the baseline", base, 3, trust))
    lines.append(Line("since the baseline", reading.outside - base, 3, trust))
    return lines
