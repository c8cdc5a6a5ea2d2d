"""Type checks that precede any other use of an untrusted value.

The checks return the value if it is valid, and otherwise raise `SnapshotFormatError`. ``where`` names the value in the
message.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.errors import SnapshotFormatError, SnapshotLimitError
from ipygpumem.snapshot.model.columns import distinct
from ipygpumem.snapshot.reader.entry_batches import EntryRun, NotColumnarError

MAX_BLOCK = 1 << 48  # maximum plausible size of a block or segment in bytes

MAX_TOTAL = 1 << 62  # maximum total of all sizes in a file in bytes; this limit prevents integer overflows

_INT64 = 1 << 63
MAX_REPETITIONS = 1 << 16
_MAX_REPEATED_TEXT = 1 << 23
_SHORT_TEXT = 64  # number of characters of each string that are not counted
_MAX_BITS = 128
_PLAIN_TYPES = (str, int, float, bool, type(None))


class OversizedInteger(str):
    """String that represents an integer of more than 128 bits. It can be printed, but `text` rejects it."""

    __slots__ = ()


def type_name(value: Any) -> str:
    if type(value) is OversizedInteger:
        return "an integer of more than 128 bits"
    if type(value) is EntryRun:
        raise NotColumnarError
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def is_plain(value: Any) -> bool:
    return type(value) in _PLAIN_TYPES and not (type(value) is int and value.bit_length() > _MAX_BITS)


def integer(value: Any, where: str, low: int = -_INT64, high: int = _INT64 - 1) -> int:
    if type(value) is not int:
        raise SnapshotFormatError(f"{where} is {type_name(value)}, not an integer")
    if not low <= value <= high:
        is_address = value >= _INT64 and where.endswith((" addr", " address"))
        reason = ": addresses of 2**63 or more, as on Intel XPUs, are not supported" if is_address else ""
        raise SnapshotFormatError(f"{where} is out of range{reason}")
    return value


def text(value: Any, where: str) -> str:
    if type(value) is not str:
        raise SnapshotFormatError(f"{where} is {type_name(value)}, not a string")
    return value


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Check a dict. The types of its keys are not checked, because all readers convert keys to strings."""
    if type(value) is not dict:
        raise SnapshotFormatError(f"{where} is {type_name(value)}, not a dict")
    return value


def sequence(value: Any, where: str) -> Sequence[Any]:
    if type(value) is not list and type(value) is not tuple:
        raise SnapshotFormatError(f"{where} is {type_name(value)}, not a list")
    return value


def items(value: Any, where: str) -> Sequence[Any]:
    check_repetition(array("Q", map(id, sequence(value, where))), where)
    return value  # type: ignore[no-any-return]


def optional(value: Any, check: Callable[..., Any], where: str) -> Any:
    return None if value is None else check(value, where)


def check_repetition(ids: array[int], where: str) -> None:
    """Raise `SnapshotLimitError` if more than ``MAX_REPETITIONS`` entries of a list repeat an earlier object.

    ``ids`` are the ids of the entries. A small file with such a list could exhaust memory.
    """
    # a set would need more memory than the entries in the file
    count = len(distinct(np.frombuffer(ids, np.uint64))) if len(ids) > MAX_REPETITIONS else 0
    if len(ids) > MAX_REPETITIONS + count:
        raise SnapshotLimitError(f"{where}: {len(ids):,} entries repeat the same {count:,} objects")


class RepeatedTextLimit:
    """Limit for the total length of repeated strings. Two bytes of a file are enough to repeat a long string."""

    def __init__(self) -> None:
        self._left = _MAX_REPEATED_TEXT
        self._known: set[str] = set()

    def count(self, text: str, where: str, *, created: bool = False) -> str:
        """Return a string, after counting its length if it is repeated or was ``created`` by the reader.

        Raises `SnapshotLimitError` if the total length of the counted strings exceeds the limit.
        """
        if created or text in self._known:
            self._left -= len(text) - _SHORT_TEXT
            if self._left < 0:
                raise SnapshotLimitError(f"{where}: long strings are repeated too often")
        self._known.add(text)
        return text


def column(
    values: list[Any], where: Callable[[int], str], low: int = -_INT64, high: int = _INT64 - 1
) -> NDArray[np.int64]:
    """Return integers as an array. ``where(i)`` names value ``i`` in error messages."""
    try:
        if set(map(type, values)) <= {int}:
            numbers = np.array(array("q", values), np.int64)
            if not len(numbers) or low <= numbers.min() <= numbers.max() <= high:
                return numbers
    except OverflowError:
        pass  # the loop below reports which value is invalid
    for number, value in enumerate(values):
        integer(value, where(number), low, high)
    raise SnapshotFormatError(f"{where(0)} cannot be read as an integer")
