"""A snapshot of PyTorch's allocator: columns, and the questions they answer."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ipygpumem.core.errors import DeviceError, OptionError, SnapshotError, SnapshotLimitError
from ipygpumem.core.units import MIB, parse_size
from ipygpumem.snapshot.display_methods import DisplayMethods
from ipygpumem.snapshot.export.encode import encode
from ipygpumem.snapshot.export.event_table import events_frame
from ipygpumem.snapshot.model.annotations import Annotation, read_annotations
from ipygpumem.snapshot.model.cells import Cells
from ipygpumem.snapshot.model.recorder_metadata import Own, read_own, read_sources
from ipygpumem.snapshot.model.segment_history import SegmentHistory, State
from ipygpumem.snapshot.model.segments import Blocks, Segments, read_segments
from ipygpumem.snapshot.model.stacks import unpack_pool
from ipygpumem.snapshot.model.timeline import Curve, Timeline
from ipygpumem.snapshot.model.trace import Action, read_trace
from ipygpumem.snapshot.queries.event_window import (
    Churn,
    DeviceCalls,
    Step,
    churn,
    device_calls,
    growth,
    leaks,
    short_lived,
)
from ipygpumem.snapshot.queries.fragmentation import Fragmentation, fragmentation
from ipygpumem.snapshot.queries.live_set import LiveSet, Peak
from ipygpumem.snapshot.queries.oom_reason import Oom, explain_oom
from ipygpumem.snapshot.queries.overview import summary_text
from ipygpumem.snapshot.reader.limits import Limits
from ipygpumem.snapshot.reader.load import one_line, read_objects
from ipygpumem.snapshot.reader.table_builder import Book
from ipygpumem.snapshot.reader.top_level import device_traces, host_traces, plain_settings, top

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.queries.groups import Group
    from ipygpumem.snapshot.reader.pickle_reader import Run

__all__ = ["Snapshot"]


class Snapshot(DisplayMethods):
    """A memory snapshot. Make one with `load`.

    A moment is named by an event: its index in the device's trace. -1 is the moment before the first event. Bytes are
    *requested* bytes where nothing else is said, as in PyTorch's own viewer: rounded sizes are in the file for the
    blocks alive at the end only.

    Attributes:
        name: File name, or ``"snapshot"``.
        timelines: The history of each device, by index.
        segments: Segments at the end, of all devices.
        blocks: Blocks at the end, of all devices.
        stacks: All call stacks.
        texts: Texts that columns refer to.
        pools: Pool ids that columns refer to; (0, 0) is the default pool.
        host: Events of pinned host memory, as torch 2.14 and later can record them; device -1.
        settings: The allocator's settings.
        own: What our own recorder added.
        sources: Source text by file name.
        cells: Finds the cell of an event.
        zero_us: Where the viewer counts times from, in microseconds since 1970; None: from each device's first event.
    """

    def __init__(self, root: dict[str, Any], book: Book, name: str, limits: Limits) -> None:
        columns = device_traces(root.get("device_traces", ()), limits, book)
        self.segments: Segments
        self.blocks: Blocks
        self.segments, self.blocks = read_segments(root.get("segments", ()), limits.devices, book)
        last = int(self.segments.device.max(initial=-1))
        columns.extend(read_trace(device, [], book) for device in range(len(columns), last + 1))
        known = self.segments if "segments" in root else None
        self.name = name
        self.zero_us: int | None = None
        self.timelines = tuple(Timeline(trace, known, self.blocks) for trace in columns)
        self.host = host_traces(root.get("host_traces"), book)
        self.settings = plain_settings(root.get("allocator_settings"))
        self._annotations: tuple[Annotation, ...] = read_annotations(root.get("external_annotations", ()))
        self.own: Own = read_own(root.get("ipygpumem"))
        self.sources = read_sources(root.get("source_code"))
        self.stacks = book.stacks.table()
        self.texts: tuple[str, ...] = tuple(book.texts)
        self.pools: tuple[tuple[int, int], ...] = tuple(map(unpack_pool, book.pools))
        self.cells = Cells(self.own.cells, self.stacks, self.own.numbers)
        self._split: dict[str, list[str]] = {}
        self._histories: dict[int, SegmentHistory] = {}

    @classmethod
    def load(
        cls, source: str | os.PathLike[str] | bytes | dict[str, Any] | list[Any], limits: Limits | None = None
    ) -> Snapshot:
        """Read a snapshot.

        Args:
            source: A file, its bytes, or what ``torch.cuda.memory._snapshot()`` returns. Pickle or JSON, also packed
                with gz or xz; a dict, or the bare list of segments of torch before 2.0.
            limits: Bounds on what is read.

        Raises:
            SnapshotError: The file cannot be read, is no snapshot, or a broken or dangerous one.
        """
        limits = limits or Limits()
        memo: list[Any] = []
        runs: list[Run] = []
        name = "snapshot"
        root: Any = source
        if isinstance(source, (str, bytes, os.PathLike)):
            if not isinstance(source, bytes):
                name = one_line(Path(os.fsdecode(source)).name)
            root, memo, runs = read_objects(source, limits)
        try:
            return cls(top(root), Book(memo, runs), name, limits)
        except SnapshotError as problem:
            raise type(problem)(f"{name}: {problem}") from None
        except MemoryError:
            raise SnapshotLimitError(f"{name}: there is not enough memory for its columns") from None

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        events = sum(len(timeline.trace) for timeline in self.timelines)
        return f"<Snapshot {self.name}: {len(self.timelines)} devices, {events:,} events>"

    def timeline(self, device: int | None = None) -> Timeline:
        """The history of a device; without a number that of the device with the highest peak.

        Raises:
            DeviceError: The file has no such device.
        """
        if device is None:
            if not self.timelines:
                raise DeviceError(f"{self.name} holds no device")
            return max(self.timelines, key=lambda timeline: timeline.requested.peak()[1])
        _check_device(device)
        if not 0 <= device < len(self.timelines):
            raise DeviceError(f"{self.name} has no device {device}: it has {len(self.timelines)}")
        return self.timelines[device]

    @overload
    def allocated(self, time_us: None = None, device: int | None = None) -> Curve: ...

    @overload
    def allocated(self, time_us: int, device: int | None = None) -> int: ...

    def allocated(self, time_us: int | None = None, device: int | None = None) -> Curve | int:
        """Requested bytes of blocks that are not freed completely: after each event, or at a time.

        Args:
            time_us: Microseconds since 1970; without it the whole curve.
            device: Its index; without it the device with the highest peak.

        Raises:
            OptionError: The file has no times.
        """
        curve = self.timeline(device).requested
        return curve if time_us is None else curve.at(time_us)

    @overload
    def reserved(self, time_us: None = None, device: int | None = None) -> Curve | None: ...

    @overload
    def reserved(self, time_us: int, device: int | None = None) -> int | None: ...

    def reserved(self, time_us: int | None = None, device: int | None = None) -> Curve | int | None:
        """Bytes of all segments, as `allocated`; None where the file has no segments to reckon back from."""
        curve = self.timeline(device).reserved
        return curve if time_us is None or curve is None else curve.at(time_us)

    def peak(self, device: int | None = None) -> Peak:
        """The highest point of the requested bytes, exact, with what lived then."""
        timeline = self.timeline(device)
        event, requested = timeline.requested.peak()
        return Peak(timeline.device, requested, event, timeline.trace.time_of(event), self.live(event, timeline.device))

    def live(self, event: int | None = None, device: int | None = None) -> LiveSet:
        """What lives right after an event; without one, at the peak.

        Raises:
            OptionError: There is no such event.
        """
        timeline = self.timeline(device)
        if event is None:
            event = timeline.requested.peak()[0]
        event = self._check_event(event, timeline)
        return LiveSet(self, timeline, event, timeline.allocations.live(event))

    def by_line(self, device: int | None = None) -> tuple[Group, ...]:
        """What lives at the peak, by the innermost line of the user's own code, the largest first."""
        return self.live(device=device).by("line")

    def state_at(self, event: int, device: int | None = None) -> State:
        """Segments and blocks right after an event.

        Raises:
            OptionError: There is no such event.
        """
        timeline = self.timeline(device)
        return self._history(timeline.device).at(self._check_event(event, timeline))

    def fragmentation(
        self, event: int | None = None, device: int | None = None, need: int | str | None = None
    ) -> Fragmentation:
        """Free memory inside the segments after an event, or at the end; and where ``need`` bytes would fit.

        Raises:
            OptionError: There is no such event, or no such size (``4096``, ``"64 MiB"``).
        """
        if need is not None:
            need = parse_size(need)
            if need <= 0:
                raise OptionError(f"an allocation has a byte or more, not {need:,}")
        timeline = self.timeline(device)
        event = len(timeline.trace) - 1 if event is None else event
        return fragmentation(self, self.state_at(event, timeline.device), need)

    def ooms(self, device: int | None = None, last: int | None = 100) -> tuple[Oom, ...]:
        """Why allocations failed that ran out of memory, in the order of their events.

        Args:
            device: Its index; without it all devices.
            last: Only so many of each device, the last ones; None for all. Each takes as long as `state_at`.
        """
        devices = range(len(self.timelines)) if device is None else [self.timeline(device).device]
        return tuple(
            explain_oom(self, self.state_at(event, one))
            for one in devices
            for event in self.timelines[one].trace.events(Action.OOM).tolist()[-last if last else None :]
        )

    def leaks(self, first: int = -1, last: int | None = None, device: int | None = None) -> LiveSet:
        """What was allocated after event ``first`` and is alive after event ``last`` (without one: at the end)."""
        timeline, last = self._window(first, last, device)
        return LiveSet(self, timeline, last, leaks(timeline, first, last))

    def churn(
        self, first: int = -1, last: int | None = None, device: int | None = None, key: str = "line"
    ) -> tuple[Churn, ...]:
        """Allocations made after event ``first`` up to ``last``, by a key: counts, bytes, bytes times lifetime."""
        timeline, last = self._window(first, last, device)
        return churn(self, timeline, first, last, key)

    def short_lived(
        self,
        first: int = -1,
        last: int | None = None,
        device: int | None = None,
        *,
        at_least: int = MIB,
        at_most_us: int = 1000,
    ) -> NDArray[Any]:
        """Allocations of ``at_least`` bytes that were gone within ``at_most_us``: rows as in `SHORT_LIVED`.

        Raises:
            OptionError: The file has no times.
        """
        timeline, last = self._window(first, last, device)
        return short_lived(timeline, first, last, at_least, at_most_us)

    def device_calls(self, first: int = -1, last: int | None = None, device: int | None = None) -> DeviceCalls:
        """Calls of cudaMalloc and cudaFree, and retries, after event ``first`` up to ``last``."""
        timeline, last = self._window(first, last, device)
        return device_calls(timeline, first, last)

    def growth(self, name: str, device: int | None = None) -> tuple[Step, ...]:
        """What each repetition of an annotated region left behind.

        Raises:
            OptionError: The file has no such region on that device.
        """
        return growth(self, self.timeline(device), name)

    def window(self, start_us: int, end_us: int, device: int | None = None) -> tuple[int, int]:
        """The events of a span of time, as ``first`` (the one before it) and ``last``.

        Raises:
            OptionError: The file has no times, or the span ends before it begins.
        """
        if start_us > end_us:
            raise OptionError(f"the span ends before it begins: from {start_us} to {end_us}")
        trace = self.timeline(device).trace
        if not trace.timed:
            raise OptionError(f"{self.name} has no times")
        first, last = np.searchsorted(trace.time, [start_us, end_us + 1]) - 1
        return int(first), int(last)

    def forget(self) -> None:
        """Drop what was worked out from the tables, after these have been replaced."""
        self._split, self._histories = {}, {}

    def encode(self) -> bytes:
        """All columns and tables packed, as `ipygpumem.snapshot.export.encode` describes."""
        return encode(self)

    def frame(self, device: int | None = None) -> Any:
        """The events of a device, or of all, as a pandas DataFrame.

        Raises:
            OptionError: pandas is not installed.
        """
        return events_frame(self, device)

    def annotations(self, device: int | None = None) -> tuple[Annotation, ...]:
        """Annotated regions, START and END paired, by their beginning: those of a device, or of all.

        Raises:
            DeviceError: That is no device's number.
        """
        if device is not None:
            _check_device(device)
        return tuple(one for one in self._annotations if device is None or one.device == device)

    def source_line(self, file: str, line: int) -> str | None:
        """The text of a line, where the snapshot carries the file's source."""
        lines = self._lines(file)
        return lines[line - 1].strip() if 0 < line <= len(lines) else None

    def short_file(self, file: str, times: NDArray[np.int64] | None = None) -> str:
        """A file's name for people: In[n] for a cell, else its last two parts.

        Args:
            file: Its name.
            times: Microseconds since 1970 of what happened in it: they tell which run of a cell it was.
        """
        runs = self.cells.runs_of(file) if times is None else self.cells.runs_at(file, times)
        return runs or "/".join(file.replace("\\", "/").split("/")[-2:])

    def summary(self, device: int | None = None) -> str:
        """The answer in a few lines: the peak, when it was, and the lines that hold most of it."""
        return summary_text(self, device)

    def _check_event(self, event: int, timeline: Timeline) -> int:
        if isinstance(event, bool) or not isinstance(event, (int, np.integer)):
            raise OptionError(f"{event!r} is no event: an event is a whole number")
        if not -1 <= event < len(timeline.trace):
            raise OptionError(f"device {timeline.device} has no event {event}: it has {len(timeline.trace):,}")
        return int(event)

    def _window(self, first: int, last: int | None, device: int | None) -> tuple[Timeline, int]:
        timeline = self.timeline(device)
        last = len(timeline.trace) - 1 if last is None else last
        first, last = self._check_event(first, timeline), self._check_event(last, timeline)
        if first > last:
            raise OptionError(f"the window ends before it begins: from event {first} to {last}")
        return timeline, last

    def pools_at(self, device: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The number of the pool of the segment that held each allocation when it was made; -1 where nobody knows."""
        return self._history(device).pools(rows)

    def _history(self, device: int) -> SegmentHistory:
        if device not in self._histories:
            self._histories[device] = SegmentHistory(self.timelines[device], self.segments, self.blocks)
        return self._histories[device]

    def _lines(self, file: str) -> list[str]:
        if file not in self._split:
            self._split[file] = self.sources.get(file, "").splitlines()
        return self._split[file]


def _check_device(device: int) -> None:
    if isinstance(device, bool) or not isinstance(device, (int, np.integer)):
        raise DeviceError(f"{device!r} is no device: a device is a whole number")
