"""Columns of numbers packed small: the form that the viewer and the shareable page read.

A packed column is the zlib stream of its *byte planes*: first the lowest byte of every number, then the next, and so on
(little endian). What the numbers are is told by the coding:

``plain``
    the values
``delta``
    differences to the value before (the first to 0), as signed numbers
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
_MOST_DISTINCT = 1 << 16


def pack(column: NDArray[Any]) -> tuple[dict[str, Any], bytes]:
    """The description and the bytes of a column of whole numbers, in the coding that takes the fewest bytes."""
    values = column.astype(np.int64)
    found = [_plain("plain", values), _plain("delta", np.diff(values, prepend=0))]
    distinct, indices = np.unique(values, return_inverse=True)
    if len(distinct) <= _MOST_DISTINCT:
        facts, packed = _plain("dict", indices)
        found.append(({**facts, "values": distinct.tolist()}, packed))
    facts, packed = min(found, key=lambda one: len(one[1]) + len(str(one[0])))
    return {**facts, "count": len(values), "bytes": len(packed)}, packed


def _plain(coding: str, values: NDArray[np.int64]) -> tuple[dict[str, Any], bytes]:
    width = next(width for width in (1, 2, 4, 8) if (values == values.astype(f"<i{width}")).all())
    planes = values.astype(f"<i{width}").view(np.uint8).reshape(-1, width).T
    return {"coding": coding, "width": width}, zlib.compress(planes.tobytes(), _LEVEL)


def unpack(facts: dict[str, Any], packed: bytes) -> NDArray[np.int64]:
    """The column that `pack` made a description and bytes of."""
    planes = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(facts["width"], facts["count"])
    values = np.ascontiguousarray(planes.T).view(f"<i{facts['width']}").reshape(-1).astype(np.int64)
    if facts["coding"] == "delta":
        return np.cumsum(values)
    if facts["coding"] == "dict":
        return np.asarray(facts["values"], np.int64)[values]
    return values
