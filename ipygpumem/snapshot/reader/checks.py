"""Type checks for values in an untrusted file. No value is printed, compared or hashed before it is checked.

The argument ``where`` is the name of the value in error messages.
"""

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
"""Maximum plausible size of a block or segment in bytes."""

MAX_TOTAL = 1 << 62
"""Maximum total of all sizes in a file in bytes. This limit prevents integer overflows."""

_INT64 = 1 << 63
_LONG_LIST = 1 << 16
_MAX_REPETITIONS = 8
_MAX_BITS = 128
_PLAIN_TYPES = (str, int, float, bool, type(None))


class OversizedInteger(str):
    """String that replaces an integer that is too large. It can be printed, but `text` rejects it."""

    __slots__ = ()


def type_name(value: Any) -> str:
    """Return the name of a value's type with an article, such as ``a list``."""
    if type(value) is OversizedInteger:
        return "an integer of more than 128 bits"
    if type(value) is EntryRun:
        raise NotColumnarError
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def is_plain(value: Any) -> bool:
    """Return whether a value can be written to JSON. Large integers cannot: Python prints at most 4,300 digits."""
    return type(value) in _PLAIN_TYPES and not (type(value) is int and value.bit_length() > _MAX_BITS)


def integer(value: Any, where: str, low: int = -_INT64, high: int = _INT64 - 1) -> int:
    """Return ``value`` if it is an integer within bounds, or raise `SnapshotFormatError`."""
    if type(value) is not int:
        raise SnapshotFormatError(f"{where} is {type_name(value)}, not an integer")
    if not low <= value <= high:
        raise SnapshotFormatError(f"{where} is out of range")
    return value


def text(value: Any, where: str) -> str:
    """Return ``value`` if it is a string, or raise `SnapshotFormatError`."""
    if type(value) is not str:
        raise SnapshotFormatError(f"{where} is {type_name(value)}, not a string")
    return value


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Return ``value`` if it is a dict, or raise `SnapshotFormatError`. All readers convert keys to strings."""
    if type(value) is not dict:
        raise SnapshotFormatError(f"{where} is {type_name(value)}, not a dict")
    return value


def sequence(value: Any, where: str) -> Sequence[Any]:
    """Return ``value`` if it is a list or tuple, or raise `SnapshotFormatError`."""
    if type(value) is not list and type(value) is not tuple:
        raise SnapshotFormatError(f"{where} is {type_name(value)}, not a list")
    if len(value) > _LONG_LIST:
        check_repetition(array("Q", map(id, value)), where)
    return value


def optional(value: Any, check: Callable[..., Any], where: str) -> Any:
    """Return None if ``value`` is None, otherwise the result of ``check``."""
    return None if value is None else check(value, where)


def check_repetition(ids: array[int], where: str) -> None:
    """Raise `SnapshotLimitError` if a long list repeats a few objects. Small files of this kind can exhaust memory."""
    distinct = len(set(ids))
    if len(ids) > _LONG_LIST + _MAX_REPETITIONS * distinct:
        raise SnapshotLimitError(f"{where}: {len(ids):,} entries repeat the same {distinct:,} objects")


def column(
    values: list[Any], where: Callable[[int], str], low: int = -_INT64, high: int = _INT64 - 1
) -> NDArray[np.int64]:
    """Return a column of integers, which must be within bounds. ``where`` returns the name of the value at an index."""
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
