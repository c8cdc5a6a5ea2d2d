"""An own reader of pickles that hold a snapshot: dicts, lists, tuples, numbers, texts, and bytes.

A set is read as a list, and keys that are numbers as texts: both stand only where a later PyTorch has added something.

Python's unpickler is not used. Refusing its globals does not stop a ten-byte file that asks for a memo of 2**28
entries, nor nested tuples as the key of a dict, whose hash takes for ever. Here every opcode takes constant time, keys
are texts, and what is built is bounded by the bytes that the file really has. Long runs of alike trace entries are
read as columns by `lanes`.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from dataclasses import dataclass
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

from ipygpumem.errors import SnapshotError, SnapshotFormatError, SnapshotLimitError, SnapshotUnsafeError
from ipygpumem.snapshot import opcodes as op
from ipygpumem.snapshot.front import MARGIN
from ipygpumem.snapshot.lanes import find_lanes

if TYPE_CHECKING:
    from ipygpumem.snapshot.lanes import Lanes
    from ipygpumem.snapshot.limits import Limits

__all__ = ["Held", "Machine", "Run"]

_CONSTANTS = {op.NONE: None, op.NEWTRUE: True, op.NEWFALSE: False}
_INTS = {op.BININT1: 1, op.BININT2: 2, op.BININT: 4}
_TEXTS = {op.SHORT_BINUNICODE: 1, op.BINUNICODE: 4, op.BINUNICODE8: 8}
_OCTETS = {op.SHORT_BINBYTES: 1, op.BINBYTES: 4, op.BINBYTES8: 8, op.BYTEARRAY8: 8}
_GETS = {op.BINGET: 1, op.LONG_BINGET: 4}
_PUTS = {op.BINPUT: 1, op.LONG_BINPUT: 4}
_LONGS = {op.LONG1: 1, op.LONG4: 4}
_MEMO_CODES = frozenset({op.MEMOIZE, *_PUTS})
_TUPLES = {op.TUPLE1: 1, op.TUPLE2: 2, op.TUPLE3: 3}
_PROTOCOLS = range(2, 6)
_INT_BYTES = 16
_BULK = 1 << 14  # bytes still to come from which on it pays to look for lanes
_TEMPLATES = 8
_HELD = object()
_HUGE = "(a number beyond 128 bits)"
_PLAIN = {str, int, float, bool, type(None)}


@dataclass(frozen=True, slots=True)
class Held:
    """An object that lies in a lane, by its memo index."""

    index: int


@dataclass(frozen=True, slots=True)
class Run:
    """Entries of a list, read as lanes ``first`` to ``stop`` (excluded), and the memo index of the first one."""

    lanes: Lanes
    first: int
    stop: int
    memo: int


class Machine:
    """Reads one pickle. After `read`, ``memo`` and ``runs`` serve to resolve what lies in lanes."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        self._data = data
        self._limits = limits
        self._heads: dict[int, tuple[Lanes, int]] = {}
        self._tried: set[tuple[str, ...]] = set()
        self.memo: list[Any] = []
        self.runs: list[Run] = []

    def _fail(self, kind: type[SnapshotError], what: str, position: int) -> NoReturn:
        raise kind(f"{what} (at byte {position:,})")

    def _truncated(self) -> NoReturn:
        self._fail(SnapshotFormatError, "the pickle is cut off: it ends in the middle", len(self._data))

    def read(self) -> Any:
        """The object that the pickle holds. A list in it may hold a `Run` in place of dicts.

        Raises:
            SnapshotError: Cut off, not a pickle, wants to run code, or beyond the limits.
        """
        try:
            return self._read()
        except IndexError:
            raise SnapshotFormatError("the pickle is broken: an opcode finds nothing to work on") from None

    def _read(self) -> Any:  # noqa: C901, PLR0912, PLR0915 (one loop over the opcodes, the frequent ones first)
        data, end, memo, heads = self._data, len(self._data), self.memo, self._heads
        stack: list[Any] = []
        outer: list[list[Any]] = []
        spare = self._limits.objects(end)
        at = 0
        while True:
            if at >= end:
                self._truncated()
            code = data[at]
            at += 1
            if code in _GETS:
                width = _GETS[code]
                index = int.from_bytes(data[at : at + width], "little")
                at += width
                if index >= len(memo):
                    self._fail(SnapshotFormatError, f"memo entry {index:,} is read before it is written", at)
                value = memo[index]
                stack.append(self._recall(index) if value is _HELD else value)
            elif code in _INTS:
                width = _INTS[code]
                stack.append(int.from_bytes(data[at : at + width], "little", signed=code == op.BININT))
                at += width
            elif code == op.MEMOIZE:
                memo.append(stack[-1])
            elif code == op.MARK:
                outer.append(stack)
                stack = []
                if len(outer) > self._limits.depth:
                    self._fail(SnapshotLimitError, f"more than {self._limits.depth} lists and dicts are nested", at)
            elif code in _TEXTS:
                width = _TEXTS[code]
                size = int.from_bytes(data[at : at + width], "little")
                at += width
                if at + size > end:
                    self._truncated()
                stack.append(self._decoded(data[at : at + size], at))
                at += size
                spare -= 1
            elif code == op.EMPTY_DICT:  # or the first of a run of entries in a list
                if at - 1 in heads and outer and outer[-1] and type(outer[-1][-1]) is list:
                    run = self._take(*heads[at - 1])
                    stack.append(run)
                    at = int(run.lanes.end[run.stop - 1])
                else:
                    stack.append({})
                    spare -= 1
            elif code in {op.EMPTY_LIST, op.EMPTY_SET}:
                stack.append([])
                spare -= 1
            elif code in _LONGS:
                width = _LONGS[code]
                size = int.from_bytes(data[at : at + width], "little")
                at += width
                if at + size > end:
                    self._truncated()
                small = size <= _INT_BYTES
                stack.append(int.from_bytes(data[at : at + size], "little", signed=True) if small else _HUGE)
                at += size
            elif code in _OCTETS:
                width = _OCTETS[code]
                size = int.from_bytes(data[at : at + width], "little")
                at += width + size
                if at > end:
                    self._truncated()
                stack.append(data[at - size : at])
                spare -= 1
            elif code == op.SETITEMS:
                items, stack = stack, outer.pop()
                self._set(stack[-1], items, at)
            elif code in {op.APPENDS, op.ADDITEMS}:
                items, stack = stack, outer.pop()
                self._list(stack[-1], at).extend(items)
            elif code == op.APPEND:
                item = stack.pop()
                self._list(stack[-1], at).append(item)
            elif code == op.SETITEM:
                value = stack.pop()
                key = stack.pop()
                self._set(stack[-1], [key, value], at)
            elif code in _TUPLES:
                count = _TUPLES[code]
                if count > len(stack):
                    raise IndexError
                stack[-count:] = [self._tuple(stack[-count:], at)]
                spare -= 1
            elif code in {op.TUPLE, op.FROZENSET}:
                items, stack = stack, outer.pop()
                stack.append(self._tuple(items, at))
                spare -= 1
            elif code == op.EMPTY_TUPLE:
                stack.append(())
            elif code in _CONSTANTS:
                stack.append(_CONSTANTS[code])
            elif code == op.BINFLOAT:
                if at + 8 > end:
                    self._truncated()
                stack.append(struct.unpack_from(">d", data, at)[0])
                at += 8
            elif code in _PUTS:
                width = _PUTS[code]
                self._put(int.from_bytes(data[at : at + width], "little"), stack[-1], at)
                at += width
            elif code == op.FRAME:
                at += 8
            elif code == op.PROTO:
                protocol = int.from_bytes(data[at : at + 1], "little")
                if protocol not in _PROTOCOLS:
                    self._fail(SnapshotFormatError, f"pickle protocol {protocol} is not known", at)
                at += 1
            elif code == op.STOP:
                root = stack.pop()
                if stack or outer or type(root) is Run:
                    self._fail(SnapshotFormatError, "the pickle ends with things left over", at)
                return root
            else:
                self._refuse(code, at - 1)
            if spare < 0:
                self._fail(SnapshotLimitError, "more objects than a file of this size can hold", at)
            if code == op.SETITEMS and type(stack[-1]) is dict and "action" in stack[-1]:
                self._learn(stack[-1], at)

    def _recall(self, index: int) -> Any:
        """A memo entry that lies in a lane: a text as such, anything else as `Held`."""
        run = self.runs[bisect_right(self.runs, index, key=attrgetter("memo")) - 1]
        octets = run.lanes.text(run.first, index - run.memo)
        # Python has one empty text and one of each letter, so that any key or name may be the text of some entry
        value = Held(index) if octets is None else self._decoded(octets, int(run.lanes.start[run.first]))
        self.memo[index] = value
        return value

    def _decoded(self, octets: bytes, at: int) -> str:
        try:
            return octets.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            self._fail(SnapshotFormatError, "a text is not UTF-8", at)

    def _refuse(self, code: int, at: int) -> NoReturn:
        if code in op.UNSAFE:
            self._fail(SnapshotUnsafeError, f"the pickle wants to run code or load a class, {op.UNSAFE[code]}", at)
        if at == 0:
            raise SnapshotFormatError("not a snapshot: neither a pickle nor JSON")
        self._fail(SnapshotFormatError, f"opcode 0x{code:02x} has no place in a snapshot", at)

    def _put(self, index: int, value: Any, at: int) -> None:
        if index < len(self.memo):
            self.memo[index] = value
        elif index == len(self.memo):
            self.memo.append(value)
        else:
            self._fail(SnapshotLimitError, f"memo entry {index:,} is written when there are {len(self.memo):,}", at)

    def _list(self, target: Any, at: int) -> list[Any]:
        if type(target) is not list:
            self._fail(SnapshotFormatError, "something is appended to what is no list", at)
        return target

    def _tuple(self, items: list[Any], at: int) -> tuple[Any, ...]:
        if Run in map(type, items):
            self._fail(SnapshotFormatError, "trace entries stand in a tuple", at)
        return tuple(items)

    def _set(self, target: Any, items: list[Any], at: int) -> None:
        keys, values = items[::2], items[1::2]
        if type(target) is not dict or len(keys) != len(values) or Run in map(type, values):
            self._fail(SnapshotFormatError, "a dict is filled with what are no pairs", at)
        if not set(map(type, keys)) <= {str}:
            if not set(map(type, keys)) <= _PLAIN:
                self._fail(SnapshotFormatError, "the key of a dict is neither text nor number", at)
            keys = list(map(str, keys))  # whose hash nobody can foresee
        target.update(zip(keys, values, strict=True))

    def _learn(self, entry: dict[str, Any], at: int) -> None:
        """Look for entries with the same keys in the rest of the file, once for each set of keys."""
        if (
            len(self._data) - at < max(_BULK, 2 * MARGIN)
            or len(self._tried) >= _TEMPLATES
            or tuple(entry) in self._tried
        ):
            return
        self._tried.add(tuple(entry))
        index = {id(value): number for number, value in enumerate(self.memo) if type(value) is str}
        references = {key: index.get(id(key)) for key in entry}
        keys = {key: _reference(number) for key, number in references.items() if number is not None}
        if len(keys) == len(entry):
            lanes = find_lanes(self._data, at, keys)
            self._heads.update((position, (lanes, first)) for position, first in lanes.heads.items())

    def _take(self, lanes: Lanes, first: int) -> Run:
        stop = int(lanes.stop[first])
        after = int(lanes.end[stop - 1])
        if self._data[after] in _MEMO_CODES:
            self._fail(SnapshotFormatError, "a trace entry is put into the memo twice", after)
        run = Run(lanes, first, stop, len(self.memo))
        self.runs.append(run)
        self.memo.extend(repeat(_HELD, int(lanes.memos[first:stop].sum())))
        return run


def _reference(index: int) -> bytes:
    """How the pickler refers to a memo entry."""
    return bytes([op.BINGET, index]) if index < 1 << 8 else bytes([op.LONG_BINGET]) + index.to_bytes(4, "little")
