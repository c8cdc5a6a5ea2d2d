"""What lines of source code did to the memory of a device."""

from __future__ import annotations

from dataclasses import dataclass

from ipygpumem.core.to_dict import PlainData


@dataclass(frozen=True, slots=True)
class LineUsage:
    """What all runs of one line did, including the functions that it called. Requested bytes.

    Attributes:
        after: Memory in use on the device after the last run; None if the line neither allocated nor freed.
        peak: Highest memory in use on the device while the line ran; None if it did not allocate.
        allocated: Bytes allocated, in ``allocations`` blocks.
        freed: Bytes freed, in ``frees`` blocks.
        kept: Allocated bytes that were still in use at the end.
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
    """A line of source code: its number in the file, its text and, if it used memory, how."""

    number: int
    text: str
    use: LineUsage | None = None


@dataclass(frozen=True, slots=True)
class SourceListing:
    """A cell or a function, line by line. ``title`` is, for example, ``"In [5]"`` or ``"train, In [3]"``."""

    title: str
    lines: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True)
class DeviceLines(PlainData):
    """The listings of one device. In bytes; requested + rounding + pending = allocated, at the end and at the peak.

    Attributes:
        before: Requested bytes at the start.
        elsewhere: Memory use outside the listed lines (other threads, other functions); None if there was none.
        end_requested: Requested bytes, including blocks that wait for a stream.
        end_rounding: Bytes that the allocator added by rounding up.
        end_pending: Minus the bytes of freed blocks that wait for a stream: the counter no longer includes them.
        end_allocated: The allocator's counter.
        peak_rounding: As at the end; this, pending and allocated are None if only an upper bound is known.
    """

    device: str
    listings: tuple[SourceListing, ...]
    before: int
    elsewhere: LineUsage | None
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
        """Whether anything was allocated or freed on the device."""
        listed = any(line.use is not None for listing in self.listings for line in listing.lines)
        return listed or self.elsewhere is not None


@dataclass(frozen=True, slots=True)
class CodeLine:
    """A line of code and the memory that it allocated: ``amount`` in requested bytes, in ``blocks`` blocks.

    ``label``: ``"In [3]:2 train(): y = f(x)"``, or in parentheses the reason why the line is unknown.
    """

    label: str
    amount: int
    blocks: int

    @property
    def known(self) -> bool:
        """Whether the label names a line."""
        return not self.label.startswith("(")


@dataclass(frozen=True, slots=True)
class PeakLines:
    """The lines of code that allocated the memory in use at the peak of a device, the largest first.

    In bytes: the sum of ``lines``, ``rest`` (all other lines), ``rounding`` by the allocator and ``pending`` (minus the
    bytes of freed blocks that waited for a stream) is ``allocated``, the allocator's counter.
    """

    device: str
    lines: tuple[CodeLine, ...]
    rest: CodeLine
    rounding: int
    pending: int
    allocated: int
