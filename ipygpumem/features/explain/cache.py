"""Analysis of how much of PyTorch's cached memory ``torch.cuda.empty_cache()`` can release."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_INACTIVE = "inactive"
_DEFAULT_POOL = (0, 0)
_PAGE_SIZES = {"small": 2 << 20, "large": 20 << 20}
"""Page sizes for mapping and unmapping the memory of expandable segments."""


@dataclass(frozen=True, slots=True)
class Cache:
    """Cached memory of one device, in bytes.

    Attributes:
        releasable: Memory that ``torch.cuda.empty_cache()`` releases.
        fragmented: Memory that cannot be released because other blocks in the same segment are in use.
        private: Free memory in private pools of CUDA graphs and of ``torch.cuda.MemPool``.
        free_blocks: Number of free blocks in fragmented segments.
        segments: Number of fragmented segments, with ``used_blocks`` of ``used`` bytes in use.
        pools: Number of private pools.
        expandable: Whether there are expandable segments, which are released in pages.
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


def device_cache(segments: list[dict[str, Any]], index: int) -> Cache:
    """Return the cache of the device with this index, from the allocator's list of segments."""
    releasable = fragmented = private = free_count = segment_count = used_count = used = 0
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
        segment_releasable = _releasable(segment, free_blocks, free)
        releasable += segment_releasable
        if free > segment_releasable:
            fragmented += free - segment_releasable
            free_count += len(free_blocks)
            segment_count += 1
            used_count += len(segment["blocks"]) - len(free_blocks)
            used += segment["total_size"] - free
    return Cache(releasable, fragmented, private, free_count, segment_count, used_count, used, len(pools), expandable)


def _releasable(segment: dict[str, Any], free_blocks: list[dict[str, Any]], free: int) -> int:
    """Return the size that ``empty_cache`` releases: all or none of a segment, or free pages of an expandable one."""
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
