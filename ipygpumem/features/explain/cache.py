"""PyTorch's cached memory, by whether ``torch.cuda.empty_cache()`` frees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_INACTIVE = "inactive"
_DEFAULT_POOL = (0, 0)
_PAGE_SIZES = {"small": 2 << 20, "large": 20 << 20}
"""Sizes of the pages in which expandable segments are mapped and unmapped."""


@dataclass(frozen=True, slots=True)
class Cache:
    """The free blocks of one device, in bytes.

    Attributes:
        returnable: Freed by ``torch.cuda.empty_cache()``.
        pinned: Not freed, because a block in the same segment is in use.
        private: In private pools, of CUDA graphs that may be replayed and of the user's ``MemPool``.
        pieces: Number of pinned free blocks, which are in ``segments`` with ``blocks`` of ``used`` bytes in use.
        pools: Number of private pools.
        expandable: Whether there are expandable segments, which are freed page by page.
    """

    returnable: int = 0
    pinned: int = 0
    private: int = 0
    pieces: int = 0
    segments: int = 0
    blocks: int = 0
    used: int = 0
    pools: int = 0
    expandable: bool = False

    @property
    def total(self) -> int:
        """All free blocks."""
        return self.returnable + self.pinned + self.private


def cache_of(segments: list[dict[str, Any]], index: int) -> Cache:
    """Return the cache of a device by its index, from the allocator's list of segments."""
    returnable = pinned = private = pieces = pinned_segments = blocks = used = 0
    pools, expandable = set(), False
    for segment in segments:
        if segment["device"] != index:
            continue
        free_blocks = [block for block in segment["blocks"] if block["state"] == _INACTIVE]
        free = sum(block["size"] for block in free_blocks)
        pool = tuple(segment.get("segment_pool_id", _DEFAULT_POOL))
        expandable |= bool(segment.get("is_expandable"))
        if pool != _DEFAULT_POOL:
            pools.add(pool)
            private += free
            continue
        segment_returnable = _returnable(segment, free_blocks, free)
        returnable += segment_returnable
        if free > segment_returnable:
            pinned += free - segment_returnable
            pieces += len(free_blocks)
            pinned_segments += 1
            blocks += len(segment["blocks"]) - len(free_blocks)
            used += segment["total_size"] - free
    return Cache(returnable, pinned, private, pieces, pinned_segments, blocks, used, len(pools), expandable)


def _returnable(segment: dict[str, Any], free_blocks: list[dict[str, Any]], free: int) -> int:
    """Return what ``empty_cache`` frees of a segment: all or nothing, or the free pages of an expandable segment."""
    if not segment.get("is_expandable"):
        return free if len(free_blocks) == len(segment["blocks"]) else 0
    page = _PAGE_SIZES.get(segment.get("segment_type", ""), _PAGE_SIZES["large"])
    offset, nbytes = 0, 0
    for block in segment["blocks"]:
        if block["state"] == _INACTIVE:
            first_page = -(-offset // page)
            end_page = (offset + block["size"]) // page
            nbytes += max(end_page - first_page, 0) * page
        offset += block["size"]
    return nbytes
