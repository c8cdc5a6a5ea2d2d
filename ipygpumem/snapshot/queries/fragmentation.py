"""Free memory inside the segments: how much, in which pieces, and what it is good for."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.units import MIB
from ipygpumem.snapshot.model.segment_history import SMALL_SEGMENT

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.segment_history import State
    from ipygpumem.snapshot.snapshot import Snapshot

    Ints = NDArray[np.int64]

__all__ = ["Fit", "Fragmentation", "fragmentation", "round_request", "segment_size"]

# The allocator's constants (c10/core/AllocatorConfig.h), unchanged since torch 1.0
_QUANTUM = 512
_DEFAULT_POOL = (0, 0)
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
        private: Free bytes in segments of private pools, whoever uses these: they serve the graph that owns the pool.
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
    private: int
    derived: bool
    fit: Fit | None = None

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def round_request(requested: int) -> int:
    """Requested bytes as the allocator rounds them under default settings: up to a multiple of 512."""
    return max(_QUANTUM, -(-requested // _QUANTUM) * _QUANTUM)


def segment_size(rounded: int) -> int:
    """Bytes of the segment that the allocator takes for a rounded request, under default settings."""
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
    private = np.isin(state.segments["pool"], [n for n, pool in enumerate(snapshot.pools) if pool != _DEFAULT_POOL])
    shared = ~private[owner]
    return Fragmentation(
        device=state.device,
        event=state.event,
        reserved=state.reserved,
        requested=state.requested,
        free=int(length.sum()),
        largest=int(length.max(initial=0)),
        pieces=len(length),
        empty=int(length[shared & ~used[owner]].sum()),
        partly=int(length[shared & used[owner]].sum()),
        private=int(length[~shared].sum()),
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
    return Fit(need, rounded, small, block, segment_size(rounded))


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
