"""One device's history: its events, its allocations, and the bytes that they add up to."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot.model.allocations import BEFORE, pair_events
from ipygpumem.snapshot.model.trace import Action

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.segments import Blocks, Segments
    from ipygpumem.snapshot.model.trace import Trace

    Ints = NDArray[np.int64]

__all__ = ["Curve", "Timeline"]


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Bytes after each event.

    Attributes:
        device: The device's index.
        what: What is counted.
        event: int64; the first is -1, the moment before the first event.
        time_us: int64, microseconds since 1970; -1 if unknown.
        bytes: int64.
    """

    device: int
    what: str
    event: Ints
    time_us: Ints
    bytes: Ints

    def __len__(self) -> int:
        return len(self.event)

    def peak(self) -> tuple[int, int]:
        """The first event after which the bytes are highest, and the bytes."""
        row = int(np.argmax(self.bytes))
        return int(self.event[row]), int(self.bytes[row])

    def at(self, time_us: int) -> int:
        """The bytes at a time in microseconds since 1970: after the last event up to then.

        Raises:
            OptionError: The events have no times.
        """
        if isinstance(time_us, bool) or not isinstance(time_us, (int, float, np.number)) or time_us != time_us:  # noqa: PLR0124 (NaN)
            raise OptionError(f"{time_us!r} is not a time: expected microseconds since 1970")
        if len(self) > 1 and self.time_us[-1] < 0:
            raise OptionError("the events of this snapshot have no times: use event numbers instead")
        return int(self.bytes[max(int(np.searchsorted(self.time_us, time_us, side="right")) - 1, 0)])

    def to_dict(self) -> dict[str, Any]:
        """The curve as plain values."""
        columns = {name: getattr(self, name).tolist() for name in ("event", "time_us", "bytes")}
        return {"device": self.device, "what": self.what, **columns}


class Timeline:
    """The history of one device.

    Attributes:
        trace: The events.
        allocations: The allocations.
        gaps: What the events do not cover.
    """

    def __init__(self, trace: Trace, segments: Segments | None, blocks: Blocks) -> None:
        self.trace = trace
        self.allocations, self.gaps = pair_events(trace, segments, blocks)
        on_device = blocks.device == trace.device
        self.end_rounded = int(blocks.size[on_device & blocks.active].sum())
        self.end_reserved = None if segments is None else int(segments.size[segments.device == trace.device].sum())

    @property
    def device(self) -> int:
        """The device's index."""
        return self.trace.device

    def _curve(self, what: str, values: Ints) -> Curve:
        event = np.arange(BEFORE, len(self.trace))
        return Curve(self.device, what, event, np.concatenate([[-1], self.trace.time]), values)

    @cached_property
    def requested(self) -> Curve:
        """Requested bytes of all allocations whose free is not completed. It starts before the first event."""
        change = np.zeros(len(self.trace) + 2, np.int64)
        # indices are events plus one, for the moment before the first
        np.add.at(change, self.allocations.start + 1, self.allocations.size)
        np.subtract.at(change, self.allocations.end + 1, self.allocations.size)
        return self._curve("requested", np.cumsum(change)[:-1])

    @cached_property
    def reserved(self) -> Curve | None:
        """Bytes of all segments, calculated backwards from the end; None for a file without segments."""
        if self.end_reserved is None:
            return None
        trace = self.trace
        grows = np.isin(trace.action, (Action.SEGMENT_ALLOC, Action.MAP))
        shrinks = np.isin(trace.action, (Action.SEGMENT_FREE, Action.UNMAP))
        change = np.where(grows, trace.size, 0) - np.where(shrinks, trace.size, 0)
        total = np.concatenate([[0], np.cumsum(change)])
        return self._curve("reserved", total + (self.end_reserved - int(total[-1])))
