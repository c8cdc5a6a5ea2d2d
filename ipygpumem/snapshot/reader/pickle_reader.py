"""Reader for pickled snapshots, which consist of dicts, lists, tuples, numbers, strings and bytes.

Sets are read as lists, and numeric keys as strings. Both can occur only in fields added by later PyTorch versions. See
FORMAT.md for the reasons not to use Python's unpickler. Long sequences of trace entries with the same keys are read as
columns by `entry_batches`. A file that `entry_batches` does not support is read again value by value.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from itertools import repeat
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ipygpumem.core.errors import SnapshotError, SnapshotFormatError, SnapshotLimitError, UnsafeSnapshotError
from ipygpumem.snapshot.reader import opcodes as op
from ipygpumem.snapshot.reader.checks import OversizedInteger
from ipygpumem.snapshot.reader.entry_batches import CandidateRuns, EntryBatch, EntryRun, NotColumnarError, find_entries
from ipygpumem.snapshot.reader.field_reader import MARGIN

if TYPE_CHECKING:
    from ipygpumem.snapshot.reader.load import ReadLimits

_CONSTANTS = {op.NONE: None, op.NEWTRUE: True, op.NEWFALSE: False, op.EMPTY_TUPLE: ()}
# By opcode: size in bytes of the operand, or of the length field that precedes the value
_INTS = {op.BININT1: 1, op.BININT2: 2, op.BININT: 4}
_TEXTS = {op.SHORT_BINUNICODE: 1, op.BINUNICODE: 4, op.BINUNICODE8: 8}
_BYTES = {op.SHORT_BINBYTES: 1, op.BINBYTES: 4, op.BINBYTES8: 8, op.BYTEARRAY8: 8}
_GETS = {op.BINGET: 1, op.LONG_BINGET: 4}
_PUTS = {op.BINPUT: 1, op.LONG_BINPUT: 4}
_LONGS = {op.LONG1: 1, op.LONG4: 4}
_SIZED = _TEXTS | _BYTES | _LONGS
_TUPLES = {op.TUPLE1: 1, op.TUPLE2: 2, op.TUPLE3: 3}
_AFTER_RUN = frozenset({op.APPENDS, op.EMPTY_DICT})  # neither modifies nor refers to the last entry
_TRUNCATED = "the pickle is truncated"
_FRAME_SIZE = 9
_PROTOCOLS = range(2, 6)
_MAX_INT_BYTES = 16
_MIN_LONG = 4  # bytes above which the memory for an integer is small compared to the file
_MIN_BATCH = 1 << 14  # minimum remaining bytes for which searching for entries is faster
_MAX_TEMPLATES, _MAX_KEYS = 6, 16  # PyTorch writes up to 14 keys; each is examined in all candidate entries of a file
DICT_WEIGHT = 1.5  # a dict needs more memory than other objects
_LONG = 1 << 8  # length of strings above which comparing them takes a long time
_HUGE = OversizedInteger("(an integer of more than 128 bits)")
_MAX_CHAIN = 20  # maximum number of entries that are decoded recursively
_PENDING = object()  # in the memo: an object in a run, which is decoded on demand
_KEY_TYPES = {str, int, float, bool, type(None), OversizedInteger}


class PickleReader:
    """Reader for the pickle of a snapshot.

    Attributes:
        memo: Objects that opcodes can refer to. Use `memoized` to access them.
        runs: `EntryRun` objects in file order. In lists of events, they replace the entries that they represent.
    """

    def __init__(self, data: bytes, limits: ReadLimits, *, columnar: bool = True) -> None:
        self._data = data
        self._limits = limits
        self._columnar = columnar
        self._templates: set[tuple[str, ...]] = set()
        self._candidates = CandidateRuns()
        self._lists_with_runs: set[int] = set()
        self._long_texts: dict[str, str] = {}
        # ids of the lists and dicts in decoded entries, which must not change because the columns would become outdated
        self._frozen: set[int] = set()
        self.memo: list[Any] = []
        self.runs: list[EntryRun] = []

    def read(self) -> Any:
        """Return the object in the pickle. Lists of events may contain `EntryRun` objects instead of dicts.

        Raises:
            SnapshotError: The data is truncated, is not a pickle, would run code, or exceeds the limits.
            NotColumnarError: The data must be read with ``columnar=False``.
        """
        try:
            return self._execute(self._data)
        except IndexError:
            raise SnapshotFormatError("the pickle is damaged: an opcode has no operand on the stack") from None

    def memoized(self, index: int, chain: int = 0) -> Any:
        """Return the object at a memo index. Raises `NotColumnarError` if the recursion (``chain``) is too deep."""
        if self.memo[index] is _PENDING:
            # take the last run with this memo index: the runs before it do not contain memoized objects
            run = self.runs[bisect_right(self.runs, index, key=attrgetter("memo_index")) - 1]
            before = run.entries.memo_before
            entry = int(np.searchsorted(before, index - run.memo_index + before[run.first], side="right")) - 1
            memo_start = run.memo_index + int(before[entry] - before[run.first])
            self.decode(self._data[run.entries.start[entry] : run.entries.end[entry]], memo_start, chain + 1)
            memoized = self.memo[memo_start : memo_start + int(before[entry + 1] - before[entry])]
            self._frozen.update(id(value) for value in memoized if type(value) in {dict, list})
        return self.memo[index]

    def decode(self, opcodes: bytes, memo_index: int, chain: int = 0) -> Any:
        """Return the object that ``opcodes`` create. ``memo_index`` is the memo index of its first memoized part."""
        if chain > _MAX_CHAIN:
            raise NotColumnarError
        return self._execute(opcodes + bytes([op.STOP]), memo_index, chain)

    def _execute(self, data: bytes, memo_index: int = 0, chain: int = 0) -> Any:  # noqa: C901, PLR0912, PLR0915 (one loop over the opcodes, in order of frequency)
        memo = self.memo
        candidates = self._candidates if data is self._data else CandidateRuns()
        stack: list[Any] = []
        outer: list[list[Any]] = []
        at, end = 0, len(data)
        objects_left: float = self._limits.objects(end)
        while True:
            if at >= end:
                self._fail(SnapshotFormatError, _TRUNCATED, end)
            code = data[at]
            at += 1
            if code in _GETS:
                width = _GETS[code]
                index = int.from_bytes(data[at : at + width], "little")
                at += width
                if index >= memo_index:
                    self._fail(SnapshotFormatError, f"memo entry {index:,} is read before it is written", at)
                value = memo[index]
                if value is _PENDING:
                    value = self.memoized(index, chain)
                elif type(value) is list and id(value) in self._lists_with_runs:
                    raise NotColumnarError
                stack.append(value)
            elif code in _INTS:
                width = _INTS[code]
                stack.append(int.from_bytes(data[at : at + width], "little", signed=code == op.BININT))
                at += width
                objects_left -= width > 1  # Python stores small integers once
            elif code == op.MEMOIZE:
                if memo_index == len(memo):
                    memo.append(stack[-1])
                else:
                    memo[memo_index] = stack[-1]
                memo_index += 1
            elif code == op.MARK:
                outer.append(stack)
                stack = []
                if len(outer) > self._limits.depth:
                    self._fail(SnapshotLimitError, f"the nesting depth exceeds the limit of {self._limits.depth}", at)
            elif code == op.EMPTY_DICT:  # may start a run of entries in a list of events
                candidate = candidates.pop(at - 1, outer) if at > candidates.next_position else None
                run = self._start_run(*candidate, memo_index) if candidate else None
                stack.append({} if run is None else run)
                objects_left -= DICT_WEIGHT
                if run is not None:
                    self._lists_with_runs.add(id(outer[-1][-1]))
                    at, memo_index = int(run.entries.end[run.stop - 1]), len(memo)
            elif code in {op.EMPTY_LIST, op.EMPTY_SET}:
                stack.append([])
                objects_left -= 1
            elif code in _SIZED:
                width = _SIZED[code]
                size = int.from_bytes(data[at : at + width], "little")
                at += width
                if at + size > end:
                    self._fail(SnapshotFormatError, _TRUNCATED, end)
                stack.append(self._sized_value(code, data[at : at + size], at))
                at += size
                objects_left -= code not in _LONGS or size < _MIN_LONG
            elif code == op.SETITEMS:
                items, stack = stack, outer.pop()
                self._set_items(stack[-1], items, at)
            elif code in {op.APPENDS, op.ADDITEMS}:
                items, stack = stack, outer.pop()
                self._check_list(stack[-1], at).extend(items)
            elif code == op.APPEND:
                item = stack.pop()
                self._check_list(stack[-1], at).append(item)
            elif code == op.SETITEM:
                items = [stack.pop(-2), stack.pop()]
                self._set_items(stack[-1], items, at)
            elif code in _TUPLES:
                count = _TUPLES[code]
                items = stack[-count:]
                self._check_no_run(items)
                if len(items) < count:
                    raise IndexError
                stack[-count:] = [tuple(items)]
                objects_left -= 1
            elif code in {op.TUPLE, op.FROZENSET}:
                items, stack = stack, outer.pop()
                self._check_no_run(items)
                stack.append(tuple(items))
                objects_left -= 1
            elif code in _CONSTANTS:
                stack.append(_CONSTANTS[code])
            elif code == op.BINFLOAT:
                if at + 8 > end:
                    self._fail(SnapshotFormatError, _TRUNCATED, end)
                stack.append(struct.unpack_from(">d", data, at)[0])
                at += 8
            elif code in _PUTS:
                memo_index = self._put(int.from_bytes(data[at : at + _PUTS[code]], "little"), stack[-1], at)
                at += _PUTS[code]
            elif code == op.FRAME:
                at += _FRAME_SIZE - 1
            elif code == op.PROTO:
                protocol = int.from_bytes(data[at : at + 1], "little")
                if protocol not in _PROTOCOLS:
                    self._fail(SnapshotFormatError, f"pickle protocol {protocol} is not supported", at)
                at += 1
            elif code == op.STOP:
                root = stack.pop()
                if stack or outer:
                    self._fail(SnapshotFormatError, "the pickle ends with objects left on the stack", at)
                return root
            else:
                self._refuse(code, at - 1)
            if objects_left < 0:
                self._fail(SnapshotLimitError, "the pickle contains too many objects for its size", at)
            if code == op.SETITEMS and not chain and "action" in stack[-1]:
                self._find_similar(stack[-1], at)

    def _sized_value(self, code: int, octets: bytes, at: int) -> Any:
        if code in _LONGS:
            return int.from_bytes(octets, "little", signed=True) if len(octets) <= _MAX_INT_BYTES else _HUGE
        if code in _BYTES:
            return octets
        try:
            value = octets.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            self._fail(SnapshotFormatError, "a string is not valid UTF-8", at)
        # comparing equal long strings takes time unless they are the same object
        return self._long_texts.setdefault(value, value) if len(value) > _LONG else value

    @staticmethod
    def _fail(kind: type[SnapshotError], problem: str, position: int) -> NoReturn:
        raise kind(f"{problem} (at byte {position:,})")

    def _refuse(self, code: int, at: int) -> NoReturn:
        if code in op.UNSAFE:
            self._fail(UnsafeSnapshotError, f"opcode {op.UNSAFE[code]} would run code or load a class", at)
        self._fail(SnapshotFormatError, f"opcode 0x{code:02x} does not occur in snapshots", at)

    def _put(self, index: int, value: Any, at: int) -> int:
        if index > len(self.memo):
            problem = f"the pickle writes memo entry {index:,}, but the memo has only {len(self.memo):,} entries"
            self._fail(SnapshotLimitError, problem, at)
        if index < len(self.memo) and self._templates:  # entries read in batches may refer to the replaced object
            raise NotColumnarError
        self.memo[index : index + 1] = [value]
        return len(self.memo)

    def _check_list(self, target: Any, at: int) -> list[Any]:
        self._check_not_in_run(target)
        if type(target) is not list:
            self._fail(SnapshotFormatError, "an item is appended to an object that is not a list", at)
        return target

    def _set_items(self, target: Any, items: list[Any], at: int) -> None:
        self._check_not_in_run(target)
        self._check_no_run(items)
        keys, values = items[::2], items[1::2]
        if type(target) is not dict or len(keys) != len(values):
            self._fail(SnapshotFormatError, "the items of a dict are not pairs, or the object is not a dict", at)
        if not set(map(type, keys)) <= {str}:
            if not set(map(type, keys)) <= _KEY_TYPES:
                self._fail(SnapshotFormatError, "a dict key is neither a string nor a number", at)
            keys = list(map(str, keys))  # string hashes are randomized
        target.update(zip(keys, values, strict=True))

    def _check_not_in_run(self, target: Any) -> None:
        if type(target) is EntryRun or (self._frozen and id(target) in self._frozen):
            raise NotColumnarError

    def _check_no_run(self, items: list[Any]) -> None:
        if self.runs and EntryRun in map(type, items):
            raise NotColumnarError

    def _find_similar(self, entry: dict[str, Any], at: int) -> None:
        """Search the rest of the file, unless it is short, for entries with the same keys as ``entry``."""
        worthwhile = self._columnar and len(self._data) - at >= max(_MIN_BATCH, 2 * MARGIN)
        template = tuple(entry) if len(entry) <= _MAX_KEYS else ()
        if not worthwhile or not template or template in self._templates or len(self._templates) >= _MAX_TEMPLATES:
            return
        self._templates.add(template)
        index = {id(value): number for number, value in enumerate(self.memo) if type(value) is str}
        keys = {key: index[id(key)] for key in entry if id(key) in index}
        if len(keys) == len(entry):
            self._candidates.add(find_entries(self._data, at, keys))

    def _start_run(self, entries: EntryBatch, first: int, stop: int, memo_index: int) -> EntryRun | None:
        """Create an `EntryRun` of adjacent candidates and its memo entries. Return None if it would be empty."""
        end = int(entries.end[stop - 1])
        if self._data[end + _FRAME_SIZE * (self._data[end] == op.FRAME)] not in _AFTER_RUN:
            stop -= 1
        if stop == first:
            return None
        run = EntryRun(entries, first, stop, memo_index)
        self.runs.append(run)
        self.memo.extend(repeat(_PENDING, int(entries.memo_before[stop] - entries.memo_before[first])))
        return run
