"""The allocations alive at one moment, and the peak."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ipygpumem.core.to_dict import PlainData
from ipygpumem.snapshot.queries.groups import Group, group_rows

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.timeline import Timeline
    from ipygpumem.snapshot.snapshot import Snapshot

ROUNDING = "(the allocator's rounding)"


@dataclass(frozen=True, slots=True, eq=False)
class LiveSet:
    """The allocations alive right after an event: int64 rows of ``timeline.allocations``.

    Event -1 is the moment before the first event.
    """

    snapshot: Snapshot
    timeline: Timeline
    event: int
    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def bytes(self) -> int:
        """Requested bytes."""
        return int(self.timeline.allocations.size[self.rows].sum())

    def by(self, key: str, allocated: int | None = None) -> tuple[Group, ...]:
        """Group by a key of `ipygpumem.snapshot.KEYS`, the largest group first.

        If ``allocated``, the allocator's own counter at that moment in rounded bytes, is given, a last group has the
        difference, so that the sum of all groups equals the counter. An unknown key raises `OptionError`.
        """
        groups = group_rows(self.snapshot, self.timeline, self.rows, key)
        if allocated is None:
            return groups
        return (*groups, Group(label=ROUNDING, bytes=allocated - self.bytes, count=0))

    def to_dict(self, key: str = "line", top: int | None = None) -> dict[str, Any]:
        """Return plain values with the ``top`` groups by a key."""
        return {
            "device": self.timeline.device,
            "event": self.event,
            "time_us": self.timeline.trace.time_of(self.event),
            "bytes": self.bytes,
            "count": len(self),
            "groups": [group.to_dict() for group in self.by(key)[:top]],
        }


@dataclass(frozen=True, slots=True, eq=False)
class Peak(PlainData):
    """The maximum of a device's requested bytes.

    Attributes:
        requested: Bytes that the program requested. Blocks that wait for a stream after their free count, as in
            PyTorch's ``requested_bytes.all.peak``.
        event: The first event after which it is reached; -1 is the moment before the first event.
        time_us: Microseconds since 1970; None for -1 and for events without times.
    """

    device: int = field(metadata={"key": None})
    requested: int
    event: int
    time_us: int | None
    live: LiveSet = field(metadata={"key": None})
