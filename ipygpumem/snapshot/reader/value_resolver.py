"""Values that lie in lanes, brought together with those that the machine read: memo indices become table numbers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import SnapshotError, SnapshotFormatError
from ipygpumem.snapshot.model.stacks import pack_pool
from ipygpumem.snapshot.reader import opcodes as op
from ipygpumem.snapshot.reader.checks import integer, sequence, text
from ipygpumem.snapshot.reader.cursor import NOTHING
from ipygpumem.snapshot.reader.expand_batches import spread
from ipygpumem.snapshot.reader.memo_table import Memo, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ipygpumem.snapshot.model.stacks import Numbers, Stacks
    from ipygpumem.snapshot.reader.batches import Field

    Ints = NDArray[np.int64]
    Numbered = NDArray[np.int32]

__all__ = ["Placed", "Resolver"]

_NONE = -1
_SCALARS = (str, int, float, bool)
_LONGEST, _MOST_ITEMS, _MOST_BITS = 100, 20, 128
_PARTS = 2
_INT_BYTES = {op.BININT1: 1, op.BININT2: 2, op.BININT: 4}
_KINDS = {
    "frames": "stack",
    "pool_id": "pool",
    **dict.fromkeys(("action", "compile_context", "user_metadata"), "text"),
}
_DECODERS = {"text": "_decoded_text", "stack": "_decoded_list", "pool": "_decoded_pair"}
_LATE = "a memo entry is read before it is written"


@dataclass(frozen=True, slots=True)
class Placed:
    """A run, and which events it holds.

    Attributes:
        run: The run.
        where: The list in the file, ``device_traces[0]``.
        row: The place of its first event in the list.
    """

    run: Run
    where: str
    row: int


class Resolver:
    """Gives every text, stack and pool of a file its number, wherever it was read."""

    def __init__(self, memo: list[Any], texts: Numbers, stacks: Stacks, pools: Numbers) -> None:
        self._memo = memo
        self._texts = texts
        self._stacks = stacks
        self._pools = pools
        self._columns: dict[tuple[int, str], Numbered] = {}
        self._known = {kind: np.full(len(memo), _NONE, np.int32) for kind in _DECODERS}

    def take(self, placed: list[Placed]) -> None:
        """Read what these runs hold; `column` has it then. Of others nothing is read, whatever they hold.

        Raises:
            SnapshotFormatError: A value of the wrong type or out of range; the message names event and key.
        """
        self._columns = {}
        taken: dict[int, list[Placed]] = {}
        for one in placed:
            taken.setdefault(id(one.run.lanes), []).append(one)
        groups = [_Group(some) for some in taken.values()]
        # whatever stands in an entry itself comes first: a reference may point to what another template's entry holds
        for group in groups:
            for name, field in group.fields():
                self._columns[id(group.lanes), name] = self._inline(name, field, group)
        for group in groups:
            for name, field in group.fields():
                self._refer(self._columns[id(group.lanes), name], name, field, group)

    def column(self, run: Run, name: str) -> Numbered:
        """The numbers of a key's texts or stacks in a run that was taken."""
        return self._columns[id(run.lanes), name][run.first : run.stop]

    def text(self, value: Any, where: str) -> int:
        """The number of a text."""
        return self._texts.number(_in_words(value) if type(value) is dict else text(value, where))

    def stack(self, value: Any, where: str) -> int:
        """The number of a stack."""
        if isinstance(self._memo, Memo) and type(value) is list and Run in map(type, value):
            value = value.copy()  # a list of events: strange frames, but dicts
            spread(value, self._memo)
        return self._stacks.stack(value, where)

    def pool(self, value: Any, where: str) -> int:
        """The number of a pool id: two numbers, (0, 0) for the default pool."""
        parts = sequence(value, where)
        if len(parts) != _PARTS:
            raise SnapshotFormatError(f"{where} has {len(parts)} parts, not two")
        return self._pools.number(pack_pool(integer(parts[0], where), integer(parts[1], where)))

    def numbers(self, name: str, values: list[Any], where: Callable[[int], str]) -> Numbered:
        """The numbers of many texts, stacks or pool ids; -1 for None. An object that comes often is read once.

        Args:
            name: Their key.
            values: The values.
            where: Names the event of the value with a number.
        """
        if _KINDS[name] == "text" and set(map(type, values)) <= {str, type(None)}:
            table = {value: _NONE if value is None else self._texts.number(value) for value in dict.fromkeys(values)}
            return np.array(list(map(table.__getitem__, values)), np.int32)
        known: dict[int, int] = {}
        for place, value in enumerate(values):
            if id(value) not in known:
                try:
                    known[id(value)] = self._number(name, value)
                except SnapshotError as problem:
                    raise type(problem)(f"{where(place)}: {problem}") from None
        return np.array([known[id(value)] for value in values], np.int32)

    def _number(self, name: str, value: Any) -> int:
        if value is None:
            return _NONE
        # by name: a table of bound methods would be a cycle, and keep the whole file until the next collection
        reader: Callable[[Any, str], int] = getattr(self, _KINDS[name])
        return reader(value, name)

    def _inline(self, name: str, field: Field, group: _Group) -> Numbered:
        """A column with the values that stand in the entries; the others are still to come."""
        column = np.full(len(group.base), _NONE, np.int32)
        here = np.flatnonzero((field.value < 0) & (field.value != NOTHING) & (group.base >= 0))
        value, base, made = field.value[here], group.base[here], field.made[here]
        numbers = np.zeros(len(field.unique), np.int32)
        behind = np.zeros(len(field.unique), np.int64)
        for number in _marked(-1 - value, len(numbers)):
            try:
                found, behind[number] = getattr(self, _DECODERS[_KINDS[name]])(field.unique[number])
                numbers[number] = self._number(name, found)
            except SnapshotError as problem:
                raise type(problem)(f"{group.where(here[value == -1 - number][0])}: {problem}") from None
        if behind.any():
            late = behind[-1 - value] > base + group.lanes.memos[here]
            if late.any():
                raise SnapshotFormatError(f"{group.where(here[late][0])}: {name}: {_LATE}")
        value = numbers[-1 - value]
        column[here] = value
        if made.min(initial=0) < 0:
            base, made, value = base[made >= 0], made[made >= 0], value[made >= 0]
        self._known[_KINDS[name]][base + made] = value
        return column

    def _refer(self, column: Numbered, name: str, field: Field, group: _Group) -> None:
        """Fill in the values that are references."""
        there = np.flatnonzero((field.value >= 0) & (group.base >= 0))
        index = field.value[there]
        # an entry may refer to what it made itself before: Python has one empty text and one of each letter
        late = index >= group.base[there] + field.made[there]
        if late.any():
            raise SnapshotFormatError(f"{group.where(there[late][0])}: {name}: {_LATE}")
        known = self._known[_KINDS[name]]
        for number in _marked(index[known[index] == _NONE], len(known)):
            try:
                known[number] = self._number(name, self._object(number))
            except SnapshotError as problem:
                raise type(problem)(f"{group.where(there[index == number][0])}: {problem}") from None
        column[there] = known[index]

    def _object(self, index: int) -> Any:
        return self._memo.recall(index) if isinstance(self._memo, Memo) else self._memo[index]

    @staticmethod
    def _decoded_text(octets: bytes) -> tuple[str, int]:
        try:
            return octets.decode("utf-8", "surrogatepass"), 0
        except UnicodeDecodeError:
            raise SnapshotFormatError("a text is not UTF-8") from None

    @staticmethod
    def _decoded_pair(octets: bytes) -> tuple[tuple[int, ...], int]:
        parts = []
        at = 0
        while at < len(octets):
            width = _INT_BYTES.get(octets[at], octets[at + 1])
            begin = at + (1 if octets[at] in _INT_BYTES else _PARTS)
            signed = octets[at] in {op.BININT, op.LONG1}
            parts.append(int.from_bytes(octets[begin : begin + width], "little", signed=signed))
            at = begin + width
        return tuple(parts), 0

    def _decoded_list(self, octets: bytes) -> tuple[list[Any], int]:
        """The items of a list, and the memo index behind all that it refers to."""
        items = []
        at = behind = 0
        while at < len(octets):
            width = 1 if octets[at] == op.BINGET else 4
            index = int.from_bytes(octets[at + 1 : at + 1 + width], "little")
            if index >= len(self._memo):
                raise SnapshotFormatError(f"frames: {_LATE}")
            behind = max(behind, index + 1)
            items.append(self._object(index))
            at += 1 + width
        return items, behind


class _Group:
    """Runs of the same lanes.

    Attributes:
        lanes: The lanes.
        base: The memo index of each lane's first object; -1 for lanes of other runs.
    """

    def __init__(self, placed: list[Placed]) -> None:
        self._placed = placed
        self.lanes = lanes = placed[0].run.lanes
        self.base: Ints = np.full(len(lanes.start), _NONE, np.int64)
        for one in placed:
            run = one.run
            self.base[run.first : run.stop] = (
                run.base(run.first) - lanes.before[run.first] + lanes.before[run.first : run.stop]
            )

    def fields(self) -> list[tuple[str, Field]]:
        """The keys whose values are no numbers."""
        return [(name, field) for name, field in self.lanes.fields.items() if name in _KINDS]

    def where(self, lane: int) -> str:
        """Which event a lane is."""
        one = next(one for one in self._placed if one.run.first <= lane < one.run.stop)
        return f"{one.where}[{one.row + int(lane) - one.run.first}]"


def _marked(places: Ints, count: int) -> list[int]:
    """Each place once, in ascending order. There are few to choose from: a mark each beats sorting."""
    marks = np.zeros(count, np.bool_)
    marks[places] = True
    found: list[int] = np.flatnonzero(marks).tolist()
    return found


def _in_words(value: dict[str, Any]) -> str:
    """User metadata that is a dict, as torch 2.15 allows, in one text of bounded length."""
    words = (
        f"{str(key)[:_LONGEST]}={str(item)[:_LONGEST]}"
        for key, item in value.items()
        if _is_short(key) and _is_short(item)
    )
    return ", ".join(islice(words, _MOST_ITEMS))


def _is_short(item: Any) -> bool:
    """Whether something can be written: Python does not write whole numbers of more than 4,300 digits."""
    return type(item) in _SCALARS and not (type(item) is int and item.bit_length() > _MOST_BITS)
