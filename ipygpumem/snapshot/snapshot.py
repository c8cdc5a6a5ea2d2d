"""A memory snapshot of PyTorch's allocator."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from ipygpumem.core.errors import OptionError, SnapshotError, SnapshotLimitError
from ipygpumem.core.units import MIB, parse_size
from ipygpumem.snapshot.display_methods import DisplayMethods
from ipygpumem.snapshot.export.encode import encode
from ipygpumem.snapshot.export.event_table import events_frame
from ipygpumem.snapshot.model.trace import Action
from ipygpumem.snapshot.queries import event_window
from ipygpumem.snapshot.queries.fragmentation import Fragmentation, OomAnalysis, explain_oom, fragmentation
from ipygpumem.snapshot.queries.live_set import LiveSet, Peak
from ipygpumem.snapshot.queries.overview import summary_text
from ipygpumem.snapshot.reader import top_level
from ipygpumem.snapshot.reader.entry_batches import NotColumnarError
from ipygpumem.snapshot.reader.load import Limits, one_line, read_objects
from ipygpumem.snapshot.snapshot_data import SnapshotData, check_event

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.segment_history import AllocatorState
    from ipygpumem.snapshot.model.timeline import Curve, Timeline
    from ipygpumem.snapshot.queries.event_window import Churn, DeviceCalls, Step
    from ipygpumem.snapshot.queries.groups import Group


class Snapshot(SnapshotData, DisplayMethods):
    """A memory snapshot, created by `load`.

    Moments are identified by events, which are indices in the trace of a device. -1 is the moment before the first
    event. Sizes are *requested* sizes in bytes unless stated otherwise, as in PyTorch's memory viewer, because a
    file contains rounded sizes only for the blocks alive at the end. Attributes are described in `SnapshotData`.
    """

    @classmethod
    def load(
        cls, source: str | os.PathLike[str] | bytes | dict[str, Any] | list[Any], limits: Limits | None = None
    ) -> Snapshot:
        """Read a snapshot without executing its contents.

        Args:
            source: Path of a file, its contents as bytes, or the result of ``torch.cuda.memory._snapshot()``. Files are
                pickle or JSON, optionally compressed with gzip or xz. torch before 2.0 returned a list of segments.
            limits: Limits for reading the file.

        Raises:
            SnapshotError: The file cannot be read, is not a snapshot, or is damaged, unsafe or too large.
        """
        try:
            return cls._load(source, limits or Limits(), columnar=True)
        except NotColumnarError:
            return cls._load(source, limits or Limits(), columnar=False)

    @classmethod
    def _load(cls, source: Any, limits: Limits, *, columnar: bool) -> Snapshot:
        name, root, reader = "snapshot", source, None
        if isinstance(source, (str, bytes, os.PathLike)):
            if not isinstance(source, bytes):
                name = one_line(Path(os.fsdecode(source)).name)
            root, reader = read_objects(source, limits, columnar=columnar)
        try:
            return cls(top_level.top_level(root), reader, name, limits)
        except SnapshotError as error:
            raise type(error)(f"{name}: {error}") from None
        except MemoryError:
            raise SnapshotLimitError(f"{name}: not enough memory for the columns of the file") from None

    def __str__(self) -> str:
        return self.summary()

    def __repr__(self) -> str:
        events = sum(len(timeline.trace) for timeline in self.timelines)
        return f"<Snapshot {self.name}: {len(self.timelines)} devices, {events:,} events>"

    @overload
    def allocated(self, time_us: None = None, device: int | None = None) -> Curve: ...

    @overload
    def allocated(self, time_us: int, device: int | None = None) -> int: ...

    def allocated(self, time_us: int | None = None, device: int | None = None) -> Curve | int:
        """Return the requested bytes of all blocks whose free is not completed, after each event or at a time.

        Args:
            time_us: Time in microseconds since the Unix epoch; None for the curve of all events.
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
        """Return the total size of all segments, like `allocated`; None for a file without segments."""
        curve = self.timeline(device).reserved
        return curve if time_us is None or curve is None else curve.at(time_us)

    def peak(self, device: int | None = None) -> Peak:
        """Return the maximum of the requested bytes together with the allocations alive at that event."""
        timeline = self.timeline(device)
        event, requested = timeline.requested.peak()
        return Peak(timeline.device, requested, event, timeline.trace.time_of(event), self.live(event, timeline.device))

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
        return self._history(timeline.device).at(check_event(event, timeline))

    def fragmentation(
        self, event: int | None = None, device: int | None = None, need: int | str | None = None
    ) -> Fragmentation:
        """Return the free memory inside segments after an event (by default the last), and whether ``need`` bytes fit.

        Raises:
            OptionError: The event does not exist, or ``need`` is not a size such as ``4096`` or ``"64 MiB"``.
        """
        if need is not None:
            need = parse_size(need)
            if need <= 0:
                raise OptionError(f"the size of an allocation must be positive, not {need:,}")
        timeline = self.timeline(device)
        event = len(timeline.trace) - 1 if event is None else event
        return fragmentation(self, self.state_at(event, timeline.device), need)

    def ooms(self, device: int | None = None, last: int | None = 100) -> tuple[OomAnalysis, ...]:
        """Return the analyses of out-of-memory errors in the order of their events.

        Args:
            device: Device index; None for all devices.
            last: Maximum number of errors per device; the latest are analyzed. None for all.
        """
        timelines = self.timelines if device is None else [self.timeline(device)]
        return tuple(
            explain_oom(self, self.state_at(event, timeline.device))
            for timeline in timelines
            for event in timeline.trace.events(Action.OOM).tolist()[-last if last else None :]
        )

    def leaks(self, first: int = -1, last: int | None = None, device: int | None = None) -> LiveSet:
        """Return the allocations after event ``first`` that are alive after event ``last``, by default the end."""
        timeline, last = self._window(first, last, device)
        return LiveSet(self, timeline, last, event_window.leaks(timeline, first, last))

    def churn(
        self, first: int = -1, last: int | None = None, device: int | None = None, key: str = "line"
    ) -> tuple[Churn, ...]:
        """Return counts, sizes and lifetimes of allocations after event ``first`` up to ``last``, grouped by a key."""
        timeline, last = self._window(first, last, device)
        return event_window.churn(self, timeline, first, last, key)

    def short_lived(
        self,
        first: int = -1,
        last: int | None = None,
        device: int | None = None,
        *,
        at_least: int = MIB,
        at_most_us: int = 1000,
    ) -> NDArray[Any]:
        """Return allocations of at least ``at_least`` bytes freed within ``at_most_us`` as `SHORT_LIVED` rows.

        Raises:
            OptionError: The events have no timestamps.
        """
        timeline, last = self._window(first, last, device)
        return event_window.short_lived(timeline, first, last, at_least, at_most_us)

    def device_calls(self, first: int = -1, last: int | None = None, device: int | None = None) -> DeviceCalls:
        """Count the cudaMalloc and cudaFree calls and retries after event ``first`` up to ``last``."""
        timeline, last = self._window(first, last, device)
        return event_window.device_calls(timeline, first, last)

    def growth(self, name: str, device: int | None = None) -> tuple[Step, ...]:
        """Return the memory growth in each repetition of an annotated region.

        Raises:
            OptionError: The device has no region of this name.
        """
        return event_window.growth(self, self.timeline(device), name)

    def window(self, start_us: int, end_us: int, device: int | None = None) -> tuple[int, int]:
        """Return a tuple ``(first, last)``: the event before a time span and the last event in it.

        Raises:
            OptionError: The events have no timestamps, or the end is before the start.
        """
        if start_us > end_us:
            raise OptionError(f"the time span ends before it starts: {start_us} to {end_us}")
        trace = self.timeline(device).trace
        if not trace.timed:
            raise OptionError(f"the events of {self.name} have no timestamps")
        first, last = np.searchsorted(trace.time, [start_us, end_us + 1]) - 1
        return int(first), int(last)

    def encode(self) -> bytes:
        """Return all columns and tables in the format of `ipygpumem.snapshot.export.encode`."""
        return encode(self)

    def frame(self, device: int | None = None) -> Any:
        """Return the events of a device or of all devices as a pandas DataFrame.

        Raises:
            OptionError: pandas is not installed.
        """
        return events_frame(self, device)

    def summary(self, device: int | None = None) -> str:
        """Return a short text with the peak, its event and the lines of code that allocated most of it."""
        return summary_text(self, device)

    def _window(self, first: int, last: int | None, device: int | None) -> tuple[Timeline, int]:
        timeline = self.timeline(device)
        last = len(timeline.trace) - 1 if last is None else last
        first, last = check_event(first, timeline), check_event(last, timeline)
        if first > last:
            raise OptionError(f"the window ends before it starts: events {first} to {last}")
        return timeline, last
