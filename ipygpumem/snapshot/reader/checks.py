"""Values of an untrusted file, taken only as what they have to be. Nothing is printed, compared or hashed before."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import SnapshotFormatError, SnapshotLimitError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

__all__ = ["LARGEST", "MOST", "Huge", "column", "integer", "kind", "mapping", "sequence", "text", "varied"]

LARGEST = 1 << 48
"""Bytes of the largest block or segment that is believed."""

MOST = 1 << 62
"""Bytes that all sizes in a file may add up to, so that no sum overflows."""

_INT64 = 1 << 63
_MANY = 1 << 16
_TIMES = 8


class Huge(str):
    """Stands for a number that is larger than any that has a meaning here. It is no text, though it can be printed."""

    __slots__ = ()


def kind(value: Any) -> str:
    """The type of a value, in words."""
    if type(value) is Huge:
        return "a number of more than 128 bits"
    name = type(value).__name__
    return "nothing" if value is None else f"{'an' if name[0] in 'aeiou' else 'a'} {name}"


def integer(value: Any, where: str, low: int = -_INT64, high: int = _INT64 - 1) -> int:
    """A whole number within bounds."""
    if type(value) is not int:
        raise SnapshotFormatError(f"{where} is {kind(value)}, not a whole number")
    if not low <= value <= high:
        raise SnapshotFormatError(f"{where} is out of range")
    return value


def text(value: Any, where: str) -> str:
    """A text."""
    if type(value) is not str:
        raise SnapshotFormatError(f"{where} is {kind(value)}, not a text")
    return value


def mapping(value: Any, where: str) -> dict[str, Any]:
    """A dict, as the reader made it: its keys are texts."""
    if type(value) is not dict:
        raise SnapshotFormatError(f"{where} is {kind(value)}, not a dict")
    return value


def sequence(value: Any, where: str) -> Sequence[Any]:
    """A list or tuple."""
    if type(value) is not list and type(value) is not tuple:
        raise SnapshotFormatError(f"{where} is {kind(value)}, not a list")
    if len(value) > _MANY:
        varied(array("Q", map(id, value)), where)
    return value


def varied(ids: array[int], where: str) -> None:
    """Refuse a long list of the same few objects. A file names one again in two bytes, and each wants its row."""
    if len(ids) > _MANY + _TIMES * len(set(ids)):
        raise SnapshotLimitError(f"{where}: {len(ids):,} entries that are the same {len(set(ids)):,} again and again")


def column(
    values: list[Any], where: Callable[[int], str], low: int = -_INT64, high: int = _INT64 - 1
) -> NDArray[np.int64]:
    """Whole numbers within bounds as a column. ``where`` names the value with a number."""
    try:
        if set(map(type, values)) <= {int}:
            numbers = np.array(array("q", values), np.int64)
            if not len(numbers) or low <= numbers.min() <= numbers.max() <= high:
                return numbers
    except OverflowError:
        pass  # the loop below names the one that is too large
    for number, value in enumerate(values):
        integer(value, where(number), low, high)
    raise SnapshotFormatError(f"{where(0)} cannot be read as a whole number")
