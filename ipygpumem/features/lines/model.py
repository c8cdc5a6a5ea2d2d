"""Memory usage of a device by line of source code."""

from __future__ import annotations

from dataclasses import dataclass

from ipygpumem.core.serialization import PlainData


@dataclass(frozen=True, slots=True)
class LineUsage:
    """Memory usage of all runs of one line, including the functions that it called, in requested bytes.

    Attributes:
        after: Memory in use on the device after the last run. None if the line neither allocated nor freed.
        peak: Highest memory usage of the device while the line ran. None if the line did not allocate.
        allocated: Bytes allocated, in ``allocations`` blocks.
        freed: Bytes freed, in ``frees`` blocks.
        kept: Allocated bytes that were still in use at the end of the measurement.
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
    """A line of source code with its number in the file. ``use`` is None if the line neither allocated nor freed."""

    number: int
    text: str
    use: LineUsage | None = None


@dataclass(frozen=True, slots=True)
class SourceListing:
    """The lines of a cell or function. ``title`` is, for example, ``"In [5]"`` or ``"train, In [3]"``."""

    title: str
    lines: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True)
class DeviceLines(PlainData):
    """The listings of one device, in bytes. At the end and at the peak, requested + rounding + pending = allocated.

    Attributes:
        before: Requested bytes in use at the start.
        elsewhere: Memory usage of other code, such as other threads and functions. None if there was none.
        end_requested: Requested bytes at the end, including blocks that wait for a stream.
        end_rounding: Bytes that the allocator added by rounding sizes up.
        end_pending: Negative size of freed blocks that wait for a stream, which the counter no longer includes.
        end_allocated: The allocator's counter of allocated bytes.
        peak_rounding: As ``end_rounding``. At the peak, all but requested are None if only an upper bound is known.
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
class AllocationSite:
    """A line of code that allocated ``amount`` requested bytes in ``blocks`` blocks.

    ``label`` is, for example, ``"In [3]:2 train(): y = f(x)"``, or the reason in parentheses if the line is unknown.
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

    Sizes are in bytes. ``lines``, ``rest`` (all other lines), ``rounding`` by the allocator and ``pending`` (negative
    size of freed blocks that waited for a stream) add up to ``allocated``, the allocator's counter.
    """

    device: str
    lines: tuple[AllocationSite, ...]
    rest: AllocationSite
    rounding: int
    pending: int
    allocated: int
