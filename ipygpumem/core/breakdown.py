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

from ipygpumem.core.grade import Grade, grade

if TYPE_CHECKING:
    from ipygpumem.core.baseline import Baseline
    from ipygpumem.core.reading import DeviceReading

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
    torch_grade = grade("exact", reading.torch_why or "allocator counter")
    card = grade("exact", reading.source or "CUDA's device properties")
    own = grade("exact", reading.why)
    outside = own if reading.process is not None else grade("device", f"this process or another: {reading.why}")
    silent = reading.torch_why or reading.why
    return [
        _line("device total", reading.total, 0, card, reading.why),
        _line("free", reading.free, 0, card, reading.why),
        _line("used", reading.used, 0, card, reading.why),
        _line("driver reserved", reading.driver_reserved, 1, card, "this driver does not tell it apart"),
        _line("this process", reading.process, 1, own, reading.why),
        _line("PyTorch reserved", reading.reserved, 2, torch_grade, silent),
        _line("allocated (tensors)", reading.allocated, 3, torch_grade, silent),
        _line("pending (freed, wait for a stream)", reading.pending, 3, torch_grade, silent),
        _line("cached", reading.cached, 3, torch_grade, silent),
        _line("outside PyTorch", reading.outside, 2, outside, silent),
        *_outside_lines(reading, baseline, outside),
        _line("other processes", reading.others, 1, own, reading.why),
        _line("unattributed", reading.unattributed, 1, own, reading.why),
    ]


def _line(label: str, amount: int | None, level: int, trust: Grade, silent: str) -> Line:
    return Line(label, amount, level, trust if amount is not None else grade("unknown", silent))


def _outside_lines(reading: DeviceReading, baseline: Baseline | None, trust: Grade) -> list[Line]:
    before = None if baseline is None else baseline.reading.devices.get(reading.name)
    if baseline is None or before is None or not _alike(before, reading):
        return []
    base, now = before.outside, reading.outside
    if base is None or now is None:
        return []
    parts = []
    if baseline.device == reading.name:
        parts = [("CUDA context", baseline.context), ("first kernels", baseline.kernels)]
    lines = [Line(label, amount, 3, trust) for label, amount in parts if amount is not None]
    rest = base - sum(line.amount or 0 for line in lines)
    if rest or not lines:
        lines.append(Line("rest at the baseline" if lines else "at the baseline", rest, 3, trust))
    return [*lines, Line("since the baseline", now - base, 3, trust)]


def _alike(before: DeviceReading, now: DeviceReading) -> bool:
    """Whether both tell of this process, or both of the whole card by the same source: else nothing is subtracted."""
    if before.process is None and now.process is None:
        return before.source == now.source
    return before.process is not None and now.process is not None
