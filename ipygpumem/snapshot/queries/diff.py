"""Two moments compared: the same lines side by side, with what changed."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot.queries.live_set import LiveSet
from ipygpumem.snapshot.snapshot import Snapshot

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from ipygpumem.snapshot.queries.groups import Group

__all__ = ["Change", "Diff", "diff"]

# the same cell has another process number in its file name each time the kernel starts
_KERNEL = re.compile(r"ipykernel_\d+")


@dataclass(frozen=True, slots=True)
class Change:
    """What is alive of one line, stack or other group at two moments.

    Attributes:
        label: The group.
        before, after: Requested bytes.
        count_before, count_after: Allocations.
        file, line, name: Of a group by line: where it is.
    """

    label: str
    before: int
    after: int
    count_before: int
    count_after: int
    file: str | None = None
    line: int | None = None
    name: str | None = None

    @property
    def bytes(self) -> int:
        """Bytes more, or fewer."""
        return self.after - self.before

    @property
    def count(self) -> int:
        """Allocations more, or fewer."""
        return self.count_after - self.count_before

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "bytes": self.bytes, "count": self.count}


@dataclass(frozen=True, slots=True)
class Diff:
    """Two moments compared.

    Attributes:
        before, after: Requested bytes at both.
        changes: What changed, the largest change of bytes first. Groups that are equal in bytes and count are left out.
    """

    before: int
    after: int
    changes: tuple[Change, ...]

    def to_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {"before": self.before, "after": self.after, "changes": [change.to_dict() for change in self.changes]}


def diff(before: Snapshot | LiveSet, after: Snapshot | LiveSet, key: str = "line") -> Diff:
    """Compare what lives at two moments, of one file or two.

    Args:
        before: The first moment: ``snapshot.live(event)``, or a snapshot for its peak.
        after: The second.
        key: What to align by: a key of `ipygpumem.snapshot.KEYS`; ``"line"`` and ``"stack"`` are meant for this.

    Raises:
        OptionError: There is no such key, or these are no moments.
    """
    before, after = _live(before), _live(after)
    old, new = _sums(before.by(key)), _sums(after.by(key))
    changes = []
    for identity, named in {**old, **new}.items():
        group = named[0]
        _, bytes_before, count_before = old.get(identity, (group, 0, 0))
        _, bytes_after, count_after = new.get(identity, (group, 0, 0))
        if (bytes_before, count_before) != (bytes_after, count_after):
            where = (group.file, group.line, group.name)
            changes.append(Change(group.label, bytes_before, bytes_after, count_before, count_after, *where))
    changes.sort(key=lambda change: (-abs(change.bytes), -abs(change.count), change.label))
    return Diff(before.bytes, after.bytes, tuple(changes))


def _live(moment: Snapshot | LiveSet) -> LiveSet:
    if isinstance(moment, LiveSet):
        return moment
    if not isinstance(moment, Snapshot):
        raise OptionError(f"a {type(moment).__name__} is neither a snapshot nor what lives at an event of one")
    return moment.live()


def _sums(groups: Iterable[Group]) -> dict[Hashable, tuple[Group, int, int]]:
    """Groups by what is the same in another run, with bytes and count of all that are."""
    sums: dict[Hashable, tuple[Group, int, int]] = {}
    for group in groups:
        key = _identity(group)
        first, total, count = sums.get(key, (group, 0, 0))
        sums[key] = (first, total + group.bytes, count + group.count)
    return sums


def _identity(group: Group) -> Hashable:
    """What is the same in another run."""
    if group.frames:
        return tuple((_KERNEL.sub("", frame.file), frame.line, frame.name) for frame in group.frames)
    if group.file is not None:
        return (_KERNEL.sub("", group.file), group.line, group.name)
    return group.label
