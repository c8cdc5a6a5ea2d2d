"""Conversion of events and query results to CSV, Parquet and pandas."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterator
from typing import IO, Any

import numpy as np

from ipygpumem.core.errors import OptionError
from ipygpumem.core.files import atomic_write, check_path, import_library
from ipygpumem.core.text import csv_text
from ipygpumem.snapshot.model.columns import ACTIONS
from ipygpumem.snapshot.model.segment_history import AllocatorState
from ipygpumem.snapshot.model.timeline import Timeline
from ipygpumem.snapshot.snapshot_data import SnapshotData

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
"""Columns of the table of events. ``file``, ``line`` and ``name`` describe the innermost frame of user code. ``size``
and ``requested_after``, the total requested size after the event, are in bytes.
"""

_CHUNK = 1 << 14


def _columns(snapshot: SnapshotData, timeline: Timeline, clean: Callable[[str], str]) -> dict[str, Any]:
    trace = timeline.trace
    frames = snapshot.stacks.frames
    user_frame = np.append(snapshot.stacks.user_frame, -1)[trace.stack]
    texts = np.array([*map(clean, snapshot.texts), ""], object)
    return {
        "device": np.full(len(trace), timeline.device),
        "event": np.arange(len(trace)),
        "action": np.array(ACTIONS, object)[trace.action],
        "address": trace.address,
        "size": trace.size,
        "stream": trace.stream,
        "time_us": trace.time,
        "requested_after": timeline.requested.bytes[1:],
        "file": np.array([*(clean(frame.file) for frame in frames), ""], object)[user_frame],
        "line": np.array([*(frame.line for frame in frames), 0], np.int64)[user_frame],
        "name": np.array([*(clean(frame.name) for frame in frames), ""], object)[user_frame],
        "compile_context": texts[trace.context],
        "user_metadata": texts[trace.metadata],
    }


def _tables(snapshot: SnapshotData, device: int | None, clean: Callable[[str], str]) -> Iterator[dict[str, Any]]:
    for timeline in snapshot.timelines if device is None else [snapshot.timeline(device)]:
        yield _columns(snapshot, timeline, clean)


def _all_columns(snapshot: SnapshotData, device: int | None, clean: Callable[[str], str] = str) -> dict[str, Any]:
    tables = list(_tables(snapshot, device, clean))
    return {name: np.concatenate([table[name] for table in tables]) if tables else np.zeros(0) for name in COLUMNS}


def event_rows(
    snapshot: SnapshotData, device: int | None = None, clean: Callable[[str], str] = str
) -> Iterator[tuple[Any, ...]]:
    for columns in _tables(snapshot, device, clean):
        for start in range(0, len(columns["event"]), _CHUNK):
            yield from zip(*(columns[name][start : start + _CHUNK].tolist() for name in COLUMNS), strict=True)


def write_csv(
    snapshot: SnapshotData, file: IO[str], device: int | None = None, *, label: str | None = None, names: bool = True
) -> None:
    """Write the events as CSV. Spreadsheet formulas in texts are escaped.

    If ``label`` is given, it is the first column of each row. If ``names`` is true, the first row is a header.
    """
    writer = csv.writer(file, lineterminator="\n")
    first = () if label is None else (csv_text(label),)
    if names:
        writer.writerow(COLUMNS if label is None else ("snapshot", *COLUMNS))
    writer.writerows((*first, *row) for row in event_rows(snapshot, device, csv_text))


def write_parquet(snapshot: SnapshotData, path: str | os.PathLike[str], device: int | None = None) -> None:
    arrow, parquet = import_library("pyarrow", "Parquet files"), import_library("pyarrow.parquet", "Parquet files")
    target = check_path(path, "table", "events.parquet")
    texts = arrow.dictionary(arrow.int32(), arrow.string())  # events often have the same long texts
    try:
        columns = _all_columns(snapshot, device, _valid_utf8)
        table = {
            name: arrow.array(values.tolist(), texts) if values.dtype == object else values
            for name, values in columns.items()
        }
        with atomic_write(target) as file:
            parquet.write_table(arrow.table(table), file, dictionary_pagesize_limit=1 << 30, store_schema=False)
    except MemoryError:
        raise OptionError(f"{target} was not written: not enough memory; use CSV instead") from None


def _valid_utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # lone surrogates cannot be encoded


def events_frame(snapshot: SnapshotData, device: int | None = None) -> Any:
    return import_library("pandas", "data frames").DataFrame(_all_columns(snapshot, device))


def to_frame(result: Any) -> Any:
    """Convert the result of a `Snapshot` method to a pandas DataFrame.

    Raises:
        OptionError: The object cannot be converted, or pandas is not installed.
    """
    pandas = import_library("pandas", "data frames")
    if isinstance(result, np.ndarray):
        return pandas.DataFrame(result)
    if isinstance(result, (tuple, list)) and all(hasattr(row, "to_dict") for row in result):
        return pandas.DataFrame([row.to_dict() for row in result])
    if isinstance(result, AllocatorState):
        raise OptionError("an allocator state has two tables: use to_frame(state.segments) or to_frame(state.blocks)")
    if hasattr(result, "to_dict"):
        values = result.to_dict()
        return pandas.DataFrame(values if any(isinstance(value, list) for value in values.values()) else [values])
    raise OptionError(f"cannot convert {type(result).__name__!r} to a data frame: pass the result of a Snapshot method")
