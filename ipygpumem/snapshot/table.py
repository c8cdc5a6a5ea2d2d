"""Events as a table: CSV, Parquet, pandas."""

from __future__ import annotations

import csv
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ipygpumem.errors import OptionError
from ipygpumem.snapshot.trace import ACTIONS

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from ipygpumem.snapshot.snapshot import Snapshot

__all__ = ["COLUMNS", "events_columns", "events_frame", "write_csv", "write_parquet"]

COLUMNS = (
    "device",
    "event",
    "action",
    "address",
    "size",
    "stream",
    "time_us",
    "requested_after",
    "file",
    "line",
    "name",
    "compile_context",
    "user_metadata",
)
"""Columns of the table. ``file``, ``line`` and ``name`` are those of the innermost frame of the user's own code."""

_CSV_ROWS = 1 << 14


def events_columns(snapshot: Snapshot, device: int) -> dict[str, Any]:
    """The events of a device, one numpy array per column of `COLUMNS`."""
    timeline = snapshot.timeline(device)
    trace = timeline.trace
    count = len(trace)
    frames = np.append(snapshot.stacks.user_frame, -1)[trace.stack]
    texts = np.array([*snapshot.texts, ""], object)
    parts = [(frame.file, frame.line, frame.name) for frame in snapshot.stacks.frames]
    file, line, name = (
        np.array([part[place] for part in parts] + [empty], object) for place, empty in enumerate(("", 0, ""))
    )
    return {
        "device": np.full(count, device),
        "event": np.arange(count),
        "action": np.array(ACTIONS, object)[trace.action],
        "address": trace.address,
        "size": trace.size,
        "stream": trace.stream,
        "time_us": trace.time,
        "requested_after": timeline.requested.bytes[1:],
        "file": file[frames],
        "line": line[frames].astype(np.int64),
        "name": name[frames],
        "compile_context": texts[trace.context],
        "user_metadata": texts[trace.metadata],
    }


def _all_columns(snapshot: Snapshot) -> dict[str, Any]:
    devices = [events_columns(snapshot, timeline.device) for timeline in snapshot.timelines]
    return {name: np.concatenate([device[name] for device in devices]) if devices else np.zeros(0) for name in COLUMNS}


def _rows(snapshot: Snapshot) -> Iterator[list[tuple[Any, ...]]]:
    for timeline in snapshot.timelines:
        columns = events_columns(snapshot, timeline.device)
        for start in range(0, len(timeline.trace), _CSV_ROWS):
            part = [columns[name][start : start + _CSV_ROWS].tolist() for name in COLUMNS]
            yield list(zip(*part, strict=True))


def write_csv(snapshot: Snapshot, file: IO[str]) -> None:
    """Write the events of all devices as CSV with a line of names."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for rows in _rows(snapshot):
        writer.writerows(rows)


def write_parquet(snapshot: Snapshot, file: str | os.PathLike[str] | IO[bytes]) -> None:
    """Write the events of all devices as Parquet.

    Raises:
        OptionError: pyarrow is not installed.
    """
    arrow, parquet = _need("pyarrow", "Parquet files"), _need("pyarrow.parquet", "Parquet files")
    parquet.write_table(arrow.table(_all_columns(snapshot)), file)


def events_frame(snapshot: Snapshot) -> Any:
    """The events of all devices as a pandas DataFrame.

    Raises:
        OptionError: pandas is not installed.
    """
    return _need("pandas", "data frames").DataFrame(_all_columns(snapshot))


def _need(module: str, purpose: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise OptionError(f"{purpose} need {module}: pip install {module}") from None
