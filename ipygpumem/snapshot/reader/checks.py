"""Type checks for values of an untrusted file. No value is printed, compared or hashed before it passed."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import SnapshotFormatError, SnapshotLimitError
from ipygpumem.snapshot.reader.entry_batches import EntryRun, NotColumnarError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

MAX_BLOCK = 1 << 48
"""Bytes of the largest plausible block or segment."""

MAX_TOTAL = 1 << 62
"""Bytes that all sizes in a file may add up to, so that no sum overflows."""

_INT64 = 1 << 63
_LONG_LIST = 1 << 16
_MAX_REPETITIONS = 8
_MAX_BITS = 128
_PLAIN_TYPES = (str, int, float, bool, type(None))


class OversizedInteger(str):
    """Placeholder for an integer beyond any plausible size. It can be printed but does not pass as a text."""

    __slots__ = ()


def type_name(value: Any) -> str:
    """The type of a value, with an article."""
    if type(value) is OversizedInteger:
        return "a number of more than 128 bits"
    if type(value) is EntryRun:
        raise NotColumnarError
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def is_plain(value: Any) -> bool:
    """Whether a value can be written to JSON: Python refuses to print integers of more than 4,300 digits."""
    return type(value) in _PLAIN_TYPES and not (type(value) is int and value.bit_length() > _MAX_BITS)


def integer(value: Any, where: str, low: int = -_INT64, high: int = _INT64 - 1) -> int:
    """Require an integer within bounds."""
    if type(value) is not int:
        raise SnapshotFormatError(f"{where} is {type_name(value)}, not an integer")
    if not low <= value <= high:
        raise SnapshotFormatError(f"{where} is out of range")
    return value


def text(value: Any, where: str) -> str:
    """Require a text."""
    if type(value) is not str:
        raise SnapshotFormatError(f"{where} is {type_name(value)}, not a text")
    return value


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Require a dict. The reader has made its keys texts."""
    if type(value) is not dict:
        raise SnapshotFormatError(f"{where} is {type_name(value)}, not a dict")
    return value


def sequence(value: Any, where: str) -> Sequence[Any]:
    """Require a list or tuple."""
    if type(value) is not list and type(value) is not tuple:
        raise SnapshotFormatError(f"{where} is {type_name(value)}, not a list")
    if len(value) > _LONG_LIST:
        check_repetition(array("Q", map(id, value)), where)
    return value


def optional(value: Any, check: Callable[..., Any], where: str) -> Any:
    """Accept None, or what passes a check."""
    return None if value is None else check(value, where)


def check_repetition(ids: array[int], where: str) -> None:
    """Refuse long lists that repeat a few objects: a file needs two bytes for each repetition, a column a row."""
    distinct = len(set(ids))
    if len(ids) > _LONG_LIST + _MAX_REPETITIONS * distinct:
        raise SnapshotLimitError(f"{where}: {len(ids):,} entries that repeat the same {distinct:,} objects")


def column(
    values: list[Any], where: Callable[[int], str], low: int = -_INT64, high: int = _INT64 - 1
) -> NDArray[np.int64]:
    """Require integers within bounds and return them as a column. ``where`` names the value with a number."""
    try:
        if set(map(type, values)) <= {int}:
            numbers = np.array(array("q", values), np.int64)
            if not len(numbers) or low <= numbers.min() <= numbers.max() <= high:
                return numbers
    except OverflowError:
        pass  # the loop below names the value
    for number, value in enumerate(values):
        integer(value, where(number), low, high)
    raise SnapshotFormatError(f"{where(0)} cannot be read as an integer")
