"""Tables read from a snapshot file, and lookups in these tables."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.errors import DeviceError, OptionError, SnapshotError
from ipygpumem.core.units import many
from ipygpumem.snapshot.model.annotations import Annotation
from ipygpumem.snapshot.model.cells import CellLookup
from ipygpumem.snapshot.model.columns import HOST
from ipygpumem.snapshot.model.timeline import Timeline
from ipygpumem.snapshot.reader import top_level
from ipygpumem.snapshot.reader.load import ReadLimits
from ipygpumem.snapshot.reader.pickle_reader import PickleReader
from ipygpumem.snapshot.reader.segment_reader import read_segments
from ipygpumem.snapshot.reader.table_builder import TableBuilder
from ipygpumem.snapshot.reader.trace_reader import TraceReader

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.segment_history import SegmentHistory
    from ipygpumem.snapshot.replay.recording import ReplayError
    from ipygpumem.snapshot.replay.verification import ReplayVerification


class SnapshotData:
    """Base class of `Snapshot` that contains the tables read from a file.

    Attributes:
        name: File name, or ``"snapshot"`` if there is no file.
        timelines: Events and allocations of each device, by device index.
        segments, blocks: Segments and blocks of all devices at the end of the recording.
        stacks: Call stacks that columns refer to by index.
        texts: Strings that columns refer to by index.
        pools: Pool IDs that columns refer to by index; ``(0, 0)`` is the default pool.
        host: Traces of pinned host memory, which PyTorch 2.14 and later can record. Their device index is -1.
        host_timeline: Timeline of pinned host memory; None if it was not recorded.
        own: Metadata written by the recorder of ipygpumem.
        settings: Recorded allocator settings by name.
        sources: Source code of the recorded cells by file name.
        regions: Annotated regions of all devices as columns.
        cells: Lookup that finds the cell in which an event occurred.
        block_sizes: Results of `replay.block_sizes.block_sizes` by device index and maximum duration in seconds.
        verifications: Results of `replay.verification.cached_verification` by device index.
        zero_us: Start of the time axis in microseconds since the Unix epoch; None to start at each device's first
            event.
    """

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"verifications": {}}  # they contain functions, and are computed again

    def __init__(self, root: dict[str, Any], reader: PickleReader | None, name: str, limits: ReadLimits) -> None:
        tables = TableBuilder()
        trace_reader = TraceReader(tables, reader)
        traces = top_level.read_device_traces(root.get("device_traces", ()), limits, trace_reader)
        host_segments = self._read_segments(root, limits, tables)
        last = int(self.segments.device.max(initial=-1))
        traces.extend(trace_reader.read(device, []) for device in range(len(traces), last + 1))
        segments = self.segments if "segments" in root else None
        self.name = name
        self.zero_us: int | None = None
        self.timelines = tuple(Timeline(trace, segments, self.blocks) for trace in traces)
        self.host = top_level.read_host_traces(root.get("host_traces"), limits, trace_reader)
        host_traces = self.host or ((trace_reader.read(HOST, []),) if host_segments else ())
        segments = self.segments if host_segments else None
        self.host_timeline = Timeline(host_traces[0], segments, self.blocks) if host_traces else None
        self.settings = top_level.read_settings(root.get("allocator_settings"), tables.budget)
        self.regions = top_level.read_annotations(root.get("external_annotations", ()))
        self.own = top_level.read_recorder_metadata(root.get("ipygpumem"), limits.devices, tables.budget)
        self.sources = top_level.read_sources(root.get("source_code"), tables.budget)
        self.stacks = tables.stacks.table()
        self.texts: tuple[str, ...] = tuple(tables.texts)
        self.pools = tables.pool_ids()
        self.cells = CellLookup(self.own.cells, self.stacks, self.own.execution_counts)
        self._source_lines: dict[str, list[str]] = {}
        self._short_files: dict[str, str] = {}
        self._histories: dict[int, SegmentHistory] = {}
        self.verifications: dict[int, ReplayVerification | ReplayError] = {}
        self.block_sizes: dict[tuple[int, float], NDArray[np.int64] | None] = {}

    def _read_segments(self, root: dict[str, Any], limits: ReadLimits, tables: TableBuilder) -> bool:
        """Read all segments, and return whether these include segments of pinned host memory in a known format."""
        arguments = root.get("segments", ()), limits.devices, tables
        with contextlib.suppress(SnapshotError):  # PyTorch may change the format of host_segments
            if host_segments := top_level.host_segments(root.get("host_segments", ())):
                self.segments, self.blocks = read_segments(*arguments, host_segments)
                return True
        self.segments, self.blocks = read_segments(*arguments)
        return False

    def timeline(self, device: int | None = None) -> Timeline:
        """Return the timeline of a device; by default of the device with the highest peak.

        Raises:
            DeviceError: The snapshot has no such device.
        """
        if device is None:
            if not self.timelines:
                raise DeviceError(f"{self.name} contains no data for any device")
            return max(self.timelines, key=lambda timeline: timeline.requested.peak()[1])
        _check_device(device)
        if not 0 <= device < len(self.timelines):
            raise DeviceError(f"{self.name} has no device {device}: it has {many(len(self.timelines), 'device')}")
        return self.timelines[device]

    def annotations(self, device: int | None = None) -> tuple[Annotation, ...]:
        """Return the annotated regions of a device or of all devices, ordered by start.

        Raises:
            DeviceError: ``device`` is not an integer.
        """
        if device is not None:
            _check_device(device)
        return self.regions.regions(device)

    def source_line(self, file: str, line: int) -> str | None:
        """Return a line of source code without indentation, or None if the snapshot does not contain it."""
        if file not in self._source_lines:
            lines = self._source_lines[file] = self.sources.get(file, "").splitlines()
            for number, text in enumerate(lines):
                lines[number] = text.strip()  # a second list would need twice as much memory
        lines = self._source_lines[file]
        return lines[line - 1] if 0 < line <= len(lines) else None

    def short_file(self, file: str, times: NDArray[np.int64] | None = None) -> str:
        """Return a short name of a source file: the label of a cell, or the last two parts of another file's path.

        If ``times`` is given and each time is within a run of the cell, the label names only the runs at these times.
        """
        runs = self.cells.runs_of(file) if times is None else self.cells.runs_at(file, times)
        if runs is None and file not in self._short_files:
            self._short_files[file] = "/".join(file.replace("\\", "/").rsplit("/", 2)[-2:])
        return runs or self._short_files[file]

    def clear_caches(self) -> None:
        """Clear the caches. Call this method after replacing a table."""
        self._source_lines, self._histories, self.verifications, self.block_sizes = {}, {}, {}, {}

    def history(self, device: int) -> SegmentHistory:
        """Return the segments of a device with the events that allocated and freed them."""
        if device not in self._histories:
            from ipygpumem.snapshot.model.segment_history import SegmentHistory  # on first use, to save memory

            self._histories[device] = SegmentHistory(self.timelines[device], self.segments, self.blocks)
        return self._histories[device]


def _check_device(device: int) -> None:
    if isinstance(device, bool) or not isinstance(device, (int, np.integer)):
        raise DeviceError(f"{device!r} is not a device index: expected an integer")


def check_event(event: int, timeline: Timeline) -> int:
    if isinstance(event, bool) or not isinstance(event, (int, np.integer)):
        raise OptionError(f"{event!r} is not an event index: expected an integer")
    count = len(timeline.trace)
    if not -1 <= event < count:
        raise OptionError(f"device {timeline.device} has no event {event}: it has {many(count, 'event')}")
    return int(event)
