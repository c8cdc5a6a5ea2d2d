"""Source code with what each of its lines did to a device's memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

__all__ = ["CodeLine", "DeviceLines", "LineUse", "PeakLines", "SourceLine", "SourceListing"]


@dataclass(frozen=True, slots=True)
class LineUse:
    """What one line did, all its runs together, and whatever it called: requested bytes.

    Attributes:
        after: Level of the device after its last run; None for a line that neither allocated nor freed.
        peak: Highest level of the device while it ran; None for a line that did not allocate.
        allocated: Bytes that it allocated, in ``allocations`` blocks.
        freed: Bytes that it freed, in ``frees`` blocks.
        kept: Of the allocated bytes those that were still there at the end.
    """

    after: int | None = None
    peak: int | None = None
    allocated: int = 0
    allocations: int = 0
    freed: int = 0
    frees: int = 0
    kept: int = 0


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of source: its number in its file, its text, and what it did (None: nothing)."""

    number: int
    text: str
    use: LineUse | None = None


@dataclass(frozen=True, slots=True)
class SourceListing:
    """A cell, or a function, line by line. ``title``: ``"In [5]"``, ``"train, In [3]"``."""

    title: str
    lines: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True)
class DeviceLines:
    """All that was listed of one device, up to the allocator's counters. Bytes; the parts of each end add up.

    Attributes:
        device: Its name.
        before: Requested bytes at the start.
        elsewhere: What no line of the listings did: other threads, code that is not listed; None where that is nothing.
        end_requested: At the end: requested bytes, blocks that wait for a stream included.
        end_rounding: What the allocator added to them.
        end_pending: Of these, blocks that wait for a stream (0 or below: they are no longer allocated).
        end_allocated: The allocator's counter.
        peak_requested: The same four at the peak; None where that is only a bound.
        peak_rounding: As at the end.
        peak_pending: As at the end.
        peak_allocated: As at the end.
    """

    device: str
    listings: tuple[SourceListing, ...]
    before: int
    elsewhere: LineUse | None
    end_requested: int
    end_rounding: int
    end_pending: int
    end_allocated: int
    peak_requested: int
    peak_rounding: int | None
    peak_pending: int | None
    peak_allocated: int | None

    @property
    def busy(self) -> bool:
        """Whether anything happened on the device."""
        listed = any(line.use is not None for listing in self.listings for line in listing.lines)
        return listed or self.elsewhere is not None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


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
