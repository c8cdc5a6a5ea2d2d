"""The memo of a pickle: the objects that later opcodes may refer to. Entries read in batches are decoded on demand.

Such an entry is then what it would have been if read opcode by opcode. So an event may be in two lists, in a tuple, or
be the place where a text first occurs that everything else refers to.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.snapshot.reader.batch_reader import Entries

__all__ = ["PENDING", "EntryMemo", "Memo", "Run", "expand", "expand_all"]

PENDING = object()
"""Stands in the memo for an object in an entry that has not been decoded yet."""

_EVENT_KEYS = ("device_traces", "host_traces")
_OTHER_KEYS = ("segments", "external_annotations", "allocator_settings", "ipygpumem", "source_code")
_CONTAINERS = (dict, list, tuple)


@dataclass(frozen=True, slots=True)
class Run:
    """Adjacent entries of a list: ``first`` to ``stop`` (excluded), and the memo index of their first object."""

    entries: Entries
    first: int
    stop: int
    memo_index: int

    def __len__(self) -> int:
        return self.stop - self.first

    def memo_start(self, entry: int) -> int:
        """The memo index of the first object of an entry."""
        return self.memo_index + int(self.entries.memo_before[entry] - self.entries.memo_before[self.first])


class Memo(list[Any]):
    """All objects of a pickle that have a memo index.

    Attributes:
        runs: The entries that were read in batches, in the order of the file.
        frozen: The ids of all lists and dicts in entries that were decoded. They must not change any more, as the
            columns would not show it.
    """

    def __init__(self, decode: Callable[[int, int, EntryMemo], dict[str, Any]]) -> None:
        super().__init__()
        self._decode = decode
        self._decoded: dict[int, dict[str, Any]] = {}
        self._run_starts: list[int] = []
        self.runs: list[Run] = []
        self.frozen: set[int] = set()

    def add_run(self, entries: Entries, first: int, stop: int) -> Run:
        """Reserve the memo indices of entries that are read in a batch."""
        run = Run(entries, first, stop, len(self))
        self.runs.append(run)
        self._run_starts.append(run.memo_index)
        self.extend(repeat(PENDING, int(entries.memo_count[first:stop].sum())))
        return run

    def get(self, index: int) -> Any:
        """The object with this index, decoded if necessary.

        Raises:
            SnapshotFormatError: The entry that holds it is malformed.
        """
        if self[index] is PENDING:
            self._entry(*self._locate(index))
        return self[index]

    def decode_run(self, run: Run) -> list[dict[str, Any]]:
        """All entries of a run as dicts.

        Raises:
            SnapshotFormatError: An entry is malformed.
        """
        return [self._entry(run, entry) for entry in range(run.first, run.stop)]

    def _locate(self, index: int) -> tuple[Run, int]:
        """The run and the entry that hold an object."""
        # a run without memoized objects has the same index as what follows it: the last such run is the right one
        run = self.runs[bisect_right(self._run_starts, index) - 1]
        offset = index - run.memo_index + run.entries.memo_before[run.first]
        return run, int(np.searchsorted(run.entries.memo_before, offset, side="right")) - 1

    def _entry(self, run: Run, entry: int) -> dict[str, Any]:
        """Decode an entry after those that it refers to. A chain of references may be as long as the file."""
        pending = [(run, entry)]
        while pending:
            run, entry = pending[-1]
            missing = self._decode_entry(run, entry)
            if missing:
                pending.extend(map(self._locate, missing))
            else:
                pending.pop()
        return self._decoded[int(run.entries.start[entry])]

    def _decode_entry(self, run: Run, entry: int) -> list[int]:
        """Decode an entry, or return the indices of the objects that have to be decoded first."""
        start = int(run.entries.start[entry])
        if start in self._decoded:
            return []
        index = run.memo_start(entry)
        memo = EntryMemo(self, index)
        decoded = self._decode(start, int(run.entries.end[entry]), memo)
        if not memo.missing:
            self._decoded[start] = decoded
            self[index : index + len(memo.added)] = memo.added
            self.frozen.update(id(value) for value in (decoded, *memo.added) if type(value) in {dict, list})
        return memo.missing


class EntryMemo:
    """The memo while one entry is decoded: as it was when the pickle reader passed the entry.

    Attributes:
        added: The objects that the entry adds.
        missing: Indices of objects that have to be decoded first.
    """

    frozen: frozenset[int] = frozenset()

    def __init__(self, memo: Memo, start: int) -> None:
        self._memo = memo
        self._start = start
        self.added: list[Any] = []
        self.missing: list[int] = []

    def __len__(self) -> int:
        return self._start + len(self.added)

    def __getitem__(self, index: int) -> Any:
        return self._memo[index] if index < self._start else self.added[index - self._start]

    def append(self, value: Any) -> None:
        """Add an object."""
        self.added.append(value)

    def get(self, index: int) -> None:
        """Note that an object is missing."""
        self.missing.append(index)


def expand(items: list[Any], memo: Memo, last: int = 0) -> None:
    """Replace the runs in a list, or in its ``last`` items, by dicts."""
    part = items[-last:] if last else items
    if Run in map(type, part):
        items[-last:] = [entry for item in part for entry in (memo.decode_run(item) if type(item) is Run else (item,))]


def expand_all(root: Any, memo: Memo) -> None:
    """Replace all runs by dicts, except in lists of events and under keys that nothing reads."""
    keys = root if type(root) is dict else {"segments": root}
    if type(keys.get("device_traces")) is list:
        expand(keys["device_traces"], memo)  # a list of lists: events do not belong here
    if sum(type(item) is Run for events in _event_lists(keys) for item in events) == len(memo.runs):
        return
    pending = [keys[key] for key in _OTHER_KEYS if key in keys]
    seen: set[int] = set()
    while pending:
        value = pending.pop()
        if type(value) not in _CONTAINERS or id(value) in seen:
            continue
        seen.add(id(value))
        if type(value) is list:
            expand(value, memo)
        pending.extend(value.values() if type(value) is dict else value)


def _event_lists(keys: dict[str, Any]) -> list[list[Any]]:
    """The lists of events: one for each device, or a single one for host memory."""
    lists = [keys.get("host_traces")]
    for key in _EVENT_KEYS:
        value = keys.get(key)
        lists.extend(value if type(value) is list or type(value) is tuple else ())
    return list({id(events): events for events in lists if type(events) is list}.values())
