"""A caching allocator for a fake device, with the counters and the history of PyTorch's native allocator.

Sizes are rounded up to multiples of 512 bytes. Blocks of up to 1 MiB are in segments of 2 MiB, blocks below 10 MiB in
segments of 20 MiB, and each larger block is in its own segment, whose size is a multiple of 2 MiB. The best fitting
block is split, and freed blocks are merged. A block that another stream still uses stays active until that stream has
finished.
"""

from __future__ import annotations

import functools
import sys
import threading
import time
from dataclasses import dataclass, field

import torch

MIB = 1 << 20
_ROUND = 512
_SMALL = 1 * MIB
_SMALL_SEGMENT = 2 * MIB
_LARGE_SEGMENT = 20 * MIB
_MIN_LARGE = 10 * MIB
_STEP = 2 * MIB

FAMILIES = (
    "allocation",
    "segment",
    "active",
    "inactive_split",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "inactive_split_bytes",
    "requested_bytes",
)
_EVENTS = ("num_alloc_retries", "num_ooms", "num_sync_all_streams", "num_device_alloc", "num_device_free")
_POOLS = ("all", "small_pool", "large_pool")
_CONTEXTS = (None, "state", "alloc", "all")
THREAD = threading.local()
"""``metadata``: the user metadata of a thread's events."""


class Stat:
    """The counterpart of ``c10::CachingAllocator::Stat``."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self):
        self.current = self.peak = self.allocated = self.freed = 0

    def move(self, amount):
        self.current += amount
        if amount > 0:
            self.allocated += amount
            self.peak = max(self.peak, self.current)
        else:
            self.freed -= amount

    def to_dict(self):
        return {name: getattr(self, name) for name in ("current", "peak", "allocated", "freed")}


@dataclass(eq=False)
class Segment:
    address: int
    size: int
    stream: int
    small: bool
    pool: tuple
    frames: list | None = None
    blocks: list = field(default_factory=list)


@dataclass(eq=False)
class Block:
    address: int
    size: int
    segment: Segment
    requested: int = 0
    state: str = "inactive"
    frames: list | None = None


class Allocator:
    """The allocator of one device.

    Args:
        index: Index of the device.
        allocate: Function that allocates device memory of a given size and returns whether enough memory was free.
        release: Function that frees device memory of a given size.
    """

    def __init__(self, index, allocate, release):
        self.index = index
        self._allocate, self._release = allocate, release
        self._address = 0x7F0000000000 + (index << 40)
        self.segments = []
        self._pending = []
        self.stats = {family: {pool: Stat() for pool in _POOLS} for family in FAMILIES}
        self.oversize = {name: Stat() for name in ("oversize_allocations", "oversize_segments")}
        self.private = {}
        self.events = dict.fromkeys(_EVENTS, 0)
        self.rejections = 0
        self.history = None
        self.trace = []
        self.stack_of_free_gathered = lambda: None

    # counters

    def _count(self, family, small, amount):
        self.stats[family]["all"].move(amount)
        self.stats[family]["small_pool" if small else "large_pool"].move(amount)

    def _segment_moved(self, segment, sign):
        self._count("segment", segment.small, sign)
        self._count("reserved_bytes", segment.small, sign * segment.size)
        if segment.pool != (0, 0):
            stats = self.private.setdefault(segment.pool, {pool: Stat() for pool in _POOLS})
            stats["all"].move(sign * segment.size)
            stats["small_pool" if segment.small else "large_pool"].move(sign * segment.size)

    def memory_stats(self, *, accelerator=False):
        nested = {
            family: {pool: stat.to_dict() for pool, stat in pools.items()} for family, pools in self.stats.items()
        }
        nested.update({name: stat.to_dict() for name, stat in self.oversize.items()})
        nested.update(self.events)
        nested["max_split_size"] = -1
        if not accelerator and hasattr(torch._C, "_accelerator_getDeviceStats"):  # not in PyTorch 2.4
            nested["num_oom_rejections"] = self.rejections
            nested["reserved_bytes_by_private_pools"] = {
                pool: {name: stat.to_dict() for name, stat in stats.items()} for pool, stats in self.private.items()
            }
        return nested

    def _every(self):
        for pools in (*self.stats.values(), *self.private.values()):
            yield from pools.values()
        yield from self.oversize.values()

    def reset_peaks(self):
        for stat in self._every():
            stat.peak = stat.current

    def reset_accumulated(self):
        for stat in self._every():
            stat.allocated = stat.freed = 0
        self.events = dict.fromkeys(_EVENTS, 0)

    # blocks

    def alloc(self, size, stream=0, pool=(0, 0)):
        """Allocate a block, or return None if there is not enough memory even after emptying the cache."""
        frames = self._gather("state")
        self.finish_ready(frames)
        rounded = max(_ROUND, -(-size // _ROUND) * _ROUND)
        small = rounded <= _SMALL
        block = self._best_fit(rounded, stream, small, pool)
        block = block or self._new_segment(rounded, stream, small, pool, frames)
        if block is None:
            self.events["num_alloc_retries"] += 1
            self.empty_cache()
            block = self._new_segment(rounded, stream, small, pool, frames)
        if block is None:
            self.events["num_ooms"] += 1
            self._record("oom", 0, size, stream, pool, frames)
            return None
        self._split(block, rounded)
        block.state, block.requested, block.frames = "active_allocated", size, frames
        self._record("alloc", block.address, size, stream, pool, frames)
        for family, amount in (
            ("allocation", 1),
            ("allocated_bytes", block.size),
            ("active", 1),
            ("active_bytes", block.size),
            ("requested_bytes", size),
        ):
            self._count(family, small, amount)
        return block

    def _best_fit(self, size, stream, small, pool):
        fits = [
            block
            for segment in self.segments
            if (segment.stream, segment.small, segment.pool) == (stream, small, pool)
            for block in segment.blocks
            if block.state == "inactive" and block.size >= size
        ]
        return min(fits, key=lambda block: (block.size, block.address), default=None)

    def _new_segment(self, size, stream, small, pool, frames):
        if small:
            room = _SMALL_SEGMENT
        elif size < _MIN_LARGE:
            room = _LARGE_SEGMENT
        else:
            room = -(-size // _STEP) * _STEP
        if not self._allocate(room):
            return None
        segment = Segment(self._address, room, stream, small, pool, frames)
        self._address += room + _STEP
        block = Block(segment.address, room, segment)
        segment.blocks.append(block)
        self.segments.append(segment)
        self._segment_moved(segment, 1)
        self.events["num_device_alloc"] += 1
        self._record("segment_alloc", segment.address, room, stream, pool, frames)
        return block

    def _split(self, block, size):
        remainder_size, segment = block.size - size, block.segment
        was_split = len(segment.blocks) > 1
        if was_split:
            self._inactive(block, -1)
        if remainder_size >= (_ROUND if segment.small else _SMALL + 1):
            remainder = Block(block.address + size, remainder_size, segment)
            block.size = size
            segment.blocks.insert(segment.blocks.index(block) + 1, remainder)
            self._inactive(remainder, 1)

    def _inactive(self, block, sign):
        self._count("inactive_split", block.segment.small, sign)
        self._count("inactive_split_bytes", block.segment.small, sign * block.size)

    def free(self, block, *, used_by=None):
        """Free a block. ``used_by`` is a stream that still uses the block, as after ``record_stream``."""
        segment = block.segment
        frames = self._gather("all")
        self._count("allocation", segment.small, -1)
        self._count("allocated_bytes", segment.small, -block.size)
        self._record(
            "free_requested", block.address, block.requested, segment.stream, segment.pool, frames or block.frames
        )
        if used_by is None:
            self._complete(block, frames)
        else:
            block.state = "active_awaiting_free"
            self._pending.append([block, used_by, False])

    def stream_done(self, stream):
        """Finish the work on a stream. As in PyTorch, blocks that it used become free at the next allocation."""
        for entry in self._pending:
            entry[2] = entry[2] or entry[1] == stream

    def finish_ready(self, frames=None):
        ready = [entry for entry in self._pending if entry[2]]
        self._pending = [entry for entry in self._pending if not entry[2]]
        for block, _, _ in ready:
            self._complete(block, frames)

    def _complete(self, block, frames):
        segment = block.segment
        self._record(
            "free_completed", block.address, block.requested, segment.stream, segment.pool, frames or block.frames
        )
        self._count("active", segment.small, -1)
        self._count("active_bytes", segment.small, -block.size)
        self._count("requested_bytes", segment.small, -block.requested)
        block.state, block.requested, block.frames = "inactive", 0, None
        i = segment.blocks.index(block)
        for adjacent in segment.blocks[i + 1 : i + 2] + segment.blocks[max(i - 1, 0) : i]:
            if adjacent.state == "inactive":
                self._inactive(adjacent, -1)
                block.address = min(block.address, adjacent.address)
                block.size += adjacent.size
                segment.blocks.remove(adjacent)
        if len(segment.blocks) > 1:
            self._inactive(block, 1)

    def empty_cache(self):
        for entry in self._pending:
            entry[2] = True
        frames = self._gather("all")
        self.finish_ready(frames)
        unused = [segment for segment in self.segments if all(block.state == "inactive" for block in segment.blocks)]
        for segment in unused:
            self.segments.remove(segment)
            self._segment_moved(segment, -1)
            self.events["num_device_free"] += 1
            self._release(segment.size)
            self._record(
                "segment_free", segment.address, segment.size, segment.stream, segment.pool, frames or segment.frames
            )

    # history

    def _gather(self, level):
        """Return the current stack if the recording has this level of contexts, as ``maybeGatherContext`` does."""
        if self.history is None or _CONTEXTS.index(self.history["context"]) < _CONTEXTS.index(level):
            return None
        if level == "all":
            self.stack_of_free_gathered()
        return _frames()

    def _record(self, action, address, size, stream, pool, frames=None):  # noqa: PLR0917
        history = self.history
        if history is None or action in history["skip_actions"]:
            return
        event = {"action": action, "addr": address, "size": size, "stream": stream, "time_us": time.time_ns() // 1000}
        event |= {"compile_context": "N/A", "user_metadata": getattr(THREAD, "metadata", ""), "pool_id": pool}
        if action == "oom":
            event["device_free"] = event.pop("addr")
        if history["context"] in {"alloc", "all"} and frames is not None:
            event["frames"] = frames
        self.trace.append(event)
        del self.trace[: -history["max_entries"]]

    def snapshot(self):
        self._record("snapshot", 0, 0, 0, (0, 0))
        return [
            {
                "device": self.index,
                "address": segment.address,
                "total_size": segment.size,
                "allocated_size": sum(b.size for b in segment.blocks if b.state == "active_allocated"),
                "active_size": sum(b.size for b in segment.blocks if b.state != "inactive"),
                "requested_size": sum(b.requested for b in segment.blocks),
                "stream": segment.stream,
                "segment_type": "small" if segment.small else "large",
                "segment_pool_id": segment.pool,
                "is_expandable": False,
                "frames": segment.frames or [],
                "blocks": [
                    {
                        "address": block.address,
                        "size": block.size,
                        "requested_size": block.requested,
                        "state": block.state,
                        "frames": block.frames or [],
                    }
                    for block in segment.blocks
                ],
            }
            for segment in self.segments
        ]


@functools.lru_cache(4096)
def _frame(filename, line, name):
    """Return a frame in PyTorch's format. As in PyTorch's snapshots, stacks share the dicts of equal frames."""
    return {"filename": filename, "line": line, "name": name}


def _frames():
    """Return the Python stack in PyTorch's format, without frames of the fakes.

    Of the frames from which pytest calls the test, which are many, only the outermost is included.
    """
    frame, frames, calls_test = sys._getframe(2), [], False
    while frame is not None:
        code, calls_test = frame.f_code, calls_test or frame.f_code.co_name == "pytest_pyfunc_call"
        if "fakes" not in code.co_filename and (not calls_test or frame.f_back is None):
            frames.append(_frame(code.co_filename, frame.f_lineno, code.co_name))
        frame = frame.f_back
    return frames
