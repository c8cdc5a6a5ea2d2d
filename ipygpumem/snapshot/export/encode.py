"""Encodes a whole snapshot compactly, for the viewer and the shareable page.

The format is: eight bytes ``ipgmsnap``, the length of the header as four bytes (little endian), the header as JSON in
UTF-8 compressed with zlib, then the packed columns in the order in which the header lists them (see `column_codec`).
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.snapshot.export.column_codec import pack
from ipygpumem.snapshot.model.segments import STATES
from ipygpumem.snapshot.model.stacks import is_user_file
from ipygpumem.snapshot.model.trace import ACTIONS
from ipygpumem.snapshot.queries.overview import notes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from ipygpumem.snapshot.snapshot import Snapshot

__all__ = ["encode", "encode_columns"]

_MAGIC = b"ipgmsnap"
_VERSION = 2
_LENGTH = 4


def encode(snapshot: Snapshot) -> bytes:
    """Encode all columns and tables of a snapshot.

    The columns are named after attributes: ``trace/0/size``, ``allocations/0/start`` (with the device's index),
    ``segments/size``, ``blocks/state``, ``stacks/leaf`` and so on. Allocations are ordered by start. Instead of
    ``requested`` and ``end`` they have ``asked_after``, the number of events from the start to the request for the
    free, and ``freed_after``, from there to the end. ``nth`` is left out. ``stacks/own`` has one row per frame: 1 for
    the user's own code.
    """
    header = {
        "version": _VERSION,
        "name": snapshot.name,
        "actions": ACTIONS,
        "states": STATES,
        "devices": [_device(snapshot, timeline.device) for timeline in snapshot.timelines],
        "frames": [[frame.file, frame.line, frame.name] for frame in snapshot.stacks.frames],
        "texts": snapshot.texts,
        "pools": snapshot.pools,
        "settings": snapshot.settings,
        "annotations": [asdict(annotation) for annotation in snapshot.annotations()],
        "cells": [asdict(cell) for cell in snapshot.own.cells],
        "numbers": snapshot.own.numbers,
        "sources": snapshot.sources,
        "readings": snapshot.own.readings,
        "curves": snapshot.own.curves,
    }
    return encode_columns(header, _columns(snapshot))


def encode_columns(header: dict[str, Any], columns: Iterable[tuple[str, NDArray[Any]]]) -> bytes:
    """Pack a header and named columns, as described at the top of this module."""
    descriptions, packed = [], []
    for name, column in columns:
        description, data = pack(column)
        descriptions.append({"name": name, **description})
        packed.append(data)
    header = {**header, "columns": descriptions}
    text = zlib.compress(json.dumps(header, separators=(",", ":")).encode("utf-8", "surrogatepass"), 9)
    return b"".join([_MAGIC, len(text).to_bytes(_LENGTH, "little"), text, *packed])


def _columns(snapshot: Snapshot) -> list[tuple[str, NDArray[Any]]]:
    tables: list[tuple[str, dict[str, NDArray[Any]]]] = []
    for timeline in snapshot.timelines:
        tables.append((f"trace/{timeline.device}", _arrays(timeline.trace)))
        tables.append((f"allocations/{timeline.device}", _by_start(_arrays(timeline.allocations))))
    tables += [(name, _arrays(getattr(snapshot, name))) for name in ("segments", "blocks", "stacks")]
    is_user_code = [frame.line > 0 and is_user_file(frame.file) for frame in snapshot.stacks.frames]
    tables.append(("stacks", {"own": np.asarray(is_user_code, np.int64)}))
    return [(f"{name}/{field}", column) for name, table in tables for field, column in table.items()]


def _arrays(table: Any) -> dict[str, NDArray[Any]]:
    columns = {field.name: getattr(table, field.name) for field in fields(table)}
    return {name: column for name, column in columns.items() if isinstance(column, np.ndarray)}


def _by_start(columns: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """Order allocations by start and store their ends as differences, which takes a quarter of the bytes."""
    order = np.argsort(columns["start"], kind="stable")
    ordered = {name: column[order] for name, column in columns.items()}
    del ordered["nth"]  # can be counted while decoding
    requested = ordered.pop("requested")
    ordered["asked_after"] = requested - ordered["start"]
    ordered["freed_after"] = ordered.pop("end") - requested
    return ordered


def _device(snapshot: Snapshot, device: int) -> dict[str, Any]:
    timeline = snapshot.timelines[device]
    return {
        "device": device,
        "name": snapshot.own.device_names.get(device),
        "total": snapshot.own.device_totals.get(device),
        "device_free": timeline.trace.device_free,
        "end_reserved": timeline.end_reserved,
        "only_in_segments": timeline.gaps.only_in_segments,
        "only_in_events": timeline.gaps.only_in_events,
        "notes": notes(snapshot, timeline),
        **({} if snapshot.zero_us is None else {"zero_us": snapshot.zero_us}),
    }
