"""Events and answers as tables: CSV, Parquet, pandas."""

from __future__ import annotations

import csv
import re
from importlib import import_module
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot.model.segment_history import State
from ipygpumem.snapshot.model.trace import ACTIONS

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from ipygpumem.snapshot.snapshot import Snapshot

__all__ = ["COLUMNS", "event_rows", "events_columns", "events_frame", "to_frame", "write_csv", "write_parquet"]

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

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_FORMULA = ("=", "+", "-", "@")
_CHUNK = 1 << 14


def events_columns(snapshot: Snapshot, device: int, clean: Callable[[str], str] = str) -> dict[str, Any]:
    """The events of a device, one numpy array per column of `COLUMNS`; ``clean`` goes over each text."""
    timeline = snapshot.timeline(device)
    trace = timeline.trace
    count = len(trace)
    frames = np.append(snapshot.stacks.user_frame, -1)[trace.stack]
    texts = np.array([*map(clean, snapshot.texts), ""], object)
    parts = [(clean(frame.file), frame.line, clean(frame.name)) for frame in snapshot.stacks.frames]
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


def _devices(snapshot: Snapshot, device: int | None) -> list[int]:
    return (
        [timeline.device for timeline in snapshot.timelines] if device is None else [snapshot.timeline(device).device]
    )


def _all_columns(snapshot: Snapshot, device: int | None, clean: Callable[[str], str] = str) -> dict[str, Any]:
    devices = [events_columns(snapshot, one, clean) for one in _devices(snapshot, device)]
    return {name: np.concatenate([one[name] for one in devices]) if devices else np.zeros(0) for name in COLUMNS}


def event_rows(
    snapshot: Snapshot, device: int | None = None, clean: Callable[[str], str] = str
) -> Iterator[tuple[Any, ...]]:
    """The events of a device, or of all, row by row, as plain values in the order of `COLUMNS`."""
    for one in _devices(snapshot, device):
        columns = events_columns(snapshot, one, clean)
        for start in range(0, len(columns["event"]), _CHUNK):
            yield from zip(*(columns[name][start : start + _CHUNK].tolist() for name in COLUMNS), strict=True)


def write_csv(
    snapshot: Snapshot, file: IO[str], device: int | None = None, *, label: str | None = None, names: bool = True
) -> None:
    """Write the events of a device, or of all, as CSV. Texts have no control characters, and are no formulas.

    Args:
        snapshot: Where they come from.
        file: A text file.
        device: Its index.
        label: Value of a first column ``snapshot``, for the events of several files in one table.
        names: Begin with a line of names.
    """
    writer = csv.writer(file, lineterminator="\n")
    first = () if label is None else (label,)
    if names:
        writer.writerow(COLUMNS if label is None else ("snapshot", *COLUMNS))
    writer.writerows((*first, *row) for row in event_rows(snapshot, device, _harmless))


def write_parquet(snapshot: Snapshot, file: str | os.PathLike[str] | IO[bytes], device: int | None = None) -> None:
    """Write the events of a device, or of all, as Parquet.

    Raises:
        OptionError: pyarrow is not installed.
    """
    arrow, parquet = _need("pyarrow", "Parquet files"), _need("pyarrow.parquet", "Parquet files")
    parquet.write_table(arrow.table(_all_columns(snapshot, device, _whole)), file)


def _whole(text: str) -> str:
    """A name in a file may hold half a character, which is no UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _harmless(text: str) -> str:
    """For a terminal, and for a spreadsheet: neither control characters nor what it would take for a formula."""
    plain = _CONTROL.sub(" ", text)
    return f"'{plain}" if plain.startswith(_FORMULA) else plain


def events_frame(snapshot: Snapshot, device: int | None = None) -> Any:
    """The events of a device, or of all, as a pandas DataFrame.

    Raises:
        OptionError: pandas is not installed.
    """
    return _need("pandas", "data frames").DataFrame(_all_columns(snapshot, device))


def to_frame(answer: Any) -> Any:
    """Any answer of a snapshot as a pandas DataFrame: a curve, a sequence of dataclasses, a structured array.

    Raises:
        OptionError: pandas is not installed, or this is no answer of a snapshot.
    """
    pandas = _need("pandas", "data frames")
    if isinstance(answer, np.ndarray):
        return pandas.DataFrame(answer)
    if isinstance(answer, (tuple, list)) and all(hasattr(row, "to_dict") for row in answer):
        return pandas.DataFrame([row.to_dict() for row in answer])
    if isinstance(answer, State):
        raise OptionError("a state is two tables: to_frame(state.segments) and to_frame(state.blocks)")
    if hasattr(answer, "to_dict"):
        facts = answer.to_dict()
        return pandas.DataFrame(facts if any(isinstance(value, list) for value in facts.values()) else [facts])
    raise OptionError(f"a {type(answer).__name__} is no answer of a snapshot")


def _need(module: str, purpose: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise OptionError(f"{purpose} need {module}: pip install {module}") from None
