"""A small caching allocator that writes snapshots like PyTorch and records its true state after every event."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

QUANTUM = 512
PAGE = 2 << 20
SMALL = 1 << 20
ARENA = 1 << 36


@dataclass
class Block:
    address: int
    size: int
    requested: int = 0
    state: str = "inactive"
    frames: list = field(default_factory=list)


@dataclass
class Range:
    """A segment from cudaMalloc, or a contiguous mapped range of an expandable segment."""

    address: int
    size: int
    stream: int
    pool: tuple[int, int]
    expandable: bool
    blocks: list[Block]


class Device:
    def __init__(self, simulator, index):
        self.simulator = simulator
        self.index = index
        self.ranges = []
        self.trace = []
        self.truth = [self.state()]
        self.addresses = count(0x7F0000000000 + index * (1 << 40), 1 << 30)
        self.arenas = {}

    def live(self):
        return [b for r in self.ranges for b in r.blocks if b.state != "inactive"]

    def state(self):
        """Return the requested bytes, the reserved bytes, the live blocks and the segments."""
        live = sorted((b.address, b.requested, b.state == "active_pending_free") for b in self.live())
        segments = sorted((r.address, r.size, r.stream) for r in self.ranges)
        return sum(b[1] for b in live), sum(s[1] for s in segments), live, segments

    def log(self, action, address, size, stream, pool, frames=None):  # noqa: PLR0917 (an entry has as many keys)
        simulator = self.simulator
        simulator.clock += simulator.ticks()
        entry = {"action": action, "addr": address, "size": size, "stream": stream, "time_us": simulator.clock}
        if action == "oom":
            entry["device_free"] = entry.pop("addr")
        if simulator.with_pools:
            entry["pool_id"] = pool
        if frames is not None:
            entry["frames"] = frames
        self.trace.append(entry)
        self.truth.append(self.state())

    def alloc(self, requested, stream, pool, expandable, frames):
        rounded = max(QUANTUM, -(-requested // QUANTUM) * QUANTUM)
        fits = [
            (b.size, b.address, r, b)
            for r in self.ranges
            for b in r.blocks
            if b.state == "inactive"
            and b.size >= rounded
            and (r.stream, r.pool, r.expandable) == (stream, pool, expandable)
        ]
        if fits:
            _, _, home, block = min(fits, key=lambda fit: fit[:2])
        else:
            home, block = self.grow(rounded, stream, pool, expandable, frames)
        if block.size > rounded:
            at = home.blocks.index(block)
            home.blocks.insert(at + 1, Block(block.address + rounded, block.size - rounded, requested=77))
            block.size = rounded
        block.state, block.requested, block.frames = "active_allocated", requested, frames
        self.log("alloc", block.address, requested, stream, pool, frames)
        return home, block

    def grow(self, rounded, stream, pool, expandable, frames):
        size = -(-rounded // PAGE) * PAGE
        if not expandable:
            home = Range(next(self.addresses), size, stream, pool, False, [])
            home.blocks.append(Block(home.address, size))
            self.ranges.append(home)
            self.log("segment_alloc", home.address, size, stream, pool, frames)
            return home, home.blocks[0]
        arena = self.arenas.setdefault((stream, pool), next(self.addresses))
        own_ranges = [r for r in self.ranges if r.expandable and (r.stream, r.pool) == (stream, pool)]
        end = max((r.address + r.size for r in own_ranges), default=arena)
        home = next((r for r in own_ranges if r.address + r.size == end), None)
        if home is None:
            home = Range(end, 0, stream, pool, True, [])
            self.ranges.append(home)
        home.size += size
        last = home.blocks[-1] if home.blocks else None
        if last is not None and last.state == "inactive":
            last.size += size
        else:
            last = Block(end, size)
            home.blocks.append(last)
        self.log("segment_map", end, size, stream, pool, frames)
        return home, last

    def request_free(self, home, block, frames):
        block.state = "active_pending_free"
        self.log("free_requested", block.address, block.requested, home.stream, home.pool, frames)

    def complete_free(self, block, frames):
        home = next(r for r in self.ranges if block in r.blocks)
        address, requested = block.address, block.requested
        block.state = "inactive"
        at = home.blocks.index(block)
        for adjacent in (at + 1, at - 1):
            if (
                0 <= adjacent < len(home.blocks)
                and home.blocks[adjacent].state == "inactive"
                and home.blocks[adjacent] is not block
            ):
                merged = home.blocks.pop(adjacent)
                block.address = min(block.address, merged.address)
                block.size += merged.size
                at = home.blocks.index(block)
        self.log("free_completed", address, requested, home.stream, home.pool, frames)

    def empty_cache(self, frames):
        for home in list(self.ranges):
            if home.expandable:
                self.unmap(home, frames)
            elif all(b.state == "inactive" for b in home.blocks):
                self.ranges.remove(home)
                self.log("segment_free", home.address, home.size, home.stream, home.pool, frames)

    def unmap(self, home, frames):
        """Unmap the whole pages of the first free block that contains any. Up to two mapped ranges remain."""
        for at, block in enumerate(home.blocks):
            first = -(-(block.address - home.address) // PAGE) * PAGE + home.address
            last = (block.address + block.size - home.address) // PAGE * PAGE + home.address
            if block.state == "inactive" and last > first:
                left_blocks, right_blocks = home.blocks[:at], home.blocks[at + 1 :]
                if first > block.address:
                    left_blocks.append(Block(block.address, first - block.address))
                if block.address + block.size > last:
                    right_blocks.insert(0, Block(last, block.address + block.size - last))
                self.ranges.remove(home)
                end = home.address + home.size
                for address, size, blocks in (
                    (home.address, first - home.address, left_blocks),
                    (last, end - last, right_blocks),
                ):
                    if size:
                        self.ranges.append(Range(address, size, home.stream, home.pool, True, blocks))
                self.log("segment_unmap", first, last - first, home.stream, home.pool, frames)
                return


class Simulator:
    """Runs operations that are encoded as numbers, so that hypothesis can generate and shrink them."""

    def __init__(self, devices=1, with_pools=True):
        self.clock = 1_700_000_000_000_000
        self.ticks = lambda: 0
        self.with_pools = with_pools
        self.devices = [Device(self, index) for index in range(devices)]
        self.pending = []
        self.frames = [[{"filename": f"/home/user/train{n % 2}.py", "line": n + 1, "name": f"f{n}"}] for n in range(4)]

    def run(self, operations):
        for code, position, size, tick in operations:
            self.ticks = lambda tick=tick: tick
            device = self.devices[position % len(self.devices)]
            frames = self.frames[size % len(self.frames)]
            if code < 5:
                pool = (0, 1) if position & 4 else (0, 0)
                device.alloc(size, 0x1000 * (position & 1), pool, bool(position & 8), frames)
            elif code < 9:
                live = [(r, b) for r in device.ranges for b in r.blocks if b.state == "active_allocated"]
                if live:
                    home, block = live[size % len(live)]
                    device.request_free(home, block, frames)
                    if code < 8:
                        device.complete_free(block, frames)
                    else:
                        self.pending.append((device, block, frames))
            elif code == 9 and self.pending:
                device, block, frames = self.pending.pop(size % len(self.pending))
                device.complete_free(block, frames)
            elif code == 10:
                device.empty_cache(frames)
            elif code == 11:
                device.log("oom", size, size, 0, (0, 0), frames)
            elif code == 12:
                device.log("snapshot", 0, device.state()[0], 0, (0, 0))

    def snapshot(self, ring_size=None):
        """Return the dict of a file with the last ``ring_size`` events of each device, as in a ring buffer."""
        start = [max(0, len(d.trace) - ring_size) if ring_size is not None else 0 for d in self.devices]
        return {
            "segments": [self.segment(d, r) for d in self.devices for r in sorted(d.ranges, key=lambda r: r.address)],
            "device_traces": [d.trace[s:] for d, s in zip(self.devices, start, strict=True)],
        }

    @staticmethod
    def segment(device, home):
        active = [b for b in home.blocks if b.state != "inactive"]
        return {
            "device": device.index,
            "address": home.address,
            "total_size": home.size,
            "allocated_size": sum(b.size for b in active if b.state == "active_allocated"),
            "active_size": sum(b.size for b in active),
            "requested_size": sum(b.requested for b in active),
            "stream": home.stream,
            "segment_type": "large",
            "segment_pool_id": home.pool,
            "is_expandable": home.expandable,
            "frames": [],
            "blocks": [
                {
                    "address": b.address,
                    "size": b.size,
                    "requested_size": b.requested,
                    "state": b.state,
                    "frames": b.frames if b.state != "inactive" else [],
                }
                for b in home.blocks
            ],
        }
