"""Generate a snapshot of a long training run: ``python -m tests.benchmarks.synthetic EVENTS FILE [LIVE]``.

Training steps of a transformer with different sequence lengths: activations that the backward pass frees in reverse
order, gradients, temporary buffers of the optimizer. Blocks come from free lists by size or from new segments. Frames
are shared, as in PyTorch's own files. ``LIVE`` is the number of small blocks that stay allocated throughout.
"""

from __future__ import annotations

import pickle
import random
import sys
from pathlib import Path

MIB = 1 << 20
SEGMENT = 20 * MIB
LAYERS = 24
DEPTH = 12
FIRST = 0x7F0000000000
START = 1_790_000_000_000_000


class EventCollector:
    """Collects the events of a run and the segments that they create."""

    def __init__(self):
        self.trace = []
        self.free = {}
        self.live = {}
        self.segments = []
        self.unused = (0, 0)
        self.time = START
        self.next_address = FIRST

    def event(self, action, address, size, frames):
        self.time += 3 + len(self.trace) % 5
        self.trace.append(
            {
                "action": action,
                "addr": address,
                "size": size,
                "stream": 0,
                "time_us": self.time,
                "compile_context": "N/A",
                "user_metadata": "",
                "frames": frames,
            }
        )

    def alloc(self, size, frames):
        rounded = -(-size // 512) * 512
        addresses = self.free.setdefault(rounded, [])
        address = addresses.pop() if addresses else self.new_address(rounded, frames)
        self.live[address] = (rounded, size)
        self.event("alloc", address, size, frames)
        return address

    def new_address(self, rounded, frames):
        at, end = self.unused
        if at + rounded > end:
            total = max(SEGMENT, -(-rounded // (2 * MIB)) * 2 * MIB)
            at, end = self.next_address, self.next_address + total
            self.next_address = end + 2 * MIB
            self.segments.append((at, total))
            self.event("segment_alloc", at, total, frames)
        self.unused = (at + rounded, end)
        return at

    def release(self, address, frames):
        rounded, size = self.live.pop(address)
        self.event("free_requested", address, size, frames)
        self.event("free_completed", address, size, frames)
        self.free[rounded].append(address)

    def snapshot(self):
        return {
            "segments": [self.segment(address, size) for address, size in self.segments],
            "device_traces": [self.trace],
            "allocator_settings": {"expandable_segments": False},
        }

    def segment(self, address, total):
        blocks, at = [], address
        for start in sorted(block for block in self.live if address <= block < address + total):
            rounded, size = self.live[start]
            if start > at:
                blocks.append({"address": at, "size": start - at, "requested_size": 0, "state": "inactive"})
            blocks.append({"address": start, "size": rounded, "requested_size": size, "state": "active_allocated"})
            at = start + rounded
        if at < address + total:
            blocks.append({"address": at, "size": address + total - at, "requested_size": 0, "state": "inactive"})
        return {
            "device": 0,
            "address": address,
            "total_size": total,
            "stream": 0,
            "segment_type": "large",
            "segment_pool_id": (0, 0),
            "is_expandable": False,
            "frames": [],
            "blocks": blocks,
        }


def stack(name, line):
    inner = [
        {"filename": f"/usr/lib/python3.12/site-packages/torch/nn/modules/m{n}.py", "line": 100 + n, "name": "forward"}
        for n in range(DEPTH)
    ]
    outer = {"filename": "/home/user/train.py", "line": 3, "name": "<module>"}
    return [*inner, {"filename": "/home/user/model.py", "line": line, "name": name}, outer]


def make(events, live=0):
    """Return a snapshot with about ``events`` events, and ``live`` small blocks that stay allocated throughout."""
    rng = random.Random(events)
    collector = EventCollector()
    forward = [[stack(f"layer{layer}", 10 * layer + part) for part in range(6)] for layer in range(LAYERS)]
    backward, optimizer = [], stack("step", 900)
    for layer in range(LAYERS):
        for part in range(12):
            collector.alloc((1 + part) * MIB // 2, forward[layer][0])
    for number in range(live):
        collector.alloc(512 * (1 + number % 40), forward[number % LAYERS][1])
    while len(collector.trace) < events:
        tokens = rng.choice([256, 512, 768, 1024])
        activations = []
        for layer in range(LAYERS):
            for part in range(6):
                temporary = collector.alloc(tokens * 1024, forward[layer][part])
                activations.append(collector.alloc(tokens * 1024 * (1 + part), forward[layer][part]))
                collector.release(temporary, forward[layer][part])
        gradients = []
        for address in reversed(activations):
            gradients.append(collector.alloc(rng.choice([1, 2, 4]) * MIB // 2, backward))
            temporary = collector.alloc(tokens * 2048, backward)
            collector.release(temporary, backward)
            collector.release(address, backward)
        for address in gradients:
            temporary = collector.alloc(2 * MIB, optimizer)
            collector.release(temporary, optimizer)
            collector.release(address, optimizer)
    return collector.snapshot()


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(pickle.dumps(make(int(sys.argv[1]), int((sys.argv[3:] or [0])[0])), 4))
