"""Records programs of allocations whose sizes depend on the size of a step, with a slow model of the allocator."""

from __future__ import annotations

import itertools

from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.scaling.step import StepRecording
from snapshot.entries import block, event, frame, free_events, segment
from snapshot.replay import allocator_model

MIB = 1 << 20
PAGE = 2 * MIB
TORCH = "/usr/lib/python3.12/site-packages/torch/"
BACKWARD = ()
OPTIMIZER = (frame(TORCH + "optim/adamw.py", 9, "step"), frame("/home/user/train.py", 99, "step"))


def line(number):
    return (frame(TORCH + "nn/modules/linear.py", 1, "forward"), frame("/home/user/train.py", number, "forward"))


def ranges(segment):
    result = []
    for part in segment.blocks:
        if part.mapped and result and result[-1][1] == part.address:
            result[-1] = (result[-1][0], part.address + part.size)
        elif part.mapped:
            result.append((part.address, part.address + part.size))
    return result


class Recorder:
    """Runs steps one after another. A step is a function that is called with the recorder and the size."""

    def __init__(self, *, expandable=False):
        self.following = 1 << 40
        options = {
            "expandable": expandable,
            "max_split": None,
            "large_segment": 20 * MIB,
            "limit": None,
            "total": 1 << 40,
        }
        self.model = allocator_model.Reference(self.address, **options)
        self.trace, self.live = [], {}
        self.windows, self.peaks = [], []

    def address(self, size):
        self.following += size
        return self.following - size

    def alloc(self, size, frames=BACKWARD, stream=0, **fields):
        rounded = max(-(-size // 512), 1) * 512
        before, mapped = len(self.model.segments), self.mapped()
        address, actual = self.model.allocate(rounded, stream)
        for new in self.model.segments[before:]:
            if not new.expandable:
                length = sum(part.size for part in new.blocks)
                self.log("segment_alloc", new.address, length, frames, stream=stream, **fields)
        if new := self.mapped() - mapped:
            self.log("segment_map", min(new), len(new) * PAGE, frames, stream=stream, **fields)
        self.live[address] = (size, actual)
        self.log("alloc", address, size, frames, stream=stream, **fields)
        return address

    def free(self, address):
        size, _ = self.live.pop(address)
        self.model.free(address)
        self.trace += free_events(address, size, len(self.trace))
        self.measure()

    def mapped(self):
        segments = [segment for segment in self.model.segments if segment.expandable]
        return {page for item in segments for first, end in ranges(item) for page in range(first, end, PAGE)}

    def empty_cache(self):
        before = {item.address: sum(part.size for part in item.blocks) for item in self.model.segments}
        mapped, frames = self.mapped(), (frame("memory.py", 1, "empty_cache"),)
        self.model.release()
        for address in before.keys() - {item.address for item in self.model.segments}:
            self.log("segment_free", address, before[address], frames)
        pages = sorted(mapped - self.mapped())
        for _, group in itertools.groupby(enumerate(pages), lambda item: item[1] - item[0] * PAGE):
            (_, first), *others = group
            self.log("segment_unmap", first, (1 + len(others)) * PAGE, frames)

    def log(self, action, address, size, frames=(), **fields):
        self.trace.append(event(action, address, size, len(self.trace), frames, **fields))
        self.measure()

    def measure(self):
        if self.peaks:
            requested, allocated, reserved = self.peaks[-1]
            sizes = list(self.live.values())
            self.peaks[-1] = (
                max(requested, sum(size for size, _ in sizes)),
                max(allocated, sum(actual for _, actual in sizes)),
                max(reserved, self.model.reserved),
            )

    def run(self, step, *sizes):
        for size in sizes:
            self.peaks.append((0, 0, 0))
            first = len(self.trace) - 1
            self.measure()
            step(self, size)
            self.windows.append((size, first, len(self.trace) - 1))
        return self

    def record(self, step, size):
        """Run a step, release the cache, and return the size and the recording, which begins with the step."""
        self.trace, self.windows = [], []
        self.run(step, size).empty_cache()
        return self.steps()[0]

    def steps(self):
        segments = []
        parts = [(item, *mapped) for item in self.model.segments for mapped in ranges(item)]
        for item, first, end in parts:
            blocks = [
                block(part.address, part.size, self.live[part.address][0] if part.used else 0)
                | {"state": "active_allocated" if part.used else "inactive"}
                for part in item.blocks
                if first <= part.address < end
            ]
            options = {"segment_type": "small" if item.small else "large", "is_expandable": item.expandable}
            options["segment_pool_id"] = (0, 0)
            segments.append(segment(first, end - first, blocks, stream=item.stream, **options))
        settings = {"expandable_segments": self.model.expandable}
        snapshot = Snapshot.load({"segments": segments, "device_traces": [self.trace], "allocator_settings": settings})
        return [(size, StepRecording(snapshot, 0, first, last)) for size, first, last in self.windows]
