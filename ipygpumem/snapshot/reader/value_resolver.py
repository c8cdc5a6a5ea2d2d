"""Numbers texts, stacks and pool ids, whether they were read in batches or one by one."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import SnapshotError, SnapshotFormatError
from ipygpumem.snapshot.model.stacks import pack_pool
from ipygpumem.snapshot.reader import opcodes as op
from ipygpumem.snapshot.reader.checks import integer, is_plain, sequence, text
from ipygpumem.snapshot.reader.field_reader import NONE
from ipygpumem.snapshot.reader.memo_table import Memo, Run, expand

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.unique_values import Numbering
    from ipygpumem.snapshot.reader.batch_reader import Field
    from ipygpumem.snapshot.reader.table_builder import StackBuilder

    Ints = NDArray[np.int64]
    Numbered = NDArray[np.int32]

__all__ = ["PlacedRun", "ValueResolver"]

_MISSING = -1
_MAX_TEXT, _MAX_ITEMS = 100, 20
_PAIR = 2
_INT_BYTES = {op.BININT1: 1, op.BININT2: 2, op.BININT: 4}
_KINDS = {
    "frames": "stack",
    "pool_id": "pool",
    **dict.fromkeys(("action", "compile_context", "user_metadata"), "text"),
}
_DECODERS = {"text": "_decode_text", "stack": "_decode_list", "pool": "_decode_pair"}
_TOO_EARLY = "a memo entry is read before it is written"


@dataclass(frozen=True, slots=True)
class PlacedRun:
    """A run of entries and its place in the file.

    Attributes:
        run: The run.
        where: The list that contains it, ``device_traces[0]``.
        row: The index of its first event in that list.
    """

    run: Run
    where: str
    row: int


class ValueResolver:
    """Gives every text, stack and pool id of a file its number, and memo indices the number of their object."""

    def __init__(self, memo: Memo | None, texts: Numbering, stacks: StackBuilder, pools: Numbering) -> None:
        self._memo = memo
        self._texts = texts
        self._stacks = stacks
        self._pools = pools
        self._columns: dict[tuple[int, str], Numbered] = {}
        # for each kind the numbers of memo entries, as far as they are known
        self._numbers = {kind: np.full(len(memo or ()), _MISSING, np.int32) for kind in _DECODERS}

    def resolve(self, placed: list[PlacedRun]) -> None:
        """Number the values of these runs, for `column`. Values of other runs are not looked at.

        Raises:
            SnapshotFormatError: A value has the wrong type or is out of range; the message names event and key.
        """
        self._columns = {}
        by_entries: dict[int, list[PlacedRun]] = {}
        for placed_run in placed:
            by_entries.setdefault(id(placed_run.run.entries), []).append(placed_run)
        groups = [_RunGroup(runs) for runs in by_entries.values()]
        # values written inside entries first: a reference may point to a value in an entry with other keys
        for group in groups:
            for name, field in group.fields():
                self._columns[id(group.entries), name] = self._number_inline(name, field, group)
        for group in groups:
            for name, field in group.fields():
                self._number_references(self._columns[id(group.entries), name], name, field, group)

    def column(self, run: Run, name: str) -> Numbered:
        """The numbers of a key's values in a run that was resolved; -1 for None."""
        return self._columns[id(run.entries), name][run.first : run.stop]

    def text(self, value: Any, where: str) -> int:
        """The number of a text."""
        return self._texts.number(_metadata_text(value) if type(value) is dict else text(value, where))

    def stack(self, value: Any, where: str) -> int:
        """The number of a list of frames."""
        if self._memo is not None and type(value) is list and Run in map(type, value):
            value = value.copy()  # a list of events in place of frames: they are dicts, too
            expand(value, self._memo)
        return self._stacks.stack(value, where)

    def pool(self, value: Any, where: str) -> int:
        """The number of a pool id: a pair of integers, (0, 0) for the default pool."""
        parts = sequence(value, where)
        if len(parts) != _PAIR:
            raise SnapshotFormatError(f"{where} has {len(parts)} parts, not two")
        return self._pools.number(pack_pool(integer(parts[0], where), integer(parts[1], where)))

    def numbers(self, name: str, values: list[Any], where: Callable[[int], str]) -> Numbered:
        """The numbers of many texts, stacks or pool ids; -1 for None. Each distinct object is checked once.

        Args:
            name: Their key.
            values: The values.
            where: Names the event of a value, given its index.
        """
        if _KINDS[name] == "text" and set(map(type, values)) <= {str, type(None)}:
            texts = {value: _MISSING if value is None else self._texts.number(value) for value in dict.fromkeys(values)}
            return np.array(list(map(texts.__getitem__, values)), np.int32)
        numbers: dict[int, int] = {}
        for place, value in enumerate(values):
            if id(value) not in numbers:
                try:
                    numbers[id(value)] = self._number(name, value)
                except SnapshotError as error:
                    raise type(error)(f"{where(place)}: {error}") from None
        return np.array([numbers[id(value)] for value in values], np.int32)

    def _number(self, name: str, value: Any) -> int:
        if value is None:
            return _MISSING
        # a table of bound methods would make a reference cycle, which keeps the file until the next garbage collection
        method: Callable[[Any, str], int] = getattr(self, _KINDS[name])
        return method(value, name)

    def _number_inline(self, name: str, field: Field, group: _RunGroup) -> Numbered:
        """A column with the numbers of values that are written inside entries; references are still missing."""
        column = np.full(len(group.memo_start), _MISSING, np.int32)
        rows = np.flatnonzero((field.value < 0) & (field.value != NONE) & (group.memo_start >= 0))
        inline, memo_start, memo_offset = -1 - field.value[rows], group.memo_start[rows], field.memo_offset[rows]
        numbers = np.zeros(len(field.inline), np.int32)
        required_memo = np.zeros(len(field.inline), np.int64)
        for place in _distinct(inline, len(numbers)):
            try:
                value, required_memo[place] = getattr(self, _DECODERS[_KINDS[name]])(field.inline[place])
                numbers[place] = self._number(name, value)
            except SnapshotError as error:
                raise type(error)(f"{group.where(rows[inline == place][0])}: {error}") from None
        if required_memo.any():
            too_early = required_memo[inline] > memo_start + group.entries.memo_count[rows]
            if too_early.any():
                raise SnapshotFormatError(f"{group.where(rows[too_early][0])}: {name}: {_TOO_EARLY}")
        number = numbers[inline]
        column[rows] = number
        if memo_offset.min(initial=0) < 0:
            memoized = memo_offset >= 0
            memo_start, memo_offset, number = memo_start[memoized], memo_offset[memoized], number[memoized]
        self._numbers[_KINDS[name]][memo_start + memo_offset] = number
        return column

    def _number_references(self, column: Numbered, name: str, field: Field, group: _RunGroup) -> None:
        """Fill in the numbers of values that are references."""
        rows = np.flatnonzero((field.value >= 0) & (group.memo_start >= 0))
        index = field.value[rows]
        # an entry may refer to its own earlier values: Python has one empty text and one text for each letter
        too_early = index >= group.memo_start[rows] + field.memo_offset[rows]
        if too_early.any():
            raise SnapshotFormatError(f"{group.where(rows[too_early][0])}: {name}: {_TOO_EARLY}")
        numbers = self._numbers[_KINDS[name]]
        for place in _distinct(index[numbers[index] == _MISSING], len(numbers)):
            try:
                numbers[place] = self._number(name, self._object(place))
            except SnapshotError as error:
                raise type(error)(f"{group.where(rows[index == place][0])}: {error}") from None
        column[rows] = numbers[index]

    def _object(self, index: int) -> Any:
        return self._memo.get(index) if self._memo is not None else None

    @staticmethod
    def _decode_text(octets: bytes) -> tuple[str, int]:
        try:
            return octets.decode("utf-8", "surrogatepass"), 0
        except UnicodeDecodeError:
            raise SnapshotFormatError("a text is not UTF-8") from None

    @staticmethod
    def _decode_pair(octets: bytes) -> tuple[tuple[int, ...], int]:
        parts = []
        at = 0
        while at < len(octets):
            code = octets[at]
            width = _INT_BYTES.get(code, octets[at + 1])
            start = at + (1 if code in _INT_BYTES else 2)
            parts.append(int.from_bytes(octets[start : start + width], "little", signed=code in {op.BININT, op.LONG1}))
            at = start + width
        return tuple(parts), 0

    def _decode_list(self, octets: bytes) -> tuple[list[Any], int]:
        """The items of a list, and the size of the memo that its references require."""
        items = []
        at = required_memo = 0
        while at < len(octets):
            width = 1 if octets[at] == op.BINGET else 4
            index = int.from_bytes(octets[at + 1 : at + 1 + width], "little")
            if index >= len(self._memo or ()):
                raise SnapshotFormatError(f"frames: {_TOO_EARLY}")
            required_memo = max(required_memo, index + 1)
            items.append(self._object(index))
            at += 1 + width
        return items, required_memo


class _RunGroup:
    """Runs of entries with the same keys.

    Attributes:
        entries: The entries, of these runs and others.
        memo_start: For each entry the memo index of its first object; -1 for entries of other runs.
    """

    def __init__(self, placed: list[PlacedRun]) -> None:
        self._placed = placed
        self.entries = entries = placed[0].run.entries
        self.memo_start: Ints = np.full(len(entries.start), _MISSING, np.int64)
        for placed_run in placed:
            run = placed_run.run
            before = entries.memo_before[run.first : run.stop]
            self.memo_start[run.first : run.stop] = run.memo_index - entries.memo_before[run.first] + before

    def fields(self) -> list[tuple[str, Field]]:
        """The keys whose values are not numbers."""
        return [(name, field) for name, field in self.entries.fields.items() if name in _KINDS]

    def where(self, entry: int) -> str:
        """The event that an entry is, for messages."""
        placed = next(placed for placed in self._placed if placed.run.first <= entry < placed.run.stop)
        return f"{placed.where}[{placed.row + int(entry) - placed.run.first}]"


def _distinct(numbers: Ints, count: int) -> list[int]:
    """Each number once, in ascending order. There are few possible ones, so marking them is faster than sorting."""
    marks = np.zeros(count, np.bool_)
    marks[numbers] = True
    result: list[int] = np.flatnonzero(marks).tolist()
    return result


def _metadata_text(metadata: dict[str, Any]) -> str:
    """User metadata that is a dict, as in torch 2.15, as one text of limited length."""
    items = (
        f"{str(key)[:_MAX_TEXT]}={str(value)[:_MAX_TEXT]}"
        for key, value in metadata.items()
        if all(item is not None and is_plain(item) for item in (key, value))
    )
    return ", ".join(islice(items, _MAX_ITEMS))
