"""Data classes for failed allocations, and advice on avoiding them."""

from __future__ import annotations

from typing import Any

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.other_process import OtherProcess
from ipygpumem.core.reading import DeviceReading
from ipygpumem.core.units import size
from ipygpumem.features.holders.model import Holders

Frame = tuple[str, int, str]  # stack frame as file name, line number and function name
AVOIDED = ". To avoid this, "  # precedes the solution in a sentence about fragmentation
_NEGLIGIBLE = 64 << 20  # size in bytes below which growth of the memory outside PyTorch is not reported as a cause


@dataclass(frozen=True, slots=True)
class FreeBlockSummary:
    """Summary of the free blocks in PyTorch's segments on one device. Sizes are in bytes.

    Attributes:
        largest, count: Size of the largest free block, and number of free blocks.
        partly_used: Total size of free blocks in partly used segments. PyTorch cannot release them, except for whole
            pages of expandable segments.
        expandable: Whether there are expandable segments, which prevent most fragmentation.
    """

    largest: int
    count: int
    partly_used: int
    expandable: bool = False


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """A failed allocation, and the state of the device at that time. Sizes are in bytes.

    Attributes:
        requested: The requested size, as rounded by the allocator.
        limit: Maximum memory usage of PyTorch on the device. By default, this is the total memory of the device.
        free: Free memory of the device.
        thread: Name of the thread; empty for the main thread.
        frames: Python stack, innermost frame first. If the thread runs no Python code, the stack of the main thread.
        reading: Reading of the device after the failure; None if the device could not be read.
        free_blocks: Free blocks in PyTorch's segments; None if the allocator does not list them.
        other_processes: Other processes on the device, in descending order of memory usage.
        holders: Holders of the memory; None if they are unknown, or if this was not the first failure in the cell.
        saved: Message about the saved allocation history or about missing information; empty if there is none.
    """

    device: str
    requested: int
    limit: int
    free: int
    thread: str = ""
    frames: tuple[Frame, ...] = ()
    reading: DeviceReading | None = None
    free_blocks: FreeBlockSummary | None = None
    other_processes: tuple[OtherProcess, ...] = ()
    holders: Holders | None = None
    saved: str = ""

    @property
    def available(self) -> int:
        """Number of additional bytes that PyTorch could have reserved on the device."""
        reserved = None if self.reading is None else self.reading.reserved
        return self.free if reserved is None else min(self.free, max(self.limit - reserved, 0))

    @property
    def missing(self) -> int:
        """Number of bytes by which the requested size exceeds the available memory."""
        return max(self.requested - self.available, 0)


@dataclass(frozen=True, slots=True)
class OutOfMemoryReport:
    """Report on the allocations that failed in a cell.

    Attributes:
        failure: The last of the ``count`` failed allocations.
        line: Line of code that requested the memory; empty if it is unknown.
        caught: Whether the code caught the error.
        holders: Holders of the memory; None if the search for them failed.
        at_failure: Whether ``holders`` are those at the time of the first failure instead of the current ones.
        cells: Pairs (execution count, bytes) of the cells that added the most memory, in descending order of size.
        advice: Sentences about causes and solutions.
    """

    failure: FailedAllocation
    count: int
    line: str
    caught: bool
    holders: Holders | None
    at_failure: bool
    cells: list[tuple[int, int]]
    advice: list[str]


def free_blocks(segments: list[dict[str, Any]], index: int) -> FreeBlockSummary:
    """``segments`` is the allocator's list of segments."""
    segments = [segment for segment in segments if segment["device"] == index]
    sizes: list[int] = []
    partly_used = 0
    for segment in segments:
        free = [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
        sizes += free
        partly_used += sum(free) if len(free) < len(segment["blocks"]) else 0
    expandable = any(segment.get("is_expandable") for segment in segments)
    return FreeBlockSummary(max(sizes, default=0), len(sizes), partly_used, expandable)


def advice(
    failure: FailedAllocation, freeable: int = 0, freeable_out: int = 0, outside_at_baseline: int | None = None
) -> list[str]:
    """Return sentences about causes of a failure and solutions.

    ``freeable`` and ``freeable_out`` are the numbers of bytes that ``%gpumem free`` and ``%gpumem free --out`` would
    free. ``outside_at_baseline`` is the memory outside PyTorch at the baseline in bytes; None if it is unknown.
    """
    reading, blocks, processes = failure.reading, failure.free_blocks, failure.other_processes
    missing_bytes = max(failure.missing, 1)
    capacity = None if reading is None else reading.capacity
    if capacity is not None and failure.requested > capacity:
        request = f"the request of {size(failure.requested)} exceeds the total memory of the device ({size(capacity)})"
        return [f"{request}; to reduce it, use a smaller batch, a shorter sequence or a smaller data type"]
    sentences = []
    if freeable >= missing_bytes:
        sentences.append(f"%gpumem free would free {size(freeable)}, which is enough for this allocation")
    elif freeable_out >= missing_bytes:
        sentences.append(f"%gpumem free --out would free {size(freeable_out)}, which is enough for this allocation")
    fragmented = blocks is not None and blocks.largest < failure.requested <= blocks.partly_used + failure.available
    if blocks is not None and fragmented and not blocks.expandable:
        sentences.append(
            f"fragmentation: PyTorch had {size(blocks.partly_used)} of free memory, but in {blocks.count:,} blocks of"
            f" at most {size(blocks.largest)} each{AVOIDED}set the environment variable"
            " PYTORCH_ALLOC_CONF=expandable_segments:True before PyTorch is imported (up to PyTorch 2.8, the variable"
            " is called PYTORCH_CUDA_ALLOC_CONF)"
        )
    if failure.available < failure.requested <= failure.free:
        sentences.append(
            f"{size(failure.free)} was free on the device, but PyTorch is limited to {size(failure.limit)} by"
            " torch.cuda.set_per_process_memory_fraction"
        )
    # if only a limit of this process was reached, other processes are not the cause
    if (
        processes
        and failure.free < failure.requested
        and sum(process.amount or 0 for process in processes) >= missing_bytes
    ):
        largest = processes[0]
        name = f" ({largest.label})" if largest.label else ""
        amount = "memory" if largest.amount is None else size(largest.amount)
        sentences.append(f"another process uses {amount} on this device: pid {largest.pid}{name}")
    if reading is not None and reading.process is not None and outside_at_baseline is not None:
        growth = (reading.outside or 0) - outside_at_baseline
        if growth >= max(missing_bytes, _NEGLIGIBLE):
            sentences.append(f"this process's memory outside PyTorch has grown by {size(growth)} since the baseline")
    return sentences
