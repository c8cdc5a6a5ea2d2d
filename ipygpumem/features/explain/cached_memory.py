"""Calculate how much of PyTorch's cached memory ``torch.cuda.empty_cache()`` would release."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

_INACTIVE = "inactive"
_DEFAULT_POOL = (0, 0)
_PAGE_SIZES = {"small": 2 << 20, "large": 20 << 20}
"""Page sizes of expandable segments in bytes, by segment type. Memory is mapped and unmapped in whole pages."""


@dataclass(frozen=True, slots=True)
class CachedMemory:
    """Cached memory of one device. Sizes are in bytes.

    Attributes:
        releasable: Memory that ``torch.cuda.empty_cache()`` would release.
        fragmented: Free memory in fragmented segments, which cannot be released because they contain blocks in use.
        private: Free memory in private pools of CUDA graphs and of ``torch.cuda.MemPool``.
        free_blocks: Number of free blocks in fragmented segments.
        segments: Number of fragmented segments.
        used_blocks: Number of blocks in use in fragmented segments.
        used: Total size of the blocks in use in fragmented segments.
        pools: Number of private pools.
        expandable: Whether there are expandable segments, which are released in whole pages.
    """

    releasable: int = 0
    fragmented: int = 0
    private: int = 0
    free_blocks: int = 0
    segments: int = 0
    used_blocks: int = 0
    used: int = 0
    pools: int = 0
    expandable: bool = False

    @property
    def total(self) -> int:
        """Total cached memory in bytes."""
        return self.releasable + self.fragmented + self.private


def cached_memory(segments: list[dict[str, Any]], index: int) -> CachedMemory:
    """Return the cached memory of a device, given the allocator's list of segments and the index of the device."""
    values: Counter[str] = Counter()
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
            values["private"] += free
            continue
        releasable = _releasable(segment, free_blocks, free)
        values["releasable"] += releasable
        if free > releasable:
            values["fragmented"] += free - releasable
            values["free_blocks"] += len(free_blocks)
            values["segments"] += 1
            values["used_blocks"] += len(segment["blocks"]) - len(free_blocks)
            values["used"] += segment["total_size"] - free
    return CachedMemory(**values, pools=len(pools), expandable=expandable)


def _releasable(segment: dict[str, Any], free_blocks: list[dict[str, Any]], free: int) -> int:
    """Return how many bytes of a segment ``torch.cuda.empty_cache()`` would release."""
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
