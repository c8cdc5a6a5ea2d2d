"""Counters, segments and blocks of PyTorch's CUDA caching allocator."""

from __future__ import annotations

import bisect
import contextlib
import functools
import importlib
import inspect
import os
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from ipygpumem.core.introspection import attempt
from ipygpumem.core.reading import AllocatorCounters
from ipygpumem.sources import pytorch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from ipygpumem.sources.storages import StorageLocation


class AllocatorStatistics(NamedTuple):
    """Statistics of PyTorch's allocator for one device.

    Attributes:
        now, peak: Current and peak values of the counters in bytes.
        inactive_split, retries, ooms, rejections: As in `DeviceReading`.
        allocations: Number of blocks allocated so far.
        segments: Number of segment allocations and frees so far.
    """

    now: AllocatorCounters
    peak: AllocatorCounters
    inactive_split: int
    retries: int
    ooms: int
    rejections: int | None
    allocations: int
    segments: int


_new_statistics: Any = functools.partial(tuple.__new__, AllocatorStatistics)  # three times as fast as calling the class
_new_counters: Any = functools.partial(tuple.__new__, AllocatorCounters)


def stats(index: int) -> dict[str, Any]:
    """Raises `RuntimeError` for pluggable allocators."""
    counters: dict[str, Any] = sys.modules["torch"]._C._cuda_memoryStats(index)
    return counters


def allocator_statistics(stats: dict[str, Any]) -> AllocatorStatistics:
    allocated, reserved = stats["allocated_bytes"]["all"], stats["reserved_bytes"]["all"]
    active, requested = stats["active_bytes"]["all"], stats["requested_bytes"]["all"]
    segments = stats["segment"]["all"]
    statistics: AllocatorStatistics = _new_statistics(
        (
            _new_counters((allocated["current"], reserved["current"], active["current"], requested["current"])),
            _new_counters((allocated["peak"], reserved["peak"], active["peak"], requested["peak"])),
            stats["inactive_split_bytes"]["all"]["current"],
            stats["num_alloc_retries"],
            stats["num_ooms"],
            stats.get("num_oom_rejections"),  # since PyTorch 2.12
            stats["allocation"]["all"]["allocated"],
            segments["allocated"] + segments["freed"],
        )
    )
    return statistics


def statistics(index: int) -> AllocatorStatistics:
    return allocator_statistics(stats(index))


class _InductorPlaceholder:
    """Object that replaces ``torch._inductor`` until an attribute other than ``codecache`` is read."""

    def __getattr__(self, name: str) -> Any:
        if name == "codecache":
            raise AttributeError(name)
        return getattr(importlib.import_module("torch._inductor"), name)


@contextlib.contextmanager
def without_inductor() -> Iterator[None]:
    """Prevent PyTorch from importing ``torch._inductor``, which takes seconds, when it formats stacks in the block."""
    namespace = vars(sys.modules["torch"])
    replacement = None if "_inductor" in namespace else _InductorPlaceholder()
    if replacement is not None:
        namespace["_inductor"] = replacement
    try:
        yield
    finally:
        if replacement is not None and namespace.get("_inductor") is replacement:
            del namespace["_inductor"]


def segments() -> list[dict[str, Any]]:
    """Return the segments of all devices and their blocks, as `torch.cuda.memory_snapshot` does.

    The call adds an event to a running recording. Raises `RuntimeError` if the allocator does not list its segments.
    """
    memory_snapshot = sys.modules["torch"].cuda.memory_snapshot
    options = {"include_traces": False} if "include_traces" in inspect.signature(memory_snapshot).parameters else {}
    with without_inductor():
        snapshot: list[dict[str, Any]] = memory_snapshot(**options)
    return snapshot


def memory_limit(index: int) -> int | None:
    """Return the limit on PyTorch's reserved memory that ``set_per_process_memory_fraction`` has set, in bytes.

    The result is None if no limit is set or it cannot be read, as before PyTorch 2.10.
    """
    cuda = sys.modules["torch"].cuda
    fraction = attempt(lambda: cuda.memory.get_per_process_memory_fraction(index))
    total = attempt(lambda: cuda.get_device_properties(index).total_memory)
    return int(fraction * total) if fraction and total and fraction < 1 else None


def uses_expandable_segments() -> bool:
    settings = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    if "expandable_segments:true" in settings.replace(" ", "").lower():
        return True
    # some allocator backends do not list segments
    return any(segment.get("is_expandable") for segment in attempt(segments) or ())


def pinned_memory(torch: Any) -> int | None:
    """Return the size of the pinned memory reserved by PyTorch's host allocator in bytes; None if unknown."""
    try:
        stats = torch._C._cuda_hostMemoryStats()
        # the key is allocated_bytes in PyTorch 2.13 and reserved_bytes in earlier versions
        return int((stats.get("reserved_bytes") or stats["allocated_bytes"])["current"])
    except Exception:  # the function does not exist, or a kernel has failed
        return None


def is_recording() -> bool:
    """Allocators other than PyTorch's native allocator cannot record, so the result is False for them."""
    torch = pytorch.initialized_torch()
    # raises an exception for cudaMallocAsync and pluggable allocators
    return torch is not None and bool(attempt(torch._C._cuda_isHistoryEnabled))


def empty_cache() -> bool:
    """Return False and do nothing before CUDA is initialized, and while a CUDA graph is being captured."""
    torch = pytorch.initialized_torch()
    if torch is None or pytorch.is_capturing(torch):
        return False
    torch.cuda.empty_cache()
    return True


Stack = tuple[tuple[str, int, str], ...]
"""Frames of a stack as file name, line number and function name, innermost frame first."""


class AllocatedBlock(NamedTuple):
    """``requested`` is the requested size in bytes, or 0 if unknown. ``size`` is rounded.

    ``pool`` is the ID of the memory pool; (0, 0) for the default pool. ``frames`` is empty if no stack was recorded, or
    if PyTorch does not list stacks.
    """

    device: str
    address: int
    size: int
    requested: int
    pool: tuple[int, int]
    frames: Stack = ()


_new_block: Any = functools.partial(tuple.__new__, AllocatedBlock)


class AllocatedBlocks:
    """Allocated blocks of all devices at one point in time, and the address ranges of all segments.

    Attributes:
        blocks: The blocks, ordered by device and address.
        positions: Pairs (device, address) of the blocks, in the same order.
        by_position: The blocks by pair (device, address).
    """

    def __init__(self, blocks: list[AllocatedBlock], segment_ranges: list[tuple[str, int, int]]) -> None:
        self.blocks = sorted(blocks)
        self.positions = [block[:2] for block in self.blocks]
        self.by_position = dict(zip(self.positions, self.blocks, strict=True))
        self._segment_ranges = sorted(segment_ranges)

    def block(self, device: str, address: int) -> AllocatedBlock | None:
        if block := self.by_position.get((device, address)):
            return block
        i = bisect.bisect_right(self.positions, (device, address)) - 1
        block = self.blocks[i] if i >= 0 else None
        return block if block and block.device == device and address < block.address + block.size else None

    def fraction_outside(
        self, storages: Collection[StorageLocation], is_wanted: Callable[[str], bool], excluded_size: int | None
    ) -> float:
        """Return the fraction of the allocated memory that belongs to none of the storages, from 0 to 1.

        Only devices for which ``is_wanted(device)`` is true are included. Blocks in private pools and blocks of
        ``excluded_size`` bytes are treated as if they belonged to a storage.
        """
        inside = {storage[:2] for storage in storages}
        within_blocks = (self.block(*position) for position in inside - self.by_position.keys())
        inside |= {block[:2] for block in within_blocks if block is not None}
        outside_positions = self.by_position.keys() - inside
        other_blocks = [self.by_position[position] for position in outside_positions if is_wanted(position[0])]
        unnamed = sum(block.size for block in other_blocks if block.size != excluded_size and not any(block.pool))
        return unnamed / max(sum(block.size for block in self.blocks if is_wanted(block.device)), 1)

    def contains(self, device: str, address: int) -> bool:
        i = bisect.bisect_right(self._segment_ranges, (device, address, 1 << 64)) - 1
        return i >= 0 and self._segment_ranges[i][0] == device and address < self._segment_ranges[i][2]


def allocation_counts() -> Any:
    """Return the allocation counters of each device, which change if a block is allocated or freed; None if unknown."""
    torch = sys.modules["torch"]

    def read() -> list[dict[str, int]]:
        stats = inspect.unwrap(torch._C._cuda_memoryStats)  # the peaks, which the wrapper corrects, are not needed
        return [dict(stats(index)["allocation"]["all"]) for index in range(torch.cuda.device_count())]

    return attempt(read)


def allocated_blocks() -> AllocatedBlocks | None:
    """Return all allocated blocks; None if the allocator does not list them. Adds an event to a running recording."""
    listed_segments = attempt(segments)
    if listed_segments is None:  # cudaMallocAsync, a pluggable allocator, a failed kernel
        return None
    blocks, ranges = [], []
    for segment in listed_segments:
        device, pool = f"cuda:{segment['device']}", tuple(segment.get("segment_pool_id") or (0, 0))
        offset = segment["address"]
        ranges.append((device, offset, offset + segment["total_size"]))
        for block in segment["blocks"]:
            size, requested = block["size"], block.get("requested_size", 0)
            if block["state"] == "active_allocated":
                address = block.get("address", offset)
                frames = block.get("frames")
                stack = _stack(frames) if frames else ()
                blocks.append(_new_block((device, address, size, requested, pool, stack)))
            offset += size
    return AllocatedBlocks(blocks, ranges)


def stack_of_block(block: AllocatedBlock) -> Stack:
    """The innermost frame is first. The stack is empty if it was not recorded."""
    if block.frames or not hasattr(torch_c := sys.modules["torch"]._C, "_cuda_allocationTraceback"):
        return block.frames
    with without_inductor():
        return _stack(attempt(lambda: torch_c._cuda_allocationTraceback(block.address)))


def _stack(frames: Any) -> Stack:
    return tuple((frame["filename"], frame["line"], frame["name"]) for frame in frames or ())
