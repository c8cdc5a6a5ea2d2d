"""Data classes for the memory usage of a device by line of source code."""

from __future__ import annotations

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.serialization import Serializable


@dataclass(frozen=True, slots=True)
class LineUsage:
    """Memory usage of all executions of one line, including the functions that it called, in requested bytes.

    Attributes:
        after: Memory in use on the device after the line's last allocation or free; None if there is none.
        peak: Peak memory usage of the device while the line ran; None if the line did not allocate memory.
        allocated, allocations: Size and number of allocations.
        freed, frees: Size and number of frees.
        kept: The part of ``allocated`` that was still in use at the end of the measurement.
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
    """A line of source code.

    Attributes:
        use: Memory usage of the line; None if it neither allocated nor freed memory.
    """

    number: int
    text: str
    use: LineUsage | None = None


@dataclass(frozen=True, slots=True)
class SourceListing:
    """The source code of a cell or function.

    Attributes:
        title: Name of the code, such as ``"In [5]"`` or ``"train, In [3]"``.
    """

    title: str
    lines: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True)
class DeviceLines(Serializable):
    """Memory usage of one device by line of source code. Sizes are in bytes.

    Attributes:
        before: Requested bytes in use at the start.
        elsewhere: Memory usage of other code and threads; None if they neither allocated nor freed memory.
        end_requested: Requested bytes in use at the end, including freed blocks that are waiting for another stream.
        end_rounding: Memory added by rounding up allocation sizes.
        end_pending: Size of freed blocks that are waiting for another stream, as a negative number.
        end_allocated: The allocator's counter of allocated memory, which is the total of the other values at the end.
        peak_requested: As ``end_requested``, but at the peak.
        peak_rounding: As ``end_rounding``, but at the peak; None if only an upper bound of the peak is known.
        peak_pending: As ``end_pending``, but at the peak; None if only an upper bound of the peak is known.
        peak_allocated: As ``end_allocated``, but at the peak; None if only an upper bound of the peak is known.
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
    def uses_memory(self) -> bool:
        has_usage = any(line.use is not None for listing in self.listings for line in listing.lines)
        return has_usage or self.elsewhere is not None


@dataclass(frozen=True, slots=True)
class AllocationSite:
    """A line of code and the blocks of memory that it allocated.

    Attributes:
        label: The line, such as ``"In [3]:2 train(): y = f(x)"``; if it is unknown, the reason in parentheses.
        amount: Total requested size of the blocks in bytes.
        blocks: Number of blocks.
    """

    label: str
    amount: int
    blocks: int

    @property
    def known(self) -> bool:
        return not self.label.startswith("(")


@dataclass(frozen=True, slots=True)
class PeakLines:
    """The lines of code that allocated the memory in use at the peak of a device.

    Attributes:
        lines: The lines with the largest amounts, in descending order.
        rest: Total of all other lines.
        rounding: Memory added by rounding up allocation sizes, in bytes.
        pending: Size in bytes of freed blocks that were waiting for another stream, as a negative number.
        allocated: The allocator's counter of allocated memory in bytes, which is the total of the values above.
    """

    device: str
    lines: tuple[AllocationSite, ...]
    rest: AllocationSite
    rounding: int
    pending: int
    allocated: int
