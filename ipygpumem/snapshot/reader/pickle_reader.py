"""An own reader of pickles that hold a snapshot: dicts, lists, tuples, numbers, texts, and bytes.

A set is read as a list, and keys that are numbers as texts: both stand only where a later PyTorch has added something.

Python's unpickler is not used. Refusing its globals does not stop a ten-byte file that asks for a memo of 2**28
entries, nor nested tuples as the key of a dict, whose hash takes for ever. Here every opcode takes constant time, keys
are texts, and what is built is bounded by the bytes that the file really has. Long runs of alike trace entries are
read as columns by `lanes`.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from ipygpumem.core.errors import SnapshotError, SnapshotFormatError, SnapshotLimitError, SnapshotUnsafeError
from ipygpumem.snapshot.reader import opcodes as op
from ipygpumem.snapshot.reader.batches import find_lanes
from ipygpumem.snapshot.reader.checks import Huge
from ipygpumem.snapshot.reader.cursor import MARGIN
from ipygpumem.snapshot.reader.expand_batches import spread, unfold
from ipygpumem.snapshot.reader.memo_table import HELD, Memo, Run

if TYPE_CHECKING:
    from ipygpumem.snapshot.reader.batches import Lanes
    from ipygpumem.snapshot.reader.limits import Limits
    from ipygpumem.snapshot.reader.memo_table import Window

__all__ = ["Machine", "Run"]

_CONSTANTS = {op.NONE: None, op.NEWTRUE: True, op.NEWFALSE: False}
_INTS = {op.BININT1: 1, op.BININT2: 2, op.BININT: 4}
_TEXTS = {op.SHORT_BINUNICODE: 1, op.BINUNICODE: 4, op.BINUNICODE8: 8}
_OCTETS = {op.SHORT_BINBYTES: 1, op.BINBYTES: 4, op.BINBYTES8: 8, op.BYTEARRAY8: 8}
_GETS = {op.BINGET: 1, op.LONG_BINGET: 4}
_PUTS = {op.BINPUT: 1, op.LONG_BINPUT: 4}
_LONGS = {op.LONG1: 1, op.LONG4: 4}
_DONE = frozenset({op.APPENDS, op.EMPTY_DICT, op.FRAME})  # behind an entry: nothing more is done to it
_TUPLES = {op.TUPLE1: 1, op.TUPLE2: 2, op.TUPLE3: 3}
_PROTOCOLS = range(2, 6)
_INT_BYTES = 16
_BULK = 1 << 14  # bytes still to come from which on it pays to look for lanes
_TEMPLATES = 8
_HUGE = Huge("(a number beyond 128 bits)")
_PLAIN = {str, int, float, bool, type(None), Huge}


class Machine:
    """Reads one pickle. After `read`, ``memo`` serves to resolve what lies in lanes."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        self._data = data
        self._limits = limits
        self._heads: dict[int, tuple[Lanes, int]] = {}
        self._tried: set[tuple[str, ...]] = set()
        # not a method of this object: it would be a cycle, and keep the whole file until the next collection
        self.memo = Memo(partial(_entry, data, limits))

    @property
    def runs(self) -> list[Run]:
        """What was read as lanes."""
        return self.memo.runs

    def _fail(self, kind: type[SnapshotError], what: str, position: int) -> NoReturn:
        raise kind(f"{what} (at byte {position:,})")

    def _truncated(self) -> NoReturn:
        self._fail(SnapshotFormatError, "the pickle is cut off: it ends in the middle", len(self._data))

    def read(self) -> Any:
        """The object that the pickle holds. A list of events in it may hold a `Run` in place of dicts.

        Raises:
            SnapshotError: Cut off, not a pickle, wants to run code, or beyond the limits.
        """
        try:
            root = self.run(0, len(self._data), self.memo)
        except IndexError:
            raise SnapshotFormatError("the pickle is broken: an opcode finds nothing to work on") from None
        if self.memo.runs:
            unfold(root, self.memo)
        return root

    def run(self, at: int, end: int, memo: Memo | Window) -> Any:  # noqa: C901, PLR0912, PLR0915 (one loop over the opcodes, the frequent ones first)
        """Read opcodes up to the end of the pickle, or of the one entry that stands between two positions."""
        data, heads = self._data, self._heads
        stack: list[Any] = []
        outer: list[list[Any]] = []
        spare = self._limits.objects(end - at)
        while True:
            if at >= end:
                if end < len(data):
                    return stack[0]
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
                stack.append(memo.recall(index) if value is HELD else value)
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
                run = None
                if at - 1 in heads and outer and outer[-1] and type(outer[-1][-1]) is list:
                    run = self._take(*heads[at - 1])
                if run is not None:
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
                self._set(stack[-1], items, memo, at)
            elif code in {op.APPENDS, op.ADDITEMS}:
                items, stack = stack, outer.pop()
                self._list(stack[-1], memo, at).extend(items)
            elif code == op.APPEND:
                if type(stack[-1]) is Run:
                    spread(stack, self.memo, 1)
                item = stack.pop()
                self._list(stack[-1], memo, at).append(item)
            elif code == op.SETITEM:
                if self.memo.runs:
                    spread(stack, self.memo, 3)
                value = stack.pop()
                key = stack.pop()
                self._set(stack[-1], [key, value], memo, at)
            elif code in _TUPLES:
                count = _TUPLES[code]
                if self.memo.runs:
                    spread(stack, self.memo, count)
                if count > len(stack):
                    raise IndexError
                stack[-count:] = [tuple(stack[-count:])]
                spare -= 1
            elif code in {op.TUPLE, op.FROZENSET}:
                items, stack = stack, outer.pop()
                if self.memo.runs:
                    spread(items, self.memo)
                stack.append(tuple(items))
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
            if code == op.SETITEMS and memo is self.memo and "action" in stack[-1]:
                self._learn(stack[-1], at)

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
        memo = self.memo
        if index > len(memo):
            self._fail(SnapshotLimitError, f"memo entry {index:,} is written when there are {len(memo):,}", at)
        if index == len(memo):
            memo.append(value)
        elif self._tried:  # lanes may refer to it
            self._fail(SnapshotFormatError, f"memo entry {index:,} is written twice", at)
        else:
            memo[index] = value

    def _list(self, target: Any, memo: Memo | Window, at: int) -> list[Any]:
        if type(target) is not list:
            self._fail(SnapshotFormatError, "something is appended to what is no list", at)
        if memo.frozen and id(target) in memo.frozen:
            self._fail(SnapshotFormatError, "something is appended to a list inside a trace entry", at)
        return target

    def _set(self, target: Any, items: list[Any], memo: Memo | Window, at: int) -> None:
        if self.memo.runs:
            spread(items, self.memo)
        keys, values = items[::2], items[1::2]
        if type(target) is not dict or len(keys) != len(values):
            self._fail(SnapshotFormatError, "a dict is filled with what are no pairs", at)
        if memo.frozen and id(target) in memo.frozen:
            self._fail(SnapshotFormatError, "a trace entry is changed", at)
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

    def _take(self, lanes: Lanes, first: int) -> Run | None:
        """The entries from a position on as lanes; None if there are none."""
        stop = int(lanes.stop[first])
        if self._data[int(lanes.end[stop - 1])] not in _DONE:
            stop -= 1
        return self.memo.take(lanes, first, stop) if stop > first else None


def _entry(data: bytes, limits: Limits, start: int, end: int, window: Window) -> dict[str, Any]:
    """One entry that was read as a lane."""
    entry: dict[str, Any] = Machine(data, limits).run(start, end, window)
    return entry


def _reference(index: int) -> bytes:
    """How the pickler refers to a memo entry."""
    return bytes([op.BINGET, index]) if index < 1 << 8 else bytes([op.LONG_BINGET]) + index.to_bytes(4, "little")
