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

    Moments are identified by events, which are indices in the device's trace. -1 is the moment before the first event.
    Bytes are *requested* bytes unless stated otherwise, as in PyTorch's own viewer: a file has rounded sizes only for
    the blocks alive at the end. Attributes are described in `SnapshotData`.
    """

    @classmethod
    def load(
        cls, source: str | os.PathLike[str] | bytes | dict[str, Any] | list[Any], limits: Limits | None = None
    ) -> Snapshot:
        """Read a snapshot. Nothing in the file is executed.

        Args:
            source: A file, its bytes, or the result of ``torch.cuda.memory._snapshot()``. Pickle or JSON, optionally
                compressed with gz or xz; a dict, or the list of segments that torch before 2.0 wrote.
            limits: Limits on the size of the file.

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
            raise SnapshotLimitError(f"{name}: there is not enough memory for its columns") from None

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
        """Requested bytes of all blocks whose free is not completed: after each event, or at a time.

        Args:
            time_us: Microseconds since 1970; None for the whole curve.
            device: The device's index; by default the device with the highest peak.

        Raises:
            OptionError: The events have no times.
        """
        curve = self.timeline(device).requested
        return curve if time_us is None else curve.at(time_us)

    @overload
    def reserved(self, time_us: None = None, device: int | None = None) -> Curve | None: ...

    @overload
    def reserved(self, time_us: int, device: int | None = None) -> int | None: ...

    def reserved(self, time_us: int | None = None, device: int | None = None) -> Curve | int | None:
        """Bytes of all segments, like `allocated`; None for a file without segments."""
        curve = self.timeline(device).reserved
        return curve if time_us is None or curve is None else curve.at(time_us)

    def peak(self, device: int | None = None) -> Peak:
        """The maximum of the requested bytes, and the allocations alive at that moment."""
        timeline = self.timeline(device)
        event, requested = timeline.requested.peak()
        return Peak(timeline.device, requested, event, timeline.trace.time_of(event), self.live(event, timeline.device))

    def live(self, event: int | None = None, device: int | None = None) -> LiveSet:
        """The allocations alive right after an event; by default at the peak.

        Raises:
            OptionError: The event does not exist.
        """
        timeline = self.timeline(device)
        event = check_event(timeline.requested.peak()[0] if event is None else event, timeline)
        return LiveSet(self, timeline, event, timeline.allocations.live(event))

    def by_line(self, device: int | None = None) -> tuple[Group, ...]:
        """The allocations alive at the peak by the innermost line of the user's own code, the largest group first."""
        return self.live(device=device).by("line")

    def state_at(self, event: int, device: int | None = None) -> AllocatorState:
        """Segments and blocks right after an event.

        Raises:
            OptionError: The event does not exist.
        """
        timeline = self.timeline(device)
        return self._history(timeline.device).at(check_event(event, timeline))

    def fragmentation(
        self, event: int | None = None, device: int | None = None, need: int | str | None = None
    ) -> Fragmentation:
        """Free memory inside the segments after an event, by default at the end, and whether ``need`` bytes would fit.

        Raises:
            OptionError: The event does not exist, or ``need`` is not a size such as ``4096`` or ``"64 MiB"``.
        """
        if need is not None:
            need = parse_size(need)
            if need <= 0:
                raise OptionError(f"the size of an allocation must be at least one byte, not {need:,}")
        timeline = self.timeline(device)
        event = len(timeline.trace) - 1 if event is None else event
        return fragmentation(self, self.state_at(event, timeline.device), need)

    def ooms(self, device: int | None = None, last: int | None = 100) -> tuple[OomAnalysis, ...]:
        """Why allocations ran out of memory, in the order of their events.

        Args:
            device: The device's index; None for all devices.
            last: How many failures of each device to explain, the latest ones; None for all. Each takes as long as
                `state_at`.
        """
        timelines = self.timelines if device is None else [self.timeline(device)]
        return tuple(
            explain_oom(self, self.state_at(event, timeline.device))
            for timeline in timelines
            for event in timeline.trace.events(Action.OOM).tolist()[-last if last else None :]
        )

    def leaks(self, first: int = -1, last: int | None = None, device: int | None = None) -> LiveSet:
        """Allocations made after event ``first`` that are alive after event ``last``, by default at the end."""
        timeline, last = self._window(first, last, device)
        return LiveSet(self, timeline, last, event_window.leaks(timeline, first, last))

    def churn(
        self, first: int = -1, last: int | None = None, device: int | None = None, key: str = "line"
    ) -> tuple[Churn, ...]:
        """Allocations made after event ``first`` up to ``last``, by a key: counts, bytes, bytes times lifetime."""
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
        """Allocations of ``at_least`` bytes that were freed within ``at_most_us``: rows as in `SHORT_LIVED`.

        Raises:
            OptionError: The events have no times.
        """
        timeline, last = self._window(first, last, device)
        return event_window.short_lived(timeline, first, last, at_least, at_most_us)

    def device_calls(self, first: int = -1, last: int | None = None, device: int | None = None) -> DeviceCalls:
        """Calls of cudaMalloc and cudaFree, and retries, after event ``first`` up to ``last``."""
        timeline, last = self._window(first, last, device)
        return event_window.device_calls(timeline, first, last)

    def growth(self, name: str, device: int | None = None) -> tuple[Step, ...]:
        """What each repetition of an annotated region left allocated.

        Raises:
            OptionError: The device has no such region.
        """
        return event_window.growth(self, self.timeline(device), name)

    def window(self, start_us: int, end_us: int, device: int | None = None) -> tuple[int, int]:
        """The events between two times, as ``first`` (the event before them) and ``last``.

        Raises:
            OptionError: The events have no times, or the end is before the start.
        """
        if start_us > end_us:
            raise OptionError(f"the end of the time span is before its start: {start_us} to {end_us}")
        trace = self.timeline(device).trace
        if not trace.timed:
            raise OptionError(f"the events of {self.name} have no times")
        first, last = np.searchsorted(trace.time, [start_us, end_us + 1]) - 1
        return int(first), int(last)

    def encode(self) -> bytes:
        """All columns and tables in the format of `ipygpumem.snapshot.export.encode`."""
        return encode(self)

    def frame(self, device: int | None = None) -> Any:
        """The events of a device, or of all, as a pandas DataFrame.

        Raises:
            OptionError: pandas is not installed.
        """
        return events_frame(self, device)

    def summary(self, device: int | None = None) -> str:
        """The peak, when it was, and the lines that used most of it, in a few lines of text."""
        return summary_text(self, device)

    def _window(self, first: int, last: int | None, device: int | None) -> tuple[Timeline, int]:
        timeline = self.timeline(device)
        last = len(timeline.trace) - 1 if last is None else last
        first, last = check_event(first, timeline), check_event(last, timeline)
        if first > last:
            raise OptionError(f"the last event of the window is before its first: {first} to {last}")
        return timeline, last
