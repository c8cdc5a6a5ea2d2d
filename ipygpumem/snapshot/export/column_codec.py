"""Compresses columns of integers for the viewer and the shareable page.

A packed column is the zlib stream of its *byte planes*: first the lowest byte of every number, then the next, and so on
(little endian). The meaning of the numbers depends on the coding:

``plain``
    the values
``delta``
    signed differences to the previous value; the value before the first one is ``first`` (as text if it exceeds 2**53,
    which JavaScript numbers cannot represent)
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

__all__ = ["pack"]

_LEVEL = 9
_FAST_LEVEL = 5
_LONG = 1 << 16  # bytes above which the last tenth of compression is not worth its time
_SAMPLE_LEVEL = 1
_SAMPLE = 1 << 13  # numbers at the start, in the middle and at the end by which codings of long columns are compared
_MAX_DISTINCT = 1 << 16
_EXACT = 1 << 53


def pack(column: NDArray[Any]) -> tuple[dict[str, Any], bytes]:
    """Return the description and the bytes of a column of integers, in the coding that needs the fewest bytes."""
    values = column.astype(np.int64)
    first = int(values[0]) if len(values) else 0
    candidates: list[tuple[dict[str, Any], NDArray[np.int64]]] = [
        ({"coding": "plain"}, values),
        ({"coding": "delta", "first": first if abs(first) < _EXACT else str(first)}, np.diff(values, prepend=first)),
    ]
    # many columns have a single value, and need no sorting
    ordered = np.sort(values) if len(values) and values.min() < values.max() else values[:1]
    distinct = ordered[np.concatenate([[True], ordered[1:] != ordered[:-1]])] if len(values) else ordered
    if 1 < len(distinct) <= min(_MAX_DISTINCT, len(values) // 2) and np.abs(distinct).max() < _EXACT:
        # sorting and searching take a tenth of the time of np.unique with its inverse
        candidates.append(({"coding": "dict", "values": distinct.tolist()}, np.searchsorted(distinct, values)))
    description, numbers = min(candidates, key=lambda candidate: _cost(*candidate))
    planes = _planes(numbers)
    packed = zlib.compress(planes, _LEVEL if len(planes) < _LONG else _FAST_LEVEL)
    width = len(planes) // len(values) if len(values) else 1
    return {**description, "width": width, "count": len(values), "bytes": len(packed)}, packed


def _cost(description: dict[str, Any], numbers: NDArray[np.int64]) -> float:
    """Estimate the bytes that a coding needs."""
    count = len(numbers)
    middle = count // 2
    sample = numbers
    if count > 4 * _SAMPLE:
        sample = np.concatenate([numbers[:_SAMPLE], numbers[middle : middle + _SAMPLE], numbers[-_SAMPLE:]])
    packed = len(zlib.compress(_planes(sample), _SAMPLE_LEVEL)) * (count / max(len(sample), 1))
    return len(str(description)) + packed


def _planes(values: NDArray[np.int64]) -> bytes:
    width = next(width for width in (1, 2, 4, 8) if (values == values.astype(f"<i{width}")).all())
    return values.astype(f"<i{width}").view(np.uint8).reshape(-1, width).T.tobytes()
