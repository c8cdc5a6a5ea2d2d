"""Record allocation history and save it in snapshot files, with additional keys that snapshot/FORMAT.md describes."""

from __future__ import annotations

import pickle
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.errors import RecordingError, first_line
from ipygpumem.core.files import atomic_write
from ipygpumem.core.introspection import pause_gc
from ipygpumem.core.reading import Reading
from ipygpumem.core.report import RecordingInfo
from ipygpumem.core.version import __version__
from ipygpumem.measurement.allocation_history import (
    AllocationHistory,
    RecordingOptions,
    remove_stacks,
    remove_stacks_between,
)
from ipygpumem.measurement.observers import BackwardPassRecorder
from ipygpumem.measurement.runtime import EventPosition, Runtime, event_position
from ipygpumem.measurement.sampler import SampleWindow, add_reserved_usage, sampled_curves
from ipygpumem.sources.allocator import memory_limit

_SCHEMA = 1
_PICKLE_PROTOCOL = 4
"""Pickle protocol 5, the default since Python 3.14, cannot be read by pytorch.org/memory_viz (pytorch#183842)."""


@dataclass(frozen=True, slots=True)
class CellInfo:
    """Cell that ran during a recording.

    Attributes:
        number: Execution count; None if the cell has none.
        filename: File name under which IPython compiled the cell.
        start_us, end_us: Start and end time in microseconds since the Unix epoch.
        success: Whether the cell ended without an error; None if it was still running.
    """

    number: int | None
    filename: str | None
    start_us: int
    end_us: int
    success: bool | None


class AllocationRecorder:
    """Recorder of allocation history from `start` to `stop`. The recording can be saved several times.

    The constructor raises the same exceptions as the constructor of `AllocationHistory`.

    Attributes:
        cells: Cells that have finished since the start.
        keep_snapshot: Whether `save` also stores the snapshot in ``snapshot`` if it writes a file.
        snapshot: Last stored snapshot, including this package's keys. It is set to None after it has been read.
        begin_position: Position in the sequence of allocation events at the start.
        end_position: Position in the sequence of allocation events at the last snapshot.
        windows: Samples of device memory usage since the start.
        backward_passes: Recorder of the backward passes since the start; None if stacks of frees are not recorded.
    """

    def __init__(self, runtime: Runtime, options: RecordingOptions | None = None) -> None:
        self._runtime = runtime
        self.history = AllocationHistory(runtime.active_recording, options or RecordingOptions())
        self.cells: list[CellInfo] = []
        self.keep_snapshot = False
        self.snapshot: dict[str, Any] | None = None
        self.begin_position: EventPosition = {}
        self.end_position: EventPosition = {}
        self.windows: list[SampleWindow] = []
        self.backward_passes = BackwardPassRecorder(self.history.pause) if self.history.context == "all" else None
        self._before: Reading | None = None

    def start(self, before: Reading | None = None) -> None:
        self._before = before or self._runtime.monitor.read()
        self.history.start()
        self.begin_position = event_position()
        if self.backward_passes is not None:
            self.backward_passes.start()

    def save(
        self,
        path: Path | None,
        *,
        sources: Mapping[str, str],
        numbers: Mapping[str, int],
        cell: CellInfo | None = None,
        after: Reading | None = None,
        variables: Sequence[Mapping[str, Any]] = (),
    ) -> RecordingInfo:
        """Save the events recorded so far. If saving fails, the result contains the error message.

        ``path``: Path of the snapshot file; None stores the snapshot only in ``snapshot``.
        ``cell``: The current cell if it is not yet in ``cells``.
        ``after``: The current reading; if it is None, the devices are read.
        ``variables``: Names of variables that hold blocks, in the format of ``variables`` in snapshot/FORMAT.md.
        """
        try:
            snapshot, dropped = self._snapshot(sources, numbers, cell, after or self._runtime.monitor.read())
            snapshot["ipygpumem"]["variables"] = list(variables)
            if self.keep_snapshot or path is None:
                self.snapshot = snapshot
            size = 0 if path is None else write_snapshot(path, snapshot)
        except RecordingError as error:
            return RecordingInfo(path=None, own=self.history.own, error=str(error))
        except Exception as error:
            reason = f"the snapshot could not be created: {first_line(error)}"
            return RecordingInfo(path=None, own=self.history.own, error=reason)
        events = sum(map(len, snapshot.get("device_traces", ())))
        all_dropped = None if None in dropped else sum(count or 0 for count in dropped)
        name = None if path is None else str(path)
        return RecordingInfo(name, size, events, all_dropped, own=self.history.own, error=self.history.lost)

    def _snapshot(
        self, sources: Mapping[str, str], numbers: Mapping[str, int], cell: CellInfo | None, after: Reading
    ) -> tuple[dict[str, Any], list[int | None]]:
        history, before = self.history, self._before or after
        options = history.options
        ended_us = time.time_ns() // 1000
        self.end_position = event_position()
        snapshot = history.take()
        dropped = history.dropped(snapshot)
        self._remove_stacks_of_frees(snapshot)
        if self.windows:
            add_reserved_usage(snapshot, self.windows, history.started_us, dropped)
        names = _recorded_file_names(snapshot)
        snapshot["ipygpumem"] = {
            "schema": _SCHEMA,
            "version": __version__,
            "torch": str(history.torch.__version__),
            "host": platform.node(),
            "started_us": history.started_us,
            "ended_us": ended_us,
            "recording": {
                "own": history.own,
                "stacks": options.stacks if history.own else None,
                "context": history.context if history.own else None,
                "max_entries": options.max_entries if history.own else None,
                "dropped": dropped,
            },
            "cells": [asdict(recorded_cell) for recorded_cell in (*self.cells, cell) if recorded_cell is not None],
            "numbers": {name: numbers[name] for name in sorted(names & numbers.keys())},
            "devices": [
                {
                    "index": device.index,
                    "name": device.label,
                    "uuid": device.uuid,
                    "total": device.total,
                    "limit": memory_limit(device.index),
                    "threads": device.threads,
                }
                for device in self._runtime.monitor.devices.values()
            ],
            "readings": {"before": before.to_dict()["devices"], "after": after.to_dict()["devices"]},
            "curves": sampled_curves(self.windows, before.devices, after.devices),
        }
        snapshot["source_code"] = {name: sources[name] for name in sorted(names & sources.keys())}
        return snapshot, dropped

    def _remove_stacks_of_frees(self, snapshot: dict[str, Any]) -> None:
        history, passes = self.history, self.backward_passes
        if not history.own or (history.context == "all" and not history.pauses):
            return
        for device, trace in enumerate(snapshot.get("device_traces", ())):
            counted = sum(event["action"] in {"alloc", "free_requested"} for event in trace)
            first = self.end_position.get(device, 0) - counted
            complete = first >= self.begin_position.get(device, 0) and not history.options.extra.get("skip_actions")
            if history.pauses and passes is not None and not passes.running and complete:
                spans = ((span.begin.get(device, 0), span.end.get(device, 0)) for span in passes.passes)
                remove_stacks_between(trace, ((begin - first, end - first) for begin, end in spans))
            else:
                remove_stacks(trace)

    def stop(self) -> None:
        if self.backward_passes is not None:
            self.backward_passes.stop()
        self.history.stop()


def write_snapshot(path: Path, snapshot: dict[str, Any]) -> int:
    """Return the size of the file in bytes. Raises `RecordingError` if the file cannot be written."""
    with atomic_write(path, "the snapshot ", RecordingError) as file, pause_gc():
        pickle.dump(snapshot, file, protocol=_PICKLE_PROTOCOL)
        return file.tell()


def _recorded_file_names(snapshot: Mapping[str, Any]) -> set[str]:
    # iterators instead of nested loops, because there may be millions of frames
    pinned = (event for event in snapshot.get("host_traces") or () if isinstance(event, dict) and "action" in event)
    events = chain(chain.from_iterable(snapshot.get("device_traces", ())), pinned)
    allocated = (event["frames"] for event in events if event["action"] == "alloc" and "frames" in event)
    blocks = chain.from_iterable(map(itemgetter("blocks"), snapshot.get("segments", ())))
    live = (block["frames"] for block in blocks if block.get("frames"))
    return set(map(itemgetter("filename"), chain.from_iterable(chain(allocated, live))))
