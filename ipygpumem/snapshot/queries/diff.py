"""Comparison of the allocations that are alive at two points in time."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import cache

from ipygpumem.core.errors import OptionError
from ipygpumem.core.serialization import Serializable
from ipygpumem.snapshot.model.stacks import UNKNOWN_FILE
from ipygpumem.snapshot.queries.groups import Group
from ipygpumem.snapshot.queries.live_set import LiveSet
from ipygpumem.snapshot.snapshot import Snapshot

# the file name of a cell contains the process ID of the kernel
_KERNEL = re.compile(r"ipykernel_\d+")


@dataclass(frozen=True, slots=True)
class Change(Serializable):
    """Change in a group of live allocations between two points in time.

    Attributes:
        label: Label of the group.
        before, after: Requested bytes at the two points in time.
        count_before, count_after: Number of blocks at the two points in time.
        file, line, name: Source file, line number and function of the group; None if the key does not determine them.
    """

    label: str
    before: int
    after: int
    count_before: int
    count_after: int
    file: str | None = None
    line: int | None = None
    name: str | None = None

    written_properties = ("bytes", "count")

    @property
    def bytes(self) -> int:
        """Difference in requested bytes."""
        return self.after - self.before

    @property
    def count(self) -> int:
        """Difference in the number of blocks."""
        return self.count_after - self.count_before


@dataclass(frozen=True, slots=True)
class Diff(Serializable):
    """Comparison of the live allocations at two points in time.

    Attributes:
        before, after: Total requested bytes at the two points in time.
        changes: Groups that changed, largest change in bytes first.
    """

    before: int
    after: int
    changes: tuple[Change, ...]


def diff(before: Snapshot | LiveSet, after: Snapshot | LiveSet, key: str = "line") -> Diff:
    """Compare the live allocations at two points in time, in the same file or in different files.

    Args:
        before: Result of `Snapshot.live`, or a snapshot, of which the allocations at the peak are compared.
        after: As ``before``, for the second point in time.
        key: Property by which allocations are grouped, a key of `ipygpumem.snapshot.KEYS`.

    Raises:
        OptionError: The key does not exist, or an argument is neither a snapshot nor a live set.
    """
    before, after = _live(before), _live(after)
    groups: dict[Hashable, Group] = {}
    sums: dict[Hashable, list[int]] = {}
    portable = cache(_portable)  # a deep stack can contain a long name thousands of times
    for live, column in ((after, 1), (before, 0)):
        for group in live.by(key):
            identity = _identity(group, portable)
            groups.setdefault(identity, group)
            columns = sums.setdefault(identity, [0, 0, 0, 0])
            columns[column] += group.bytes
            columns[2 + column] += group.count
    changes = []
    for identity, group in groups.items():
        old_bytes, new_bytes, old_count, new_count = sums[identity]
        if (old_bytes, old_count) != (new_bytes, new_count):
            line = group.file, group.line, group.name
            changes.append(Change(group.label, old_bytes, new_bytes, old_count, new_count, *line))
    changes.sort(key=lambda change: (-abs(change.bytes), -abs(change.count), change.label))
    return Diff(before.bytes, after.bytes, tuple(changes))


def _live(source: Snapshot | LiveSet) -> LiveSet:
    if isinstance(source, LiveSet):
        return source
    if not isinstance(source, Snapshot):
        raise OptionError(f"expected a Snapshot or a LiveSet, but got {type(source).__name__}")
    return source.live()


def _identity(group: Group, portable: Callable[[str], str]) -> Hashable:
    """Return a key that also identifies the group in the snapshot of another process."""
    if group.frames:
        return tuple((portable(frame.file), frame.line, frame.name) for frame in group.frames)
    if group.file is not None:
        return (portable(group.file), group.line, group.name)
    return group.label


def _portable(file: str) -> str:
    return _KERNEL.sub("", file) or UNKNOWN_FILE
