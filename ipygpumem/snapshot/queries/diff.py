"""Compares the live allocations of two moments, line by line."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError
from ipygpumem.core.to_dict import PlainData
from ipygpumem.snapshot.queries.live_set import LiveSet
from ipygpumem.snapshot.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from ipygpumem.snapshot.queries.groups import Group

__all__ = ["Change", "Diff", "diff"]

# the file name of a cell contains the kernel's process id, which changes with every start
_KERNEL = re.compile(r"ipykernel_\d+")


@dataclass(frozen=True, slots=True)
class Change(PlainData):
    """The live allocations of one line, stack or other group at two moments.

    Attributes:
        label: The group.
        before, after: Requested bytes.
        count_before, count_after: Number of allocations.
        file, line, name: The line, in groups by line.
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
        """The change in bytes."""
        return self.after - self.before

    @property
    def count(self) -> int:
        """The change in the number of allocations."""
        return self.count_after - self.count_before


@dataclass(frozen=True, slots=True)
class Diff(PlainData):
    """The difference between two moments.

    Attributes:
        before, after: Requested bytes.
        changes: The groups that differ, the largest change in bytes first.
    """

    before: int
    after: int
    changes: tuple[Change, ...]


def diff(before: Snapshot | LiveSet, after: Snapshot | LiveSet, key: str = "line") -> Diff:
    """Compare the live allocations of two moments, in one file or two.

    Args:
        before: The first moment: ``snapshot.live(event)``, or a snapshot for its peak.
        after: The second moment.
        key: How to group: a key of `ipygpumem.snapshot.KEYS`. ``"line"`` and ``"stack"`` are the most useful.

    Raises:
        OptionError: The key does not exist, or an argument is neither a snapshot nor a live set.
    """
    before, after = _live(before), _live(after)
    old, new = _sums(before.by(key)), _sums(after.by(key))
    changes = []
    for identity, (group, _, _) in {**old, **new}.items():
        _, bytes_before, count_before = old.get(identity, (group, 0, 0))
        _, bytes_after, count_after = new.get(identity, (group, 0, 0))
        if (bytes_before, count_before) != (bytes_after, count_after):
            place = (group.file, group.line, group.name)
            changes.append(Change(group.label, bytes_before, bytes_after, count_before, count_after, *place))
    changes.sort(key=lambda change: (-abs(change.bytes), -abs(change.count), change.label))
    return Diff(before.bytes, after.bytes, tuple(changes))


def _live(moment: Snapshot | LiveSet) -> LiveSet:
    if isinstance(moment, LiveSet):
        return moment
    if not isinstance(moment, Snapshot):
        raise OptionError(f"cannot compare {type(moment).__name__!r}: expected a snapshot, or the result of its live()")
    return moment.live()


def _sums(groups: Iterable[Group]) -> dict[Hashable, tuple[Group, int, int]]:
    """The bytes and the count of all groups that are the same in another run."""
    sums: dict[Hashable, tuple[Group, int, int]] = {}
    for group in groups:
        key = _identity(group)
        first, total, count = sums.get(key, (group, 0, 0))
        sums[key] = (first, total + group.bytes, count + group.count)
    return sums


def _identity(group: Group) -> Hashable:
    """The parts of a group that are the same in another run."""
    if group.frames:
        return tuple((_KERNEL.sub("", frame.file), frame.line, frame.name) for frame in group.frames)
    if group.file is not None:
        return (_KERNEL.sub("", group.file), group.line, group.name)
    return group.label
