"""PyTorch's cache, by whether it can go back to the card, and what keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["Cache", "cache_of"]

_INACTIVE = "inactive"
_OWN_POOL = (0, 0)
_PAGES = {"small": 2 << 20, "large": 20 << 20}
"""An expandable segment is mapped and given back in pages of these sizes."""


@dataclass(frozen=True, slots=True)
class Cache:
    """One device's free blocks, in bytes.

    Attributes:
        returnable: What ``torch.cuda.empty_cache()`` gives back to the card.
        pinned: What it cannot, because a block in the same segment is in use.
        private: What belongs to private pools: of CUDA graphs that can be replayed, and of the user's ``MemPool``.
        pieces: Free blocks that are pinned.
        segments: Segments that are pinned.
        blocks: Blocks in use that pin them.
        used: Their bytes.
        pools: Private pools that have segments.
        expandable: Whether some segment grows and shrinks page by page.
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
    """The cache of the device with this index, from the allocator's own list of segments."""
    returnable = pinned = private = pieces = count = blocks = used = 0
    pools, expandable = set(), False
    for segment in segments:
        if segment["device"] != index:
            continue
        free = [block for block in segment["blocks"] if block["state"] == _INACTIVE]
        amount = sum(block["size"] for block in free)
        pool = tuple(segment.get("segment_pool_id", _OWN_POOL))
        expandable |= bool(segment.get("is_expandable"))
        if pool != _OWN_POOL:
            pools.add(pool)
            private += amount
            continue
        back = _given_back(segment, free, amount)
        returnable += back
        if amount > back:
            pinned += amount - back
            pieces += len(free)
            count += 1
            blocks += len(segment["blocks"]) - len(free)
            used += segment["total_size"] - amount
    return Cache(returnable, pinned, private, pieces, count, blocks, used, len(pools), expandable)


def _given_back(segment: dict[str, Any], free: list[dict[str, Any]], amount: int) -> int:
    """What of a segment's free blocks ``empty_cache`` gives back: all or nothing, but for one that shrinks."""
    if not segment.get("is_expandable"):
        return amount if len(free) == len(segment["blocks"]) else 0
    page = _PAGES.get(segment.get("segment_type", ""), _PAGES["large"])
    address, whole = segment["address"], 0
    for block in segment["blocks"]:
        if block["state"] == _INACTIVE:
            first = -(-(address - segment["address"]) // page)
            last = (address + block["size"] - segment["address"]) // page
            whole += max(last - first, 0) * page
        address += block["size"]
    return whole
