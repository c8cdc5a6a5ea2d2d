"""Out of memory: what was asked for, what the card looked like at that moment, and what follows from the numbers."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from ipygpumem.core.units import size

if TYPE_CHECKING:
    from ipygpumem.core.other_process import OtherProcess
    from ipygpumem.core.reading import DeviceReading
    from ipygpumem.features.holders.model import Holders

__all__ = ["Failure", "Frame", "FreePieces", "OutOfMemory", "advice", "free_pieces"]

Frame = tuple[str, int, str]
"""File name, line, function."""


@dataclass(frozen=True, slots=True)
class FreePieces:
    """Free memory inside PyTorch's segments, in bytes: the largest piece, how many there are, and all together.

    ``partly``: of it, what lies in segments that are partly in use, and cannot be given back to the card.
    ``expandable``: whether segments grow, so that pieces hardly matter.
    """

    largest: int
    pieces: int
    total: int
    partly: int
    expandable: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """One allocation that failed, as it was at that moment. Bytes.

    Attributes:
        device: Where.
        asked: What was asked for, rounded by the allocator.
        allowed: What PyTorch may have of the device: all of it, unless a limit was set.
        free: What the device had left.
        time: Seconds since 1970.
        thread: The thread's name; empty for the main thread.
        frames: Python's stack there, the innermost first; of a thread without one the main thread's.
        reading: The books of the device; None where they could not be read.
        pieces: Free memory inside PyTorch's segments; None where the allocator does not tell.
        neighbours: Other processes on the card, the largest first.
        holders: Who held the memory; None where this was not the first failure of its cell.
        saved: Where the allocation history was saved, or why not; empty where none was kept.
    """

    device: str
    asked: int
    allowed: int
    free: int
    time: float
    thread: str = ""
    frames: tuple[Frame, ...] = ()
    reading: DeviceReading | None = None
    pieces: FreePieces | None = None
    neighbours: tuple[OtherProcess, ...] = ()
    holders: Holders | None = None
    saved: str = ""

    @property
    def room(self) -> int:
        """What PyTorch could still have taken from the card."""
        reserved = None if self.reading is None else self.reading.reserved
        return self.free if reserved is None else min(self.free, max(self.allowed - reserved, 0))

    @property
    def short(self) -> int:
        """What was missing."""
        return max(self.asked - self.room, 0)


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """What a cell's panel tells.

    Attributes:
        failure: The last allocation that failed.
        count: How many failed in this cell.
        line: Which line asked, in words, and its text.
        caught: Whether the code went on.
        holders: Who holds the memory: now, or where the code went on, at the moment of the failure.
        freeable: Bytes that ``%gpumem free`` would give back now.
        freeable_out: Bytes that ``%gpumem free --out`` would.
        cells: The cells that added most since the baseline: (In number, bytes).
        advice: What follows from the numbers, a sentence each.
    """

    failure: Failure
    count: int = 1
    line: str = ""
    caught: bool = False
    holders: Holders | None = None
    freeable: int = 0
    freeable_out: int = 0
    cells: tuple[tuple[int, int], ...] = ()
    advice: tuple[str, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def free_pieces(segments: list[dict[str, Any]], index: int) -> FreePieces:
    """The free pieces of one device, from the allocator's own list of segments."""
    largest = count = total = partly = 0
    expandable = False
    for segment in segments:
        if segment["device"] != index:
            continue
        expandable |= bool(segment.get("is_expandable"))
        free = [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
        largest = max(largest, *free, 0)
        count += len(free)
        total += sum(free)
        if len(free) < len(segment["blocks"]):
            partly += sum(free)
    return FreePieces(largest, count, total, partly, expandable)


def advice(
    failure: Failure, freeable: int = 0, freeable_out: int = 0, baseline_outside: int | None = None
) -> list[str]:
    """What follows from the numbers of a failure, and nothing else."""
    sentences = []
    reading, pieces, short = failure.reading, failure.pieces, failure.short
    capacity = None if reading is None else reading.capacity
    if capacity is not None and failure.asked > capacity:
        sentences.append(
            f"{size(failure.asked)} is more than the whole card ({size(capacity)}): it takes a smaller batch, a shorter"
            " sequence or a smaller type"
        )
        return sentences
    if freeable >= max(short, 1):
        sentences.append(f"%gpumem free gives {size(freeable)} back: enough to try again")
    elif freeable_out >= max(short, 1):
        sentences.append(f"%gpumem free --out gives {size(freeable_out)} back: enough to try again")
    if pieces is not None and not pieces.expandable and pieces.largest < failure.asked <= pieces.partly + failure.room:
        sentences.append(
            f"fragmentation: PyTorch has {size(pieces.partly)} free, but in {pieces.pieces:,} pieces of at most"
            f" {size(pieces.largest)}. The environment variable PYTORCH_ALLOC_CONF=expandable_segments:True, set before"
            " PyTorch starts, avoids that (up to PyTorch 2.8: PYTORCH_CUDA_ALLOC_CONF)"
        )
    if failure.room < failure.asked <= failure.free:
        sentences.append(
            f"the card had {size(failure.free)} left: the limit of {size(failure.allowed)} is in the way"
            " (torch.cuda.set_per_process_memory_fraction)"
        )
    others = sum(one.amount or 0 for one in failure.neighbours)
    # where a limit of this process is in the way, the card has room
    if failure.neighbours and others >= max(short, 1) and failure.free < failure.asked:
        first = failure.neighbours[0]
        name = f" ({first.label})" if first.label else ""
        amount = "" if first.amount is None else f" holds {size(first.amount)} of this card"
        sentences.append(f"another process is in the way: pid {first.pid}{name}{amount}")
    if reading is not None and reading.process is not None and baseline_outside is not None:
        grown = (reading.outside or 0) - baseline_outside
        if grown >= max(short, _TOLERANCE):
            sentences.append(f"{size(grown)} were taken outside PyTorch by this process since the baseline")
    return sentences


_TOLERANCE = 64 << 20
"""Bytes within which a device's size and a limit are the same, and within which nobody is to blame."""
