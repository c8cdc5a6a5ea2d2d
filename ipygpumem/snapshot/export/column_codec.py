"""Columns of numbers packed small: the form that the viewer and the shareable page read.

A packed column is the zlib stream of its *byte planes*: first the lowest byte of every number, then the next, and so on
(little endian). What the numbers are is told by the coding:

``plain``
    the values
``delta``
    differences to the value before, as signed numbers; the value before the first is ``first`` (as text where it is
    beyond 2**53, which no number of JavaScript holds)
``dict``
    indices into ``values``, the distinct values in ascending order

The number of bytes per value is ``width``.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["pack", "unpack"]

_LEVEL = 9
_QUICK_LEVEL = 5
_LONG = 1 << 16  # bytes from which on the last tenth of a saving costs more time than it is worth
_TRIAL_LEVEL = 1
_TRIAL = 1 << 13  # a long column is tried by this many numbers at its beginning, in its middle and at its end
_MOST_DISTINCT = 1 << 16
_EXACT = 1 << 53


def pack(column: NDArray[Any]) -> tuple[dict[str, Any], bytes]:
    """The description and the bytes of a column of whole numbers, in the coding that takes the fewest bytes."""
    values = column.astype(np.int64)
    first = int(values[0]) if len(values) else 0
    found: list[tuple[dict[str, Any], NDArray[np.int64]]] = [
        ({"coding": "plain"}, values),
        ({"coding": "delta", "first": first if abs(first) < _EXACT else str(first)}, np.diff(values, prepend=first)),
    ]
    # many columns hold one value throughout: there is nothing to sort
    ordered = np.sort(values) if len(values) and values.min() < values.max() else values[:1]
    distinct = ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(values) else ordered
    if 1 < len(distinct) <= min(_MOST_DISTINCT, len(values) // 2) and np.abs(distinct).max() < _EXACT:
        # a sort and a search take a tenth of the time of np.unique with its inverse
        found.append(({"coding": "dict", "values": distinct.tolist()}, np.searchsorted(distinct, values)))
    facts, numbers = min(found, key=lambda one: _cost(*one))
    planes = _planes(numbers)
    packed = zlib.compress(planes, _LEVEL if len(planes) < _LONG else _QUICK_LEVEL)
    width = len(planes) // len(values) if len(values) else 1
    return {**facts, "width": width, "count": len(values), "bytes": len(packed)}, packed


def _cost(facts: dict[str, Any], numbers: NDArray[np.int64]) -> float:
    """About how many bytes a coding takes."""
    count = len(numbers)
    sample = numbers
    if count > 4 * _TRIAL:
        middle = count // 2
        sample = np.concatenate([numbers[:_TRIAL], numbers[middle : middle + _TRIAL], numbers[-_TRIAL:]])
    bits = len(zlib.compress(_planes(sample), _TRIAL_LEVEL)) * (count / max(len(sample), 1))
    return len(str(facts)) + bits


def _planes(values: NDArray[np.int64]) -> bytes:
    width = next(width for width in (1, 2, 4, 8) if (values == values.astype(f"<i{width}")).all())
    return values.astype(f"<i{width}").view(np.uint8).reshape(-1, width).T.tobytes()


def unpack(facts: dict[str, Any], packed: bytes) -> NDArray[np.int64]:
    """The column that `pack` made a description and bytes of."""
    planes = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(facts["width"], facts["count"])
    values = np.ascontiguousarray(planes.T).view(f"<i{facts['width']}").reshape(-1).astype(np.int64)
    if facts["coding"] == "delta":
        values = np.cumsum(values) + int(facts["first"])
    elif facts["coding"] == "dict":
        values = np.asarray(facts["values"], np.int64)[values]
    return values
