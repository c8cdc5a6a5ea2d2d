"""The allocations that are alive at an event, and the peak of a device."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import field, replace
from typing import Any

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.errors import OptionError
from ipygpumem.core.serialization import Serializable
from ipygpumem.snapshot.model.stacks import Frame
from ipygpumem.snapshot.model.timeline import Ints, Timeline
from ipygpumem.snapshot.queries.groups import Group, group_rows
from ipygpumem.snapshot.snapshot_data import SnapshotData

_MAX_TEXT = 1 << 27  # maximum number of characters in groups that are converted to JSON
_FRAME_LENGTH = 50  # number of characters that correspond to the memory for a frame without its text


class GroupConverter:
    """Converts groups to JSON-serializable data. Raises `OptionError` if their total text is too long.

    The limit is necessary because a file can repeat a frame in its stacks millions of times with two bytes each.
    """

    def __init__(self) -> None:
        self._left = _MAX_TEXT
        self._texts: dict[int, tuple[Frame, str, int]] = {}  # by id of the frame, which many stacks can share

    def to_dicts(self, groups: Iterable[Group]) -> list[dict[str, Any]]:
        result = []
        for group in groups:
            texts = [group.label, group.file, group.name, group.source]
            self._left -= sum(_json_length(text or "") for text in texts)
            self._left -= sum(self._text(frame)[1] + _FRAME_LENGTH for frame in group.frames)
            if self._left < 0:
                problem = f"the groups contain more than {_MAX_TEXT:,} characters"
                raise OptionError(f"{problem}: limit their number with --top or choose another key")
            values = replace(group, frames=()).to_dict()
            if group.frames:
                values["frames"] = [self._text(frame)[0] for frame in group.frames]
            result.append(values)
        return result

    def _text(self, frame: Frame) -> tuple[str, int]:
        """Return the text of a frame and its length in JSON."""
        if id(frame) not in self._texts:
            text = str(frame)
            self._texts[id(frame)] = frame, text, _json_length(text)  # the reference keeps the id valid
        return self._texts[id(frame)][1:]


def _json_length(text: str) -> int:
    """Return the length of a text in JSON, in which a non-ASCII character is escaped as up to 12 characters."""
    if text.isascii() and text.isprintable():
        return len(text) + text.count('"') + text.count("\\")
    return len(json.dumps(text))


@dataclass(frozen=True, slots=True, eq=False)
class LiveSet:
    """Allocations that are alive right after an event.

    Attributes:
        rows: Indices of the allocations in ``timeline.allocations``.
    """

    snapshot: SnapshotData
    timeline: Timeline
    event: int
    rows: Ints

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def bytes(self) -> int:
        """Total requested size in bytes."""
        return int(self.timeline.allocations.size[self.rows].sum())

    def by(self, key: str) -> tuple[Group, ...]:
        """Group allocations by one of `ipygpumem.snapshot.KEYS`, largest first. Raises `OptionError` for other keys."""
        return group_rows(self.snapshot, self.timeline, self.rows, key)

    def to_dict(
        self, key: str = "line", top: int | None = None, converter: GroupConverter | None = None
    ) -> dict[str, Any]:
        """Return JSON-serializable data with the ``top`` largest groups, or all groups if ``top`` is None.

        ``key`` is one of `ipygpumem.snapshot.KEYS`. Raises `OptionError` for other keys, or if the text of the groups
        is too long. Several calls with the same ``converter`` share its limit.
        """
        return {
            "device": self.timeline.device,
            "event": self.event,
            "time_us": self.timeline.trace.time_of(self.event),
            "bytes": self.bytes,
            "count": len(self),
            "groups": (converter or GroupConverter()).to_dicts(self.by(key)[:top]),
        }


@dataclass(frozen=True, slots=True, eq=False)
class RequestedBytesPeak(Serializable):
    """Maximum of the requested bytes of a device.

    Attributes:
        requested: Maximum in bytes, including freed blocks that another stream still uses.
        event: First event that reaches the maximum; -1 if the maximum is reached before the first event.
        time_us: Timestamp in microseconds since the Unix epoch; None for event -1 or if unknown.
        live: Allocations that are alive at the peak.
    """

    device: int = field(metadata={"key": None})
    requested: int
    event: int
    time_us: int | None
    live: LiveSet = field(metadata={"key": None})
