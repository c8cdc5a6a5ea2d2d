"""A memory snapshot of PyTorch's allocator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from ipygpumem.core.errors import OptionError, SnapshotError, SnapshotLimitError, check_argument
from ipygpumem.core.introspection import pause_gc
from ipygpumem.core.text import printable
from ipygpumem.core.units import many, parse_size
from ipygpumem.snapshot.event_range_queries import EventRangeQueries
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.queries.live_set import LiveSet, RequestedBytesPeak
from ipygpumem.snapshot.reader import top_level
from ipygpumem.snapshot.reader.entry_batches import NotColumnarError
from ipygpumem.snapshot.reader.load import ReadLimits, read_objects
from ipygpumem.snapshot.snapshot_data import check_event

if TYPE_CHECKING:
    from ipygpumem.snapshot.model.segment_history import AllocatorState
    from ipygpumem.snapshot.model.timeline import Curve
    from ipygpumem.snapshot.queries.fragmentation import Fragmentation, OomAnalysis
    from ipygpumem.snapshot.queries.groups import Group
    from ipygpumem.snapshot.replay.result import Replay
    from ipygpumem.viewer.view import View


class Snapshot(EventRangeQueries):
    """A memory snapshot, created by `load`.

    Events are identified by their index in the trace of a device. -1 represents the time before the first event. Sizes
    are *requested* sizes in bytes unless stated otherwise, as in PyTorch's memory viewer, because a file contains
    rounded sizes only for the blocks that are alive at the end. `SnapshotData` describes the attributes.
    """

    @classmethod
    @pause_gc()
    def load(
        cls, source: str | os.PathLike[str] | bytes | dict[str, Any] | list[Any], limits: ReadLimits | None = None
    ) -> Snapshot:
        """Read a snapshot without running any code that the file contains.

        Args:
            source: Path of a file, its contents as bytes, or the result of ``torch.cuda.memory._snapshot()``, which was
                a list of segments before PyTorch 2.0. A file is a pickle or JSON and may be compressed with gzip or xz.
            limits: Limits for reading the file.

        Raises:
            SnapshotError: The file cannot be read, is not a snapshot, or is damaged, unsafe or too large.
        """
        try:
            return cls._load(source, limits or ReadLimits(), columnar=True)
        except NotColumnarError:
            return cls._load(source, limits or ReadLimits(), columnar=False)

    @classmethod
    def _load(cls, source: Any, limits: ReadLimits, *, columnar: bool) -> Snapshot:
        name, root, reader = "snapshot", source, None
        if isinstance(source, (str, bytes, os.PathLike)):
            if not isinstance(source, bytes):
                name = printable(Path(os.fsdecode(source)).name)
            root, reader = read_objects(source, limits, columnar=columnar)
        try:
            return cls(top_level.top_level(root), reader, name, limits)
        except SnapshotError as error:
            raise type(error)(f"{name}: {error}") from None
        except MemoryError:
            raise SnapshotLimitError(f"{name}: not enough memory to convert the file to columns") from None

    def __repr__(self) -> str:
        events = sum(len(timeline.trace) for timeline in self.timelines)
        return f"<Snapshot {self.name}: {many(len(self.timelines), 'device')}, {many(events, 'event')}>"

    @overload
    def allocated(self, time_us: None = None, device: int | None = None) -> Curve: ...

    @overload
    def allocated(self, time_us: int, device: int | None = None) -> int: ...

    def allocated(self, time_us: int | None = None, device: int | None = None) -> Curve | int:
        """Return the total requested size of the blocks in use in bytes, after each event or at a given time.

        A freed block that another stream still uses is in use until its free is completed.

        Args:
            time_us: Time in microseconds since the Unix epoch; None to return the curve over all events.
            device: Device index; by default the device with the highest peak.

        Raises:
            OptionError: The events have no timestamps.
        """
        curve = self.timeline(device).requested
        return curve if time_us is None else curve.at(time_us)

    @overload
    def reserved(self, time_us: None = None, device: int | None = None) -> Curve | None: ...

    @overload
    def reserved(self, time_us: int, device: int | None = None) -> int | None: ...

    def reserved(self, time_us: int | None = None, device: int | None = None) -> Curve | int | None:
        """Return the total size of all segments in bytes, after each event or at a given time, as in `allocated`.

        The result is None if the file does not contain segments.
        """
        curve = self.timeline(device).reserved
        return curve if time_us is None or curve is None else curve.at(time_us)

    def peak(self, device: int | None = None) -> RequestedBytesPeak:
        """Return the peak of the requested bytes, and the allocations that are alive at the peak."""
        live = self.live(device=device)
        trace, requested = live.timeline.trace, live.timeline.requested.peak()[1]
        return RequestedBytesPeak(trace.device, requested, live.event, trace.time_of(live.event), live)

    def live(self, event: int | None = None, device: int | None = None) -> LiveSet:
        """Return the allocations alive right after an event; by default at the peak.

        Raises:
            OptionError: The event does not exist.
        """
        timeline = self.timeline(device)
        event = check_event(timeline.requested.peak()[0] if event is None else event, timeline)
        return LiveSet(self, timeline, event, timeline.allocations.live(event))

    def by_line(self, device: int | None = None) -> tuple[Group, ...]:
        """Return the allocations alive at the peak, grouped by the innermost line of user code, largest group first."""
        return self.live(device=device).by("line")

    def state_at(self, event: int, device: int | None = None) -> AllocatorState:
        """Return the segments and blocks right after an event.

        Raises:
            OptionError: The event does not exist.
        """
        timeline = self.timeline(device)
        return self.history(timeline.device).at(check_event(event, timeline))

    def fragmentation(
        self, event: int | None = None, device: int | None = None, need: int | str | None = None
    ) -> Fragmentation:
        """Measure the free memory in segments after an event (default: the last), and check whether ``need`` bytes fit.

        Raises:
            OptionError: The event does not exist, or ``need`` is not a size such as ``4096`` or ``"64 MiB"``.
        """
        from ipygpumem.snapshot.queries.fragmentation import fragmentation  # imported on first use to save memory
        from ipygpumem.snapshot.replay.block_sizes import with_block_sizes

        if need is not None:
            need = parse_size(need)
            if need <= 0:
                raise OptionError(f"the size of an allocation must be positive, but got {need:,}")
        timeline = self.timeline(device)
        event = len(timeline.trace) - 1 if event is None else event
        state, replayed = with_block_sizes(self, self.state_at(event, timeline.device))
        return fragmentation(self, state, need, replayed=replayed)

    def ooms(self, device: int | None = None, last: int | None = 100) -> tuple[OomAnalysis, ...]:
        """Return analyses of the out-of-memory errors, ordered by device and event.

        Args:
            device: Device index; None for all devices.
            last: Number of errors to analyze per device, starting from the latest; None or 0 for all errors.
        """
        from ipygpumem.snapshot.queries.fragmentation import explain_oom
        from ipygpumem.snapshot.replay.block_sizes import with_block_sizes

        if last is not None:
            check_argument("last", last, int, "a number of errors or None")
        timelines = self.timelines if device is None else [self.timeline(device)]
        states = (
            with_block_sizes(self, self.state_at(event, timeline.device))
            for timeline in timelines
            for event in timeline.trace.events(Action.OOM).tolist()[-last if last else None :]
        )
        return tuple(explain_oom(self, state, replayed=replayed) for state, replayed in states)

    def replay(
        self, settings: str | None = None, capacity: int | str | None = None, device: int | None = None
    ) -> Replay:
        """Replay the recorded requests according to the rules of PyTorch's caching allocator.

        Args:
            settings: Allocator settings in the format of ``PYTORCH_ALLOC_CONF``, such as
                ``"expandable_segments:True"``; by default the recorded settings, which reproduce the recording.
            capacity: Limit on reserved memory, such as ``"80 GiB"``; by default no limit.
            device: Device index; by default the device with the highest peak.

        Returns:
            The result, with sizes in bytes.

        Raises:
            ReplayError: The recording cannot be replayed, for example because events are missing.
            OptionError: A setting or the capacity is invalid.
        """
        from ipygpumem.snapshot.replay.result import replay

        return replay(self, device, settings, capacity)

    def encode(self) -> bytes:
        """Return all columns and tables in the format of `ipygpumem.snapshot.export.encode`."""
        from ipygpumem.snapshot.export.encode import encode

        return encode(self)

    def frame(self, device: int | None = None) -> Any:
        """Return the events of a device or of all devices as a pandas DataFrame.

        Raises:
            OptionError: pandas is not installed.
        """
        from ipygpumem.snapshot.export.event_table import events_frame

        return events_frame(self, device)

    def summary(self, device: int | None = None) -> str:
        """Return a short text: the peak, its event, and the lines of code with the largest allocations at the peak.

        By default, the text describes up to four devices, in descending order of their peaks.
        """
        from ipygpumem.snapshot.queries.overview import summary_text

        return summary_text(self, device)

    __str__ = summary

    def view(
        self,
        *others: Snapshot,
        device: int | None = None,
        source: bool = True,
        paths: bool = True,
        settings: str | None = None,
    ) -> View:
        """Return an object that notebooks display as the interactive viewer and other front ends print as a summary.

        Args:
            others: Up to seven snapshots to display next to this one.
            device: Device index for the static image; by default the device with the highest peak.
            source: Whether to include the source code of the recorded cells.
            paths: As in `to_html`.
            settings: As in `to_html`.

        Raises:
            DeviceError: The snapshot has no such device.
            OptionError: There are more than eight snapshots, or the settings are invalid.
            ReplayError: A snapshot cannot be replayed with the settings.
        """
        from ipygpumem.viewer.view import View  # on first use, because reading and querying do not require it

        return View([self, *others], device, source=source, paths=paths, settings=settings)

    def to_html(
        self,
        path: str | os.PathLike[str],
        *others: Snapshot,
        source: bool = True,
        paths: bool = True,
        theme: str = "auto",
        settings: str | None = None,
    ) -> Path:
        """Write the viewer to a self-contained HTML file and return its absolute path.

        Args:
            path: Path of the file. An existing file is replaced after the new file is complete.
            others: Up to seven snapshots to display next to this one.
            source: Whether to include the source code of the recorded cells.
            paths: Whether to include directories, the name of the snapshot file and strings in allocator settings.
                Names of functions, source files, installed packages, devices and actions, annotations, compile contexts
                and user metadata are always included.
            theme: ``"light"``, ``"dark"``, or ``"auto"`` for the setting of the system on which the file is opened.
            settings: Allocator settings in the format of ``PYTORCH_ALLOC_CONF``. The viewer then also shows reserved
                memory, segments and blocks as they would have been with these settings.

        Raises:
            OptionError: The file cannot be written, the theme does not exist, the settings are invalid, or there are
                more than eight snapshots.
            ReplayError: A snapshot cannot be replayed with the settings.
        """
        from ipygpumem.viewer.write import write_page

        return write_page(path, [self, *others], source=source, paths=paths, theme=theme, settings=settings)

    def to_png(self, path: str | os.PathLike[str], *, device: int | None = None) -> Path:
        """Write a plot of memory usage over time to a PNG file, usually of at most 60 kB. Return its absolute path.

        Args:
            path: Path of the file. An existing file is replaced after the new file is complete.
            device: Device index; by default the device with the highest peak.

        Raises:
            OptionError: The file cannot be written, or matplotlib is not installed.
            DeviceError: The snapshot has no such device.
        """
        from ipygpumem.viewer.write import write_image

        return write_image(path, self, device)
