"""The allocator's segments and blocks at the moment of the snapshot, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import SnapshotFormatError
from ipygpumem.snapshot.reader.checks import LARGEST, MOST, integer, kind, mapping, sequence, text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.reader.table_builder import Book

__all__ = ["STATES", "Blocks", "Segments", "State", "read_segments"]

STATES = ("inactive", "active_allocated", "active_pending_free")
"""Names of the numbers in the ``state`` column."""


class State:
    """Numbers in the ``state`` column."""

    INACTIVE, ALLOCATED, PENDING = range(len(STATES))


# PyTorch's code and its documentation name the third state differently
_NUMBER = {**{name: number for number, name in enumerate(STATES)}, "active_awaiting_free": State.PENDING}
_TYPES = ("large", "small")


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """One row per segment, ordered by device and address.

    Attributes:
        device: int64.
        address: int64.
        size: int64, bytes.
        stream: int64, the raw stream handle.
        pool: int32, index into the pools; -1 where the file does not say.
        small: bool, a segment of the small pool.
        expandable: bool, a mapped range of an expandable segment.
        stack: int32, index into the stack table; -1 without.
    """

    device: NDArray[np.int64]
    address: NDArray[np.int64]
    size: NDArray[np.int64]
    stream: NDArray[np.int64]
    pool: NDArray[np.int32]
    small: NDArray[np.bool_]
    expandable: NDArray[np.bool_]
    stack: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """One row per block, ordered by device and address.

    Attributes:
        segment: int64, row of the segment.
        device: int64.
        address: int64.
        size: int64, rounded bytes.
        requested: int64, bytes the program asked for; 0 for a free block, whose entry in the file is stale.
        told: bool, whether the file tells them; else the rounded bytes stand for them.
        state: uint8, index into `STATES`.
        stack: int32, index into the stack table; -1 without.
    """

    segment: NDArray[np.int64]
    device: NDArray[np.int64]
    address: NDArray[np.int64]
    size: NDArray[np.int64]
    requested: NDArray[np.int64]
    told: NDArray[np.bool_]
    state: NDArray[np.uint8]
    stack: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.address)

    @property
    def active(self) -> NDArray[np.bool_]:
        """Blocks in use: allocated, or freed and waiting for a stream."""
        return np.not_equal(self.state, State.INACTIVE)


def read_segments(items: Any, devices: int, book: Book) -> tuple[Segments, Blocks]:
    """Columns of the file's list of segments.

    Raises:
        SnapshotFormatError: A value of the wrong type or out of range; the message names it.
    """
    segments: list[tuple[int, ...]] = []
    blocks: list[tuple[int, ...]] = []
    seen: set[int] = set()
    items = sequence(items, "segments")
    book.count(items, "segments")
    for number, item in enumerate(items):
        where = f"segments[{number}]"
        segment = mapping(item, where)
        device = integer(segment.get("device", 0), f"{where}: device", 0, devices - 1)
        address = integer(segment.get("address"), f"{where}: address", 0)
        size = integer(segment.get("total_size"), f"{where}: total_size", 0, LARGEST)
        stream = integer(segment.get("stream", 0), f"{where}: stream")
        pool = segment.get("segment_pool_id")
        type_ = text(segment.get("segment_type", "large"), f"{where}: segment_type")
        if type_ not in _TYPES:
            raise SnapshotFormatError(f"{where}: segment_type is neither large nor small")
        expandable = segment.get("is_expandable", False)
        if type(expandable) is not bool:
            raise SnapshotFormatError(f"{where}: is_expandable is {kind(expandable)}, not true or false")
        frames = segment.get("frames")
        segments.append(
            (
                device,
                address,
                size,
                stream,
                -1 if pool is None else book.resolver.pool(pool, f"{where}: segment_pool_id"),
                type_ == "small",
                expandable,
                -1 if frames is None else book.resolver.stack(frames, f"{where}: frames"),
            )
        )
        inner = sequence(segment.get("blocks", ()), f"{where}: blocks")
        if inner and id(inner) in seen:
            raise SnapshotFormatError(f"{where}: blocks is the same list as another segment's")
        seen.add(id(inner))
        blocks.extend(_blocks(inner, where, (device, address, number), address + size, book))
    if sum(segment[2] for segment in segments) > MOST:
        raise SnapshotFormatError(f"the sizes of the segments add up to more than {MOST:,} bytes")
    order = sorted(range(len(segments)), key=lambda number: segments[number][:2])
    place = {number: row for row, number in enumerate(order)}
    rows: list[tuple[int, ...]] = [
        (device, address, place[number], *rest) for device, address, number, *rest in sorted(blocks)
    ]
    return _segments([segments[number] for number in order]), _block_columns(rows)


def _blocks(items: Any, where: str, segment: tuple[int, int, int], end: int, book: Book) -> list[tuple[int, ...]]:
    """Rows of a segment's blocks; the segment is given as device, address and number."""
    rows: list[tuple[int, ...]] = []
    device, address, place = segment
    book.count(items, f"{where}: blocks")
    for number, item in enumerate(items):
        here = f"{where}: blocks[{number}]"
        block = mapping(item, here)
        # torch before 2.1 wrote no addresses: blocks lie one behind the other
        address = integer(block.get("address", address), f"{here}: address", 0)
        rounded = integer(block.get("size"), f"{here}: size", 0, LARGEST)
        state = _NUMBER.get(text(block.get("state"), f"{here}: state"))
        if state is None:
            raise SnapshotFormatError(f"{here}: state is none of {', '.join(STATES)}")
        if address + rounded > end:
            raise SnapshotFormatError(f"{here}: the block reaches beyond its segment")
        requested, frames = _request(block, here)
        stack = -1 if frames is None else book.resolver.stack(frames, f"{here}: frames")
        told = requested is not None
        asked = requested if requested is not None else rounded
        rows.append((device, address, place, rounded, asked if state else 0, told, state, stack))
        address += rounded
    return rows


def _request(block: dict[str, Any], where: str) -> tuple[int | None, Any]:
    """Requested bytes, if told, and frames; torch up to 2.0 kept both in the first entry of a history."""
    history = block.get("history")
    if history and "requested_size" not in block:
        last = mapping(sequence(history, f"{where}: history")[0], f"{where}: history[0]")
        return _optional(last.get("real_size"), f"{where}: real_size"), last.get("frames")
    return _optional(block.get("requested_size"), f"{where}: requested_size"), block.get("frames")


def _optional(value: Any, where: str) -> int | None:
    return None if value is None else integer(value, where, 0, LARGEST)


def _columns(rows: list[tuple[int, ...]], width: int) -> list[NDArray[np.int64]]:
    return [np.array([row[place] for row in rows], np.int64) for place in range(width)]


def _segments(rows: list[tuple[int, ...]]) -> Segments:
    device, address, size, stream, pool, small, expandable, stack = _columns(rows, 8)
    return Segments(
        device,
        address,
        size,
        stream,
        pool.astype(np.int32),
        small.astype(np.bool_),
        expandable.astype(np.bool_),
        stack.astype(np.int32),
    )


def _block_columns(rows: list[tuple[int, ...]]) -> Blocks:
    device, address, segment, size, requested, told, state, stack = _columns(rows, 8)
    return Blocks(
        segment,
        device,
        address,
        size,
        requested,
        told.astype(np.bool_),
        state.astype(np.uint8),
        stack.astype(np.int32),
    )
