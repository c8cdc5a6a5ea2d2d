"""Values that lie in lanes, brought together with those that the machine read: memo indices become table numbers."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.errors import SnapshotFormatError
from ipygpumem.snapshot import opcodes as op
from ipygpumem.snapshot.check import integer, sequence, text
from ipygpumem.snapshot.machine import Held
from ipygpumem.snapshot.tables import pack_pool

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from ipygpumem.snapshot.lanes import Field, Lanes
    from ipygpumem.snapshot.machine import Run
    from ipygpumem.snapshot.tables import Numbers, Stacks

    Ints = NDArray[np.int64]
    Numbered = NDArray[np.int32]

__all__ = ["Resolver"]

_NONE = -1
_SCALARS = (str, int, float, bool)
_LONGEST, _MOST_ITEMS = 100, 20
_PARTS = 2
_INT_BYTES = {op.BININT1: 1, op.BININT2: 2, op.BININT: 4}
_KINDS = {
    "frames": "stack",
    "pool_id": "pool",
    **dict.fromkeys(("action", "compile_context", "user_metadata", "internal_metadata"), "text"),
}

# By kind: the methods that read a value of the machine, and the bytes of one in a lane
_METHODS = {
    "text": ("text", "_text_number"),
    "stack": ("stack", "_list_number"),
    "pool": ("pool", "_pair_number"),
}


class Resolver:
    """Gives every text and stack of a file its number, wherever it was read."""

    def __init__(self, memo: list[Any], runs: list[Run], texts: Numbers, stacks: Stacks, pools: Numbers) -> None:
        self._memo = memo
        self._texts = texts
        self._stacks = stacks
        self._pools = pools
        self._columns: dict[tuple[int, str], Numbered] = {}
        self._known = {kind: np.full(len(memo), _NONE, np.int32) for kind in _METHODS}
        self._lanes: dict[int, Lanes] = {}
        taken: dict[int, list[Run]] = {}
        for run in runs:
            self._lanes[id(run.lanes)] = run.lanes
            taken.setdefault(id(run.lanes), []).append(run)
        bases = {key: _bases(self._lanes[key], some) for key, some in taken.items()}
        # whatever stands in an entry itself comes first: a reference may point to what another template's entry holds
        for key, lanes in self._lanes.items():
            for name, field in lanes.fields.items():
                if name in _KINDS:
                    self._columns[key, name] = self._inline(name, field, bases[key])
        for key, lanes in self._lanes.items():
            for name, field in lanes.fields.items():
                if (key, name) in self._columns:
                    self._refer(self._columns[key, name], name, field, bases[key])

    def column(self, run: Run, name: str) -> Numbered:
        """The numbers of a key's texts or stacks in a run."""
        return self._columns[id(run.lanes), name][run.first : run.stop]

    def text(self, value: Any, where: str) -> int:
        """The number of a text in an entry that the machine read."""
        if type(value) is Held:
            return self._held("text", value, where)
        return self._texts.number(_in_words(value) if type(value) is dict else text(value, where))

    def stack(self, value: Any, where: str) -> int:
        """The number of a stack in an entry that the machine read."""
        if type(value) is Held:
            return self._held("stack", value, where)
        return self._stacks.stack(value, where)

    def pool(self, value: Any, where: str) -> int:
        """The number of a pool id in an entry that the machine read: two numbers, (0, 0) for the default pool."""
        if type(value) is Held:
            return self._held("pool", value, where)
        parts = sequence(value, where)
        if len(parts) != _PARTS:
            raise SnapshotFormatError(f"{where} has {len(parts)} parts, not two")
        return self._pools.number(pack_pool(integer(parts[0], where), integer(parts[1], where)))

    def numbers(self, name: str, values: list[Any], where: str) -> Numbered:
        """The numbers of many texts, stacks or pool ids; -1 for None. An object that comes often is read once."""
        read = self._reader(name)
        if _KINDS[name] == "text" and set(map(type, values)) <= {str, type(None)}:
            table = {value: _NONE if value is None else read(value, where) for value in dict.fromkeys(values)}
            return np.array(list(map(table.__getitem__, values)), np.int32)
        objects = dict(zip(map(id, values), values, strict=True))
        known = {key: _NONE if value is None else read(value, where) for key, value in objects.items()}
        return np.array(list(map(known.__getitem__, map(id, values))), np.int32)

    def _reader(self, name: str) -> Callable[[Any, str], int]:
        # by name: a table of bound methods would be a cycle, and keep the whole file until the next collection
        reader: Callable[[Any, str], int] = getattr(self, _METHODS[_KINDS[name]][0])
        return reader

    def _held(self, kind: str, value: Held, where: str) -> int:
        number = int(self._known[kind][value.index])
        if number == _NONE:
            raise SnapshotFormatError(f"{where}: the reference does not lead to a {kind}")
        return number

    def _inline(self, name: str, field: Field, base: Ints) -> Numbered:
        """A column with the values that stand in the entries; the others are still to come."""
        column = np.full(len(base), _NONE, np.int32)
        here = (field.value < 0) & (base >= 0)
        which = -1 - field.value[here]
        numbers = np.zeros(len(field.unique), np.int32)
        decode = getattr(self, _METHODS[_KINDS[name]][1])
        for number in _marked(which, len(numbers)):
            numbers[number] = decode(field.unique[number])
        column[here] = numbers[which]
        self._known[_KINDS[name]][(base + field.made)[here]] = column[here]
        return column

    def _refer(self, column: Numbered, name: str, field: Field, base: Ints) -> None:
        """Fill in the values that are references."""
        there = (field.value >= 0) & (base >= 0)
        index = field.value[there]
        # an entry may refer to what it made itself before: Python has one empty text and one of each letter
        if (index >= base[there] + field.made[there]).any():
            raise SnapshotFormatError("a memo entry is read before it is written")
        known = self._known[_KINDS[name]]
        for number in _marked(index[known[index] == _NONE], len(known)):
            known[number] = self._reader(name)(self._memo[number], f"a trace entry: {name}")
        column[there] = known[index]

    def _text_number(self, octets: bytes) -> int:
        try:
            return self._texts.number(octets.decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            raise SnapshotFormatError("a text is not UTF-8") from None

    def _pair_number(self, octets: bytes) -> int:
        parts = []
        at = 0
        while at < len(octets):
            width = _INT_BYTES.get(octets[at], octets[at + 1])
            begin = at + (1 if octets[at] in _INT_BYTES else _PARTS)
            signed = octets[at] in {op.BININT, op.LONG1}
            parts.append(int.from_bytes(octets[begin : begin + width], "little", signed=signed))
            at = begin + width
        return self._pools.number(pack_pool(*parts))

    def _list_number(self, octets: bytes) -> int:
        items = []
        at = 0
        while at < len(octets):
            width = 1 if octets[at] == op.BINGET else 4
            index = int.from_bytes(octets[at + 1 : at + 1 + width], "little")
            if index >= len(self._memo):
                raise SnapshotFormatError(f"memo entry {index:,} is read before it is written")
            items.append(self._memo[index])
            at += 1 + width
        return self._stacks.stack(items, "a trace entry: frames")


def _marked(places: Ints, count: int) -> list[int]:
    """Each place once, in ascending order. There are few to choose from: a mark each beats sorting."""
    marks = np.zeros(count, np.bool_)
    marks[places] = True
    found: list[int] = np.flatnonzero(marks).tolist()
    return found


def _in_words(value: dict[str, Any]) -> str:
    """User metadata that is a dict, as torch 2.15 allows, in one text of bounded length."""
    plain = {key: item for key, item in value.items() if type(item) in _SCALARS}
    return ", ".join(f"{key[:_LONGEST]}={str(item)[:_LONGEST]}" for key, item in islice(plain.items(), _MOST_ITEMS))


def _bases(lanes: Lanes, runs: list[Run]) -> Ints:
    """The memo index of each lane's first object; -1 for lanes that no run took."""
    base = np.full(len(lanes.start), _NONE, np.int64)
    for run in runs:
        base[run.first : run.stop] = run.memo + lanes.before[run.first : run.stop] - lanes.before[run.first]
    return base
