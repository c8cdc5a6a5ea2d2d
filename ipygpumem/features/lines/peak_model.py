"""The lines of code that held the memory of a device when it was at its peak."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["CodeLine", "PeakLines"]


@dataclass(frozen=True, slots=True)
class CodeLine:
    """One line's part of a peak: requested bytes, in so many blocks."""

    label: str
    amount: int
    blocks: int


@dataclass(frozen=True, slots=True)
class PeakLines:
    """A device's peak by line, the largest first. All in bytes; the parts add up to ``allocated``, the counter.

    ``rest``: the lines that are not named. ``rounding``: what the allocator added to the requests. ``pending``: blocks
    that were freed and waited for a stream, which the history counts and the counter does not (0 or below).
    """

    device: str
    lines: tuple[CodeLine, ...]
    rest: CodeLine
    rounding: int
    pending: int
    allocated: int
