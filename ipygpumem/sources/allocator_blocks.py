"""The blocks and segments of PyTorch's allocator at one instant: what lies at an address."""

from __future__ import annotations

import bisect
from operator import attrgetter
from typing import NamedTuple

from ipygpumem.sources import pytorch

__all__ = ["Block", "Layout", "layout"]

_Span = tuple[str, int, int]


class Block(NamedTuple):
    """One allocated block: bytes as rounded and as asked for, its pool, and its stack if known.

    ``frames`` are (file name, line, function), the innermost first.
    """

    device: str
    address: int
    size: int
    requested: int
    pool: tuple[int, int]
    frames: tuple[tuple[str, int, str], ...] = ()


class Layout:
    """Every allocated block of every device, and the address ranges of all segments.

    Attributes:
        blocks: In the order of their addresses.
    """

    def __init__(self, blocks: list[Block], spans: list[_Span]) -> None:
        self.blocks = sorted(blocks, key=attrgetter("device", "address"))
        self.places = [(block.device, block.address) for block in self.blocks]
        self._spans = sorted(spans)

    def block(self, device: str, address: int) -> Block | None:
        """The allocated block at an address, which may lie inside it."""
        at = bisect.bisect_right(self.places, (device, address)) - 1
        if at < 0:
            return None
        block = self.blocks[at]
        return block if block.device == device and address < block.address + block.size else None

    def has(self, device: str, address: int) -> bool:
        """Whether an address is PyTorch's, allocated now or not."""
        at = bisect.bisect_right(self._spans, (device, address, 1 << 64)) - 1
        return at >= 0 and self._spans[at][0] == device and address < self._spans[at][2]

    def allocated(self, device: str) -> int:
        """Bytes of all blocks of a device."""
        return sum(block.size for block in self.blocks if block.device == device)


def layout() -> Layout | None:
    """What the allocator has now; None where it does not tell.

    A recording that runs gets one more event, ``snapshot``.
    """
    try:
        segments = pytorch.segments()
    except Exception:  # cudaMallocAsync, a pluggable allocator, a failed kernel
        return None
    found, spans = [], []
    for segment in segments:
        device, pool = f"cuda:{segment['device']}", tuple(segment.get("segment_pool_id") or (0, 0))
        address = segment["address"]
        spans.append((device, address, address + segment["total_size"]))
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                where = block.get("address", address)
                frames = tuple((f["filename"], f["line"], f["name"]) for f in block.get("frames") or ())
                found.append(Block(device, where, block["size"], block.get("requested_size", 0), pool, frames))
            address += block["size"]
    return Layout(found, spans)
