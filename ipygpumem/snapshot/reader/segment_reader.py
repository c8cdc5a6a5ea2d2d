"""Conversion of the list of segments and their blocks to columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.errors import SnapshotFormatError
from ipygpumem.snapshot.model.columns import HOST, STATES, Blocks, BlockState, Segments
from ipygpumem.snapshot.reader.checks import MAX_BLOCK, MAX_TOTAL, integer, mapping, sequence, text, type_name
from ipygpumem.snapshot.reader.table_builder import TableBuilder

Row = tuple[int, ...]

# PyTorch's code and its documentation use different names for the third state
_STATE_NUMBER = {**{name: number for number, name in enumerate(STATES)}, "active_awaiting_free": BlockState.PENDING}
_TYPES = ("large", "small")
_SEGMENT_TYPES = (np.int64, np.int64, np.int64, np.int64, np.int32, np.bool_, np.bool_, np.int32)
_BLOCK_TYPES = (np.int64, np.int64, np.int64, np.int64, np.int64, np.bool_, np.uint8, np.int32)


def read_segments(
    items: Any, devices: int, tables: TableBuilder, host: Sequence[dict[str, Any]] = ()
) -> tuple[Segments, Blocks]:
    """Return all segments and their blocks as columns. Raises `SnapshotError` for invalid values.

    ``devices`` is the maximum number of devices. ``host`` contains the segments of pinned host memory.
    """
    segments: list[Row] = []
    blocks: list[Row] = []
    list_ids: set[int] = set()
    first_host = len(sequence(items, "segments"))
    tables.count(items, "segments")
    tables.count(host, "host_segments")
    for number, item in enumerate(chain(items, map(_host_segment, host))):
        where = f"segments[{number}]"
        segment = mapping(item, where)
        device = integer(segment.get("device", 0), f"{where}: device", 0 if number < first_host else HOST, devices - 1)
        address = integer(segment.get("address"), f"{where}: address", 0)
        size = integer(segment.get("total_size"), f"{where}: total_size", 0, MAX_BLOCK)
        stream = integer(segment.get("stream", 0), f"{where}: stream")
        pool = segment.get("segment_pool_id")
        segment_type = text(segment.get("segment_type", "large"), f"{where}: segment_type")
        if segment_type not in _TYPES:
            raise SnapshotFormatError(f"{where}: segment_type is neither 'large' nor 'small'")
        expandable = segment.get("is_expandable", False)
        if type(expandable) is not bool:
            raise SnapshotFormatError(f"{where}: is_expandable is {type_name(expandable)}, not a bool")
        pool_number = -1 if pool is None else tables.pool(pool, f"{where}: segment_pool_id")
        stack = _stack(segment.get("frames"), where, tables)
        segments.append((device, address, size, stream, pool_number, segment_type == "small", expandable, stack))
        inner = sequence(segment.get("blocks", ()), f"{where}: blocks")
        if number < first_host and inner:  # lists of blocks of host memory are temporary, and their ids are reused
            if id(inner) in list_ids:
                raise SnapshotFormatError(f"{where}: the list of blocks is the same list as in another segment")
            list_ids.add(id(inner))
        blocks.extend(_read_blocks(inner, where, (device, address, number), address + size, tables))
    if sum(segment[2] for segment in segments) > MAX_TOTAL:
        raise SnapshotFormatError(f"the sizes of the segments add up to more than {MAX_TOTAL:,} bytes")
    order = sorted(range(len(segments)), key=lambda number: segments[number][:2])
    blocks.sort()
    devices_of_blocks, addresses, numbers, sizes, *more = _columns(blocks, _BLOCK_TYPES)
    rows = np.argsort(np.asarray(order, np.int64))[numbers]
    segment_columns = _columns([segments[number] for number in order], _SEGMENT_TYPES)
    return Segments(*segment_columns), Blocks(devices_of_blocks, addresses, sizes, rows, *more)


def _host_segment(segment: dict[str, Any]) -> dict[str, Any]:
    state = "active_allocated" if segment.get("allocated") else STATES[2 if segment.get("active") else 0]
    size, pool = segment.get("size"), segment.get("segment_pool_id")
    fields = {"device": HOST, "address": segment.get("address"), "total_size": size, "segment_pool_id": pool}
    return {**fields, "blocks": [{"size": size, "state": state, "frames": segment.get("frames")}]}


def _read_blocks(items: Any, where: str, segment: tuple[int, int, int], end: int, tables: TableBuilder) -> list[Row]:
    """Return the rows of the blocks in a segment, which is given as a tuple ``(device, address, index)``."""
    rows: list[Row] = []
    device, address, segment_number = segment
    tables.count(items, f"{where}: blocks")
    for number, item in enumerate(items):
        block_where = f"{where}: blocks[{number}]"
        block = mapping(item, block_where)
        # PyTorch before 2.1 wrote no block addresses, but blocks are adjacent
        address = integer(block.get("address", address), f"{block_where}: address", 0)
        rounded = integer(block.get("size"), f"{block_where}: size", 0, MAX_BLOCK)
        state = _STATE_NUMBER.get(text(block.get("state"), f"{block_where}: state"))
        if state is None:
            raise SnapshotFormatError(f"{block_where}: state is not one of {', '.join(map(repr, STATES))}")
        if address + rounded > end:
            raise SnapshotFormatError(f"{block_where}: the block ends after its segment")
        requested, frames = _request(block, block_where)
        stack = _stack(frames, block_where, tables)
        size = rounded if requested is None else requested
        row = (rounded, size if state else 0, requested is not None, state, stack)
        rows.append((device, address, segment_number, *row))
        address += rounded
    return rows


def _request(block: dict[str, Any], where: str) -> tuple[int | None, Any]:
    """Return a tuple of a block's requested size and frames, which PyTorch before 2.1 stored under ``history``."""
    size, frames, key = block.get("requested_size"), block.get("frames"), "requested_size"
    history = block.get("history")
    if history and "requested_size" not in block:
        last = mapping(sequence(history, f"{where}: history")[0], f"{where}: history[0]")
        size, frames, key = last.get("real_size"), last.get("frames"), "real_size"
    return None if size is None else integer(size, f"{where}: {key}", 0, MAX_BLOCK), frames


def _stack(frames: Any, where: str, tables: TableBuilder) -> int:
    return -1 if frames is None else tables.stacks.stack(frames, f"{where}: frames")


def _columns(rows: list[Row], types: tuple[type[np.generic], ...]) -> list[NDArray[Any]]:
    return [np.array([row[place] for row in rows], kind) for place, kind in enumerate(types)]
