"""The allocator's segments and blocks at the time of the snapshot, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

STATES = ("inactive", "active_allocated", "active_pending_free")
"""Names of the values of the ``state`` column."""


class BlockState:
    """Values of the ``state`` column."""

    INACTIVE, ALLOCATED, PENDING = range(len(STATES))


@dataclass(frozen=True, slots=True, eq=False)
class _AddressRanges:
    device: NDArray[np.int64]
    address: NDArray[np.int64]
    size: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True, eq=False)
class Segments(_AddressRanges):
    """One row per segment, ordered by device and address.

    Attributes:
        device: int64, device index.
        address: int64, start of the segment.
        size: int64, size in bytes.
        stream: int64, the raw stream handle.
        pool: int32, index into the pools; -1 if not recorded.
        small: bool, whether the segment belongs to the small pool.
        expandable: bool, whether the row is a mapped range of an expandable segment.
        stack: int32, index into the stack table; -1 if there is none.
    """

    stream: NDArray[np.int64]
    pool: NDArray[np.int32]
    small: NDArray[np.bool_]
    expandable: NDArray[np.bool_]
    stack: NDArray[np.int32]


@dataclass(frozen=True, slots=True, eq=False)
class Blocks(_AddressRanges):
    """One row per block, ordered by device and address.

    Attributes:
        device: int64, device index.
        address: int64, start of the block.
        size: int64, rounded size in bytes.
        segment: int64, row in `Segments`.
        requested: int64, requested size in bytes; 0 for a free block, whose value in the file is outdated.
        requested_known: bool, whether the file contains the requested size; if not, ``requested`` is the rounded size.
        state: uint8, index into `STATES`.
        stack: int32, index into the stack table; -1 if there is none.
    """

    segment: NDArray[np.int64]
    requested: NDArray[np.int64]
    requested_known: NDArray[np.bool_]
    state: NDArray[np.uint8]
    stack: NDArray[np.int32]

    @property
    def active(self) -> NDArray[np.bool_]:
        """Mask of the blocks in use: allocated, or freed and waiting for a stream."""
        return np.not_equal(self.state, BlockState.INACTIVE)
