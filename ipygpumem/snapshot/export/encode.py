"""Compact encoding of a snapshot for the viewer.

The format consists of the eight bytes ``ipgmsnap``, the length of the header as four bytes (little endian), the header
as zlib-compressed JSON in UTF-8, and the packed columns in the order of the header.

A packed column is the zlib stream of its *byte planes*: the lowest byte of every number, then the second byte of every
number, and so on. If the stream is not shorter, the planes are stored instead, which can be read faster. The
interpretation of the numbers depends on the coding:

``plain``
    the values
``delta``
    signed differences between each value and the previous value; ``first`` is the first value (as a string if it is
    2**53 or more, which JavaScript numbers cannot represent exactly), and the first difference is 0
``dict``
    indices into ``values``, the distinct values in ascending order

``width`` is the number of bytes of each packed number.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.snapshot.export.encoded_replay import EncodedReplay
from ipygpumem.snapshot.model.annotations import Annotation
from ipygpumem.snapshot.model.cells import Cell
from ipygpumem.snapshot.model.columns import ACTIONS, HOST, STATES, IndexByValue, distinct
from ipygpumem.snapshot.model.stacks import user_code
from ipygpumem.snapshot.model.timeline import Timeline
from ipygpumem.snapshot.queries.overview import notes
from ipygpumem.snapshot.replay.block_sizes import block_sizes, uncertain_rows
from ipygpumem.snapshot.replay.settings import AllocatorSettings
from ipygpumem.snapshot.snapshot_data import SnapshotData

_MAGIC = b"ipgmsnap"
_VERSION = 3
_LENGTH = 4
_LEVEL = 9
_FAST_LEVEL = 5
_LONG_HEADER = 1 << 20  # bytes above which random text takes seconds with the highest level
_LONG = 1 << 16  # bytes above which a lower level saves time for a tenth more output
_SAMPLE_LEVEL = 1
_SAMPLE = 1 << 13  # numbers at the start, middle and end of a long column from which the size of a coding is estimated
_MAX_DISTINCT = 1 << 16
_MAX_SECONDS = 1.0
"""Expected duration of a replay in seconds above which the sizes of blocks are omitted."""
_EXACT = 1 << 53
_ANNOTATION = [field.name for field in fields(Annotation)]


def encode(snapshot: SnapshotData, replays: Mapping[int, EncodedReplay] | None = None) -> bytes:
    """Encode all columns and tables of a snapshot, with replays of its devices by device index.

    Columns are named after attributes: ``trace/0/size``, ``allocations/0/start`` (with the device index),
    ``segments/size``, ``blocks/state``, ``stacks/leaf`` and so on. Allocations are ordered by start event. Their
    column ``free_requested`` is replaced by ``free_requested_after``, the number of events from the start to the
    free request, and ``end`` by ``freed_after``, the number of events from the free request to the end. Their
    column ``nth`` is omitted. If the sizes of all blocks are known, ``remainder`` contains the size of each block
    minus the requested size rounded up to 512 bytes. If some of these sizes are lower bounds, ``uncertain``
    contains 1 for each such block, which may be up to 1 MiB larger, and 0 for the other blocks. ``stacks/own``
    contains 1 for each frame of user code and 0 for other frames. The columns of a replay are ``replay/0/address``
    and so on (see `EncodedReplay`). Its settings and limitations are in the header, under the key ``replay`` of the
    device.

    In the header, file names, function names and names of annotations are indices in ``strings``, so that each name is
    written only once.
    """
    strings = IndexByValue()
    replays = replays or {}
    header = {
        "version": _VERSION,
        "name": snapshot.name,
        "actions": ACTIONS,
        "states": STATES,
        "devices": [_device(snapshot, timeline, replays) for timeline in _timelines(snapshot)],
        "frames": [[strings[frame.file], frame.line, strings[frame.name]] for frame in snapshot.stacks.frames],
        "texts": snapshot.texts,
        "pools": snapshot.pools,
        "settings": snapshot.settings,
        "annotations": _annotations(snapshot, strings),
        "cells": _cells(snapshot, strings),
        "strings": list(strings),
        "numbers": snapshot.own.execution_counts,
        "sources": snapshot.sources,
        "readings": snapshot.own.readings,
        "curves": snapshot.own.curves,
    }
    return encode_columns(header, _columns(snapshot, replays))


def encode_columns(header: dict[str, Any], columns: Iterable[tuple[str, NDArray[Any]]]) -> bytes:
    descriptions, packed = [], []
    for name, column in columns:
        description, data = _pack(column)
        descriptions.append({"name": name, **description})
        packed.append(data)
    header = {**header, "columns": descriptions}
    plain = json.dumps(header, separators=(",", ":")).encode("utf-8", "surrogatepass")
    text = zlib.compress(plain, _LEVEL if len(plain) < _LONG_HEADER else _FAST_LEVEL)
    return b"".join([_MAGIC, len(text).to_bytes(_LENGTH, "little"), text, *packed])


def _columns(snapshot: SnapshotData, replays: Mapping[int, EncodedReplay]) -> list[tuple[str, NDArray[Any]]]:
    tables: list[tuple[str, dict[str, NDArray[Any]]]] = []
    for timeline in _timelines(snapshot):
        tables.append((f"trace/{timeline.device}", _arrays(timeline.trace)))
        tables.append((f"allocations/{timeline.device}", _by_start(_allocations(snapshot, timeline))))
    tables += [(name, _arrays(getattr(snapshot, name))) for name in ("segments", "blocks", "stacks")]
    tables += [(f"replay/{device}", item.columns) for device, item in replays.items()]
    tables.append(("stacks", {"own": user_code(snapshot.stacks.frames)}))
    return [(f"{name}/{field}", column) for name, table in tables for field, column in table.items()]


def _allocations(snapshot: SnapshotData, timeline: Timeline) -> dict[str, NDArray[Any]]:
    columns = _arrays(timeline.allocations)
    if timeline.device != HOST and len(timeline.trace):
        sizes = block_sizes(snapshot, timeline.device, _MAX_SECONDS)
        if sizes is not None:
            columns["remainder"] = sizes - AllocatorSettings().round(columns["size"])
        uncertain = uncertain_rows(snapshot, timeline.device)
        if len(uncertain):
            columns["uncertain"] = np.zeros(len(columns["size"]), np.uint8)
            columns["uncertain"][uncertain] = 1
    return columns


def _arrays(table: Any) -> dict[str, NDArray[Any]]:
    columns = {field.name: getattr(table, field.name) for field in fields(table)}
    return {name: column for name, column in columns.items() if isinstance(column, np.ndarray)}


def _by_start(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    order = np.argsort(columns["start"], kind="stable")
    ordered_columns = {name: column[order] for name, column in columns.items()}
    del ordered_columns["nth"]  # the viewer computes it
    free_requested = ordered_columns.pop("free_requested")
    ordered_columns["free_requested_after"] = free_requested - ordered_columns["start"]
    ordered_columns["freed_after"] = ordered_columns.pop("end") - free_requested
    return ordered_columns


def _annotations(snapshot: SnapshotData, strings: IndexByValue) -> dict[str, list[Any]]:
    numbers = [strings[name] for name in snapshot.regions.names]
    names, *columns = snapshot.regions.values()
    return dict(zip(_ANNOTATION, ([numbers[name] for name in names], *columns), strict=True))


def _cells(snapshot: SnapshotData, strings: IndexByValue) -> dict[str, list[Any]]:
    columns = {field.name: [getattr(cell, field.name) for cell in snapshot.own.cells] for field in fields(Cell)}
    return {**columns, "filename": [strings[file] for file in columns["filename"]]}


def _timelines(snapshot: SnapshotData) -> tuple[Timeline, ...]:
    return snapshot.timelines if snapshot.host_timeline is None else (*snapshot.timelines, snapshot.host_timeline)


def _device(snapshot: SnapshotData, timeline: Timeline, replays: Mapping[int, EncodedReplay]) -> dict[str, Any]:
    device = timeline.device
    replay = replays[device].header if device in replays else None
    problem = replay.get("problem") if replay else None
    return {
        "device": device,
        "name": "pinned host memory" if device == HOST else snapshot.own.device_names.get(device),
        "total": snapshot.own.device_totals.get(device),
        "device_free": timeline.trace.device_free.to_dict(),
        "end_reserved": timeline.end_reserved,
        "only_in_segments": timeline.gaps.only_in_segments,
        "only_in_events": timeline.gaps.only_in_events,
        "notes": [*notes(snapshot, timeline), *([f"{problem[0].upper()}{problem[1:]}."] if problem else [])],
        **({"replay": replay} if replay and not problem else {}),
        **({} if snapshot.zero_us is None else {"zero_us": snapshot.zero_us}),
    }


def _pack(column: NDArray[Any]) -> tuple[dict[str, Any], bytes]:
    values = column.astype(np.int64)
    first = int(values[0]) if len(values) else 0
    candidates: list[tuple[dict[str, Any], NDArray[np.int64]]] = [
        ({"coding": "plain"}, values),
        ({"coding": "delta", "first": first if abs(first) < _EXACT else str(first)}, np.diff(values, prepend=first)),
    ]
    # sorting is slow, and useless for the many columns with a single distinct value or with few repeated values
    sample = values[:: len(values) // _SAMPLE + 1]
    repeated = len(values) and values.min() < values.max() and len(distinct(sample)) <= max(len(sample) // 2, 2)
    unique = distinct(values) if repeated else values[:1]
    if 1 < len(unique) <= min(_MAX_DISTINCT, len(values) // 2) and np.abs(unique).max() < _EXACT:
        # distinct and searchsorted take a tenth of the time of np.unique with return_inverse
        candidates.append(({"coding": "dict", "values": unique.tolist()}, np.searchsorted(unique, values)))
    description, numbers = min(candidates, key=lambda candidate: _estimated_size(*candidate))
    planes = _planes(numbers)
    packed = zlib.compress(planes, _LEVEL if len(planes) < _LONG else _FAST_LEVEL)
    packed = packed if len(packed) < len(planes) else planes
    width = len(planes) // len(values) if len(values) else 1
    return {**description, "width": width, "count": len(values), "bytes": len(packed)}, packed


def _estimated_size(description: dict[str, Any], numbers: NDArray[np.int64]) -> float:
    count = len(numbers)
    middle = count // 2
    sample = numbers
    if count > 4 * _SAMPLE:
        sample = np.concatenate([numbers[:_SAMPLE], numbers[middle : middle + _SAMPLE], numbers[-_SAMPLE:]])
    packed = len(zlib.compress(_planes(sample), _SAMPLE_LEVEL)) * (count / max(len(sample), 1))
    return len(str(description)) + packed


def _planes(values: NDArray[np.int64]) -> bytes:
    width = next(width for width in (1, 2, 4, 8) if (values == values.astype(f"<i{width}")).all())
    return values.astype(f"<i{width}").view(np.uint8).reshape(-1, width).T.tobytes()
