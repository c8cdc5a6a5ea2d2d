"""Free memory inside the segments: how much, in which pieces, and what it is good for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.errors import OptionError
from ipygpumem.snapshot.state import SMALL_SEGMENT
from ipygpumem.snapshot.trace import Action
from ipygpumem.units import MIB, size

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.snapshot import Snapshot
    from ipygpumem.snapshot.state import State

    Ints = NDArray[np.int64]

__all__ = ["Fit", "Fragmentation", "Oom", "explain_oom", "fragmentation", "round_request"]

# The allocator's constants (c10/core/AllocatorConfig.h), unchanged since torch 1.0
_QUANTUM = 512
_SMALL = MIB
_MIDDLE = 10 * MIB
_LARGE_SEGMENT = 20 * MIB
_SEGMENT_QUANTUM = 2 * MIB


@dataclass(frozen=True, slots=True)
class Fit:
    """What an allocation would have needed.

    Attributes:
        requested: Bytes asked for.
        rounded: Bytes as the allocator rounds them.
        small: Whether it is served from segments of the small pool (up to 1 MiB).
        block: Bytes of the smallest free piece that would have served; None where none would.
        segment: Bytes of the new segment needed otherwise.
    """

    requested: int
    rounded: int
    small: bool
    block: int | None
    segment: int


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Free memory inside the segments at one event. All sizes in bytes.

    Attributes:
        device: The device's index.
        event: The event.
        reserved: All segments.
        requested: All blocks in use, as asked for.
        free: Free pieces together.
        largest: The largest free piece.
        pieces: How many there are.
        empty: Free bytes in segments without a block in use: ``torch.cuda.empty_cache`` would give these back.
        partly: Free bytes in segments partly in use: lost to everybody but PyTorch.
        derived: True where block sizes are reckoned from the requests, rounded up to 512 bytes, so that free pieces
            are upper bounds: the allocator may have left the rest of a piece (up to 1 MiB) with a block. False at the
            end, where the file tells them.
        fit: What an allocation of a given size would have needed, if it was asked.
    """

    device: int
    event: int
    reserved: int
    requested: int
    free: int
    largest: int
    pieces: int
    empty: int
    partly: int
    derived: bool
    fit: Fit | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Oom:
    """Why an allocation failed.

    Attributes:
        device: The device's index.
        event: The oom event.
        time_us: Microseconds since 1970, or None.
        asked: Bytes asked for, rounded by the allocator.
        device_free: Bytes free on the device then; None if the file does not say.
        memory: The free memory inside the segments.
        reason: Why it failed, one sentence each.
    """

    device: int
    event: int
    time_us: int | None
    asked: int
    device_free: int | None
    memory: Fragmentation
    reason: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def round_request(requested: int) -> int:
    """Requested bytes as the allocator rounds them under default settings: up to a multiple of 512."""
    return max(_QUANTUM, -(-requested // _QUANTUM) * _QUANTUM)


def _segment_size(rounded: int) -> int:
    if rounded <= _SMALL:
        return SMALL_SEGMENT
    if rounded < _MIDDLE:
        return _LARGE_SEGMENT
    return -(-rounded // _SEGMENT_QUANTUM) * _SEGMENT_QUANTUM


def fragmentation(
    snapshot: Snapshot, state: State, need: int | None = None, stream: int | None = None
) -> Fragmentation:
    """Free memory inside the segments.

    Args:
        snapshot: Where the state comes from.
        state: The moment.
        need: Bytes of an allocation to fit in.
        stream: The stream of that allocation, as free pieces serve their own stream only; None for any.
    """
    timeline = snapshot.timeline(state.device)
    at_end = state.event == len(timeline.trace) - 1
    exact = at_end and not timeline.gaps.only_in_segments and not timeline.gaps.only_in_events
    length, owner = _told_pieces(snapshot, state) if exact else _derived_pieces(state)
    inside = _owner(state, state.blocks["address"])
    used = np.zeros(len(state.segments), np.bool_)
    used[inside[inside >= 0]] = True
    total = int(length.sum())
    empty = int(length[~used[owner]].sum())
    return Fragmentation(
        device=state.device,
        event=state.event,
        reserved=state.reserved,
        requested=state.requested,
        free=total,
        largest=int(length.max(initial=0)),
        pieces=len(length),
        empty=empty,
        partly=total - empty,
        derived=not exact,
        fit=None if need is None else _fit(need, stream, length, state.segments[owner]),
    )


def _fit(need: int, stream: int | None, length: Ints, segments: NDArray[Any]) -> Fit:
    rounded = round_request(need)
    small = rounded <= _SMALL
    serves = (length >= rounded) & ((segments["small"] == small) | (segments["small"] < 0))
    if stream is not None:
        serves &= segments["stream"] == stream
    block = int(length[serves].min()) if serves.any() else None
    return Fit(need, rounded, small, block, _segment_size(rounded))


def _owner(state: State, address: Ints) -> Ints:
    """The row of the segment that holds each address, or -1."""
    if not len(state.segments):
        return np.full(len(address), -1, np.int64)
    place = np.searchsorted(state.segments["address"], address, side="right") - 1
    end = (state.segments["address"] + state.segments["size"])[place]
    return np.where((place >= 0) & (address < end), place, -1)


def _told_pieces(snapshot: Snapshot, state: State) -> tuple[Ints, Ints]:
    """Free pieces at the end, as the file tells them: bytes and segment of each."""
    blocks = snapshot.blocks
    free = np.flatnonzero((blocks.device == state.device) & ~blocks.active)
    owner = _owner(state, blocks.address[free])
    return blocks.size[free][owner >= 0], owner[owner >= 0]


def _derived_pieces(state: State) -> tuple[Ints, Ints]:
    """Free pieces between the blocks in use, with sizes rounded up to 512 bytes: bytes and segment of each."""
    segments, blocks = state.segments, state.blocks
    owner = _owner(state, blocks["address"])
    blocks, owner = blocks[owner >= 0], owner[owner >= 0]
    rounded = np.maximum(-(-blocks["requested"] // _QUANTUM), 1) * _QUANTUM
    rows = np.arange(len(segments))
    # a block without bytes at the beginning and at the end of each segment: what lies between two blocks is free
    where = np.concatenate([owner, rows, rows])
    begin = np.concatenate([blocks["address"], segments["address"], segments["address"] + segments["size"]])
    end = np.concatenate([blocks["address"] + rounded, segments["address"], segments["address"] + segments["size"]])
    order = np.lexsort((end, begin, where))
    where, begin, end = where[order], begin[order], end[order]
    gap = np.where(where[1:] == where[:-1], begin[1:] - end[:-1], 0)
    free = np.flatnonzero(gap > 0)
    return gap[free], where[free]


def explain_oom(snapshot: Snapshot, state: State) -> Oom:
    """Why the allocation of an oom event failed.

    Raises:
        OptionError: The event is no oom event.
    """
    trace = snapshot.timeline(state.device).trace
    event = state.event
    if event < 0 or trace.action[event] != Action.OOM:
        raise OptionError(f"event {event} of device {state.device} is no oom event")
    asked = int(trace.size[event])
    memory = fragmentation(snapshot, state, asked, int(trace.stream[event]))
    device_free = trace.device_free.get(event)
    return Oom(
        device=state.device,
        event=event,
        time_us=trace.time_of(event),
        asked=asked,
        device_free=device_free,
        memory=memory,
        reason=_reason(memory, asked, device_free),
    )


def _reason(memory: Fragmentation, asked: int, device_free: int | None) -> tuple[str, ...]:
    """The sentences of an oom report."""
    segment = _segment_size(round_request(asked))
    parts = [f"{size(asked)} were asked for."]
    if memory.largest < asked:
        parts.append(
            f"PyTorch held {size(memory.free)} free in {memory.pieces:,} pieces, the largest {size(memory.largest)}:"
            " none was large enough."
        )
    elif memory.fit is not None and memory.fit.block is None:
        parts.append(
            f"PyTorch held a free piece of {size(memory.largest)}, but of another stream or of the pool for"
            f" {'larger' if memory.fit.small else 'smaller'} blocks."
        )
    else:
        parts.append(f"PyTorch held a free piece of up to {size(memory.largest)}, perhaps of another private pool.")
    if device_free is not None and device_free < segment:
        parts.append(f"A new segment takes {size(segment)}, and the device had {size(device_free)} left.")
    elif device_free is not None:
        parts.append(
            f"A new segment takes {size(segment)}; the device had {size(device_free)} left, so a limit"
            " (torch.cuda.set_per_process_memory_fraction) was in the way."
        )
    if memory.partly:
        parts.append(
            f"{size(memory.partly)} lie in segments partly in use, where only PyTorch can use them;"
            " expandable_segments:True avoids most of that."
        )
    return tuple(parts)
