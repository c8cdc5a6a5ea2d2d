"""Reads pickles that contain a snapshot: dicts, lists, tuples, numbers, texts and bytes.

Sets are read as lists, and keys that are numbers as texts: both occur only where a later PyTorch has added something.

Python's unpickler is not used. Refusing its globals does not stop a ten-byte file that asks for a memo of 2**28
entries, nor nested tuples as the key of a dict, whose hash takes exponential time. Here every opcode takes constant
time, keys are texts, and the number of objects is limited by the size of the file. Long runs of similar trace entries
are read as columns by `batch_reader`.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from ipygpumem.core.errors import SnapshotError, SnapshotFormatError, SnapshotLimitError, SnapshotUnsafeError
from ipygpumem.snapshot.reader import opcodes as op
from ipygpumem.snapshot.reader.batch_reader import find_entries
from ipygpumem.snapshot.reader.checks import HugeNumber
from ipygpumem.snapshot.reader.field_reader import MARGIN
from ipygpumem.snapshot.reader.memo_table import PENDING, Memo, Run, expand, expand_all

if TYPE_CHECKING:
    from ipygpumem.snapshot.reader.batch_reader import Entries
    from ipygpumem.snapshot.reader.limits import Limits
    from ipygpumem.snapshot.reader.memo_table import EntryMemo

__all__ = ["PickleReader"]

_CONSTANTS = {op.NONE: None, op.NEWTRUE: True, op.NEWFALSE: False}
# By opcode: bytes of the operand, or of the length that precedes the value
_INTS = {op.BININT1: 1, op.BININT2: 2, op.BININT: 4}
_TEXTS = {op.SHORT_BINUNICODE: 1, op.BINUNICODE: 4, op.BINUNICODE8: 8}
_BYTES = {op.SHORT_BINBYTES: 1, op.BINBYTES: 4, op.BINBYTES8: 8, op.BYTEARRAY8: 8}
_GETS = {op.BINGET: 1, op.LONG_BINGET: 4}
_PUTS = {op.BINPUT: 1, op.LONG_BINPUT: 4}
_LONGS = {op.LONG1: 1, op.LONG4: 4}
_SIZED = _TEXTS | _BYTES | _LONGS
_TUPLES = {op.TUPLE1: 1, op.TUPLE2: 2, op.TUPLE3: 3}
_AFTER_ENTRY = frozenset({op.APPENDS, op.EMPTY_DICT, op.FRAME})  # none of these changes the entry or refers to it
_PROTOCOLS = range(2, 6)
_MAX_INT_BYTES = 16
_MIN_BATCH = 1 << 14  # remaining bytes for which it is worth searching for entries
_MAX_TEMPLATES = 8
_HUGE = HugeNumber("(a number beyond 128 bits)")
_KEY_TYPES = {str, int, float, bool, type(None), HugeNumber}


class PickleReader:
    """Reads one pickle. After `read`, ``memo`` resolves references in the entries that were read in batches."""

    def __init__(self, data: bytes, limits: Limits) -> None:
        self._data = data
        self._limits = limits
        self._batches: dict[int, tuple[Entries, int]] = {}
        self._templates: set[tuple[str, ...]] = set()
        # a method of this object would make a reference cycle, which keeps the file until the next garbage collection
        self.memo = Memo(partial(_decode_entry, data, limits))

    def read(self) -> Any:
        """The object in the pickle. A list of events in it may contain a `Run` in place of dicts.

        Raises:
            SnapshotError: The data is truncated, is not a pickle, would run code, or exceeds the limits.
        """
        try:
            root = self.run(0, len(self._data), self.memo)
        except IndexError:
            raise SnapshotFormatError("the pickle is broken: an opcode has no operand on the stack") from None
        if self.memo.runs:
            expand_all(root, self.memo)
        return root

    def run(self, at: int, end: int, memo: Memo | EntryMemo) -> Any:  # noqa: C901, PLR0912, PLR0915 (one loop over the opcodes, the frequent ones first)
        """Execute opcodes up to the end of the pickle, or of the single entry between two positions."""
        data, batches = self._data, self._batches
        stack: list[Any] = []
        outer: list[list[Any]] = []
        objects_left = self._limits.objects(end - at)
        while True:
            if at >= end:
                if end < len(data):
                    return stack[0]
                self._fail_truncated()
            code = data[at]
            at += 1
            if code in _GETS:
                width = _GETS[code]
                index = int.from_bytes(data[at : at + width], "little")
                at += width
                if index >= len(memo):
                    self._fail(SnapshotFormatError, f"memo entry {index:,} is read before it is written", at)
                value = memo[index]
                stack.append(memo.get(index) if value is PENDING else value)
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
            elif code == op.EMPTY_DICT:  # or the first of a run of entries in a list
                run = None
                if at - 1 in batches and outer and outer[-1] and type(outer[-1][-1]) is list:
                    run = self._start_run(*batches[at - 1])
                if run is not None:
                    stack.append(run)
                    at = int(run.entries.end[run.stop - 1])
                else:
                    stack.append({})
                    objects_left -= 1
            elif code in {op.EMPTY_LIST, op.EMPTY_SET}:
                stack.append([])
                objects_left -= 1
            elif code in _SIZED:
                width = _SIZED[code]
                size = int.from_bytes(data[at : at + width], "little")
                at += width
                if at + size > end:
                    self._fail_truncated()
                stack.append(self._sized_value(code, at, size))
                at += size
                objects_left -= code not in _LONGS
            elif code == op.SETITEMS:
                items, stack = stack, outer.pop()
                self._set_items(stack[-1], items, memo, at)
            elif code in {op.APPENDS, op.ADDITEMS}:
                items, stack = stack, outer.pop()
                self._check_list(stack[-1], memo, at).extend(items)
            elif code == op.APPEND:
                if type(stack[-1]) is Run:
                    expand(stack, self.memo, 1)
                item = stack.pop()
                self._check_list(stack[-1], memo, at).append(item)
            elif code == op.SETITEM:
                if self.memo.runs:
                    expand(stack, self.memo, 3)
                value = stack.pop()
                key = stack.pop()
                self._set_items(stack[-1], [key, value], memo, at)
            elif code in _TUPLES:
                count = _TUPLES[code]
                if self.memo.runs:
                    expand(stack, self.memo, count)
                if count > len(stack):
                    raise IndexError
                stack[-count:] = [tuple(stack[-count:])]
                objects_left -= 1
            elif code in {op.TUPLE, op.FROZENSET}:
                items, stack = stack, outer.pop()
                if self.memo.runs:
                    expand(items, self.memo)
                stack.append(tuple(items))
                objects_left -= 1
            elif code == op.EMPTY_TUPLE:
                stack.append(())
            elif code in _CONSTANTS:
                stack.append(_CONSTANTS[code])
            elif code == op.BINFLOAT:
                if at + 8 > end:
                    self._fail_truncated()
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
                    self._fail(SnapshotFormatError, f"pickle protocol {protocol} is not supported", at)
                at += 1
            elif code == op.STOP:
                root = stack.pop()
                if stack or outer or type(root) is Run:
                    self._fail(SnapshotFormatError, "the pickle ends with objects left on the stack", at)
                return root
            else:
                self._refuse(code, at - 1)
            if objects_left < 0:
                self._fail(SnapshotLimitError, "more objects than a file of this size can contain", at)
            if code == op.SETITEMS and memo is self.memo and "action" in stack[-1]:
                self._find_similar(stack[-1], at)

    def _sized_value(self, code: int, at: int, size: int) -> Any:
        if code in _LONGS:
            small = size <= _MAX_INT_BYTES
            return int.from_bytes(self._data[at : at + size], "little", signed=True) if small else _HUGE
        octets = self._data[at : at + size]
        if code in _BYTES:
            return octets
        try:
            return octets.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            self._fail(SnapshotFormatError, "a text is not UTF-8", at)

    def _fail(self, kind: type[SnapshotError], problem: str, position: int) -> NoReturn:
        raise kind(f"{problem} (at byte {position:,})")

    def _fail_truncated(self) -> NoReturn:
        self._fail(SnapshotFormatError, "the pickle is truncated", len(self._data))

    def _refuse(self, code: int, at: int) -> NoReturn:
        if code in op.UNSAFE:
            self._fail(SnapshotUnsafeError, f"the pickle would run code or load a class, {op.UNSAFE[code]}", at)
        if at == 0:
            raise SnapshotFormatError("not a snapshot: neither a pickle nor JSON")
        self._fail(SnapshotFormatError, f"opcode 0x{code:02x} does not occur in snapshots", at)

    def _put(self, index: int, value: Any, at: int) -> None:
        memo = self.memo
        if index > len(memo):
            self._fail(SnapshotLimitError, f"memo entry {index:,} is written when there are {len(memo):,}", at)
        if index == len(memo):
            memo.append(value)
        elif self._templates:  # entries read in batches may refer to it
            self._fail(SnapshotFormatError, f"memo entry {index:,} is written twice", at)
        else:
            memo[index] = value

    def _check_list(self, target: Any, memo: Memo | EntryMemo, at: int) -> list[Any]:
        if type(target) is not list:
            self._fail(SnapshotFormatError, "an item is appended to an object that is not a list", at)
        if memo.frozen and id(target) in memo.frozen:
            self._fail(SnapshotFormatError, "an item is appended to a list inside a trace entry", at)
        return target

    def _set_items(self, target: Any, items: list[Any], memo: Memo | EntryMemo, at: int) -> None:
        if self.memo.runs:
            expand(items, self.memo)
        keys, values = items[::2], items[1::2]
        if type(target) is not dict or len(keys) != len(values):
            self._fail(SnapshotFormatError, "items are set that are not pairs, or not in a dict", at)
        if memo.frozen and id(target) in memo.frozen:
            self._fail(SnapshotFormatError, "a trace entry is changed after it was read", at)
        if not set(map(type, keys)) <= {str}:
            if not set(map(type, keys)) <= _KEY_TYPES:
                self._fail(SnapshotFormatError, "the key of a dict is neither text nor number", at)
            keys = list(map(str, keys))  # the hash of a text cannot be predicted
        target.update(zip(keys, values, strict=True))

    def _find_similar(self, entry: dict[str, Any], at: int) -> None:
        """Search the rest of the file for entries with the same keys, once for each set of keys."""
        remaining = len(self._data) - at
        if remaining < max(_MIN_BATCH, 2 * MARGIN) or len(self._templates) >= _MAX_TEMPLATES:
            return
        template = tuple(entry)
        if template in self._templates:
            return
        self._templates.add(template)
        index = {id(value): number for number, value in enumerate(self.memo) if type(value) is str}
        references = {key: index.get(id(key)) for key in entry}
        keys = {key: _reference(number) for key, number in references.items() if number is not None}
        if len(keys) == len(entry):
            entries = find_entries(self._data, at, keys)
            self._batches.update((position, (entries, first)) for position, first in entries.runs.items())

    def _start_run(self, entries: Entries, first: int) -> Run | None:
        """Take the entries from a position on as a run; None if there are none."""
        stop = int(entries.run_end[first])
        if self._data[int(entries.end[stop - 1])] not in _AFTER_ENTRY:
            stop -= 1
        return self.memo.add_run(entries, first, stop) if stop > first else None


def _decode_entry(data: bytes, limits: Limits, start: int, end: int, memo: EntryMemo) -> dict[str, Any]:
    entry: dict[str, Any] = PickleReader(data, limits).run(start, end, memo)
    return entry


def _reference(index: int) -> bytes:
    """The bytes by which the pickler refers to a memo entry."""
    return bytes([op.BINGET, index]) if index < 1 << 8 else bytes([op.LONG_BINGET]) + index.to_bytes(4, "little")
