"""A long training run as a snapshot: ``python -m tests.benchmarks.synthetic EVENTS FILE [LIVE]``.

Steps of changing length over a transformer: activations that the backward pass frees in reverse, gradients, what the
optimizer needs for a moment. Blocks come from free lists by size and, where there are none, from new segments.
Frames are shared, as in PyTorch's own files. With ``LIVE`` so many small blocks stay from the beginning to the end.
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


class Writer:
    """Events, and the segments that they lead to."""

    def __init__(self):
        self.trace = []
        self.free = {}
        self.live = {}
        self.segments = []
        self.room = (0, 0)
        self.time = START
        self.following = FIRST

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
        known = self.free.setdefault(rounded, [])
        address = known.pop() if known else self.fresh(rounded, frames)
        self.live[address] = (rounded, size)
        self.event("alloc", address, size, frames)
        return address

    def fresh(self, rounded, frames):
        at, end = self.room
        if at + rounded > end:
            total = max(SEGMENT, -(-rounded // (2 * MIB)) * 2 * MIB)
            at, end = self.following, self.following + total
            self.following = end + 2 * MIB
            self.segments.append((at, total))
            self.event("segment_alloc", at, total, frames)
        self.room = (at + rounded, end)
        return at

    def release(self, address, frames):
        rounded, size = self.live.pop(address)
        self.event("free_requested", address, size, frames)
        self.event("free_completed", address, size, frames)
        self.free[rounded].append(address)

    def snapshot(self):
        return {
            "segments": [self.segment(*one) for one in self.segments],
            "device_traces": [self.trace],
            "allocator_settings": {"expandable_segments": False},
        }

    def segment(self, address, total):
        blocks, at = [], address
        for begin in sorted(one for one in self.live if address <= one < address + total):
            rounded, size = self.live[begin]
            if begin > at:
                blocks.append({"address": at, "size": begin - at, "requested_size": 0, "state": "inactive"})
            blocks.append({"address": begin, "size": rounded, "requested_size": size, "state": "active_allocated"})
            at = begin + rounded
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
    """A snapshot with about this many events; so many small blocks stay from the beginning to the end."""
    dice = random.Random(events)
    writer = Writer()
    forward = [[stack(f"layer{layer}", 10 * layer + part) for part in range(6)] for layer in range(LAYERS)]
    backward, optimizer = [], stack("step", 900)
    for layer in range(LAYERS):
        for part in range(12):
            writer.alloc((1 + part) * MIB // 2, forward[layer][0])
    for number in range(live):
        writer.alloc(512 * (1 + number % 40), forward[number % LAYERS][1])
    while len(writer.trace) < events:
        tokens = dice.choice([256, 512, 768, 1024])
        kept = []
        for layer in range(LAYERS):
            for part in range(6):
                temporary = writer.alloc(tokens * 1024, forward[layer][part])
                kept.append(writer.alloc(tokens * 1024 * (1 + part), forward[layer][part]))
                writer.release(temporary, forward[layer][part])
        gradients = []
        for address in reversed(kept):
            gradients.append(writer.alloc(dice.choice([1, 2, 4]) * MIB // 2, backward))
            temporary = writer.alloc(tokens * 2048, backward)
            writer.release(temporary, backward)
            writer.release(address, backward)
        for address in gradients:
            temporary = writer.alloc(2 * MIB, optimizer)
            writer.release(temporary, optimizer)
            writer.release(address, optimizer)
    return writer.snapshot()


if __name__ == "__main__":
    Path(sys.argv[2]).write_bytes(pickle.dumps(make(int(sys.argv[1]), int((sys.argv[3:] or [0])[0])), 4))
