"""The number of retries that a recording shows, compared with that of the allocator that made it."""

import random

import pytest

from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.replay.allocator import SimulatedOutOfMemoryError
from snapshot.replay.test_allocator import MIB, make

NAMES = {Action.SEGMENT_ALLOC: "segment_alloc", Action.SEGMENT_FREE: "segment_free"}


def record(settings, limit, seed, *, stacks=True):
    """Return a recording of random allocations and frees, and the number of retries."""
    generator, allocator = random.Random(seed), make(settings, limit=limit, by_fraction=True)
    trace, live = [], {}

    def event(action, address, nbytes, line):
        frames = [{"filename": "train.py", "line": line, "name": "f"}] if stacks else []
        entry = {"action": action, "addr": address, "size": nbytes, "stream": 0, "frames": frames}
        trace.append(entry | {"time_us": len(trace)})

    def free():
        address, whole, _ = live.pop(generator.choice(list(live)))
        event("free_requested", address, whole, 9)
        event("free_completed", address, whole, 9)
        allocator.free(0, address, whole)

    for line in range(10, 210):
        requested = generator.randrange(24, 90) * MIB
        while sum(whole for _, whole, _ in live.values()) + requested > limit * 3 // 4:
            free()
        known = len(allocator.events)
        failed = False
        try:
            address, whole = allocator.allocate(0, requested, 0)
        except SimulatedOutOfMemoryError:
            failed = True
        for segment in allocator.events[known:]:
            event(NAMES[segment.action], segment.address, segment.size, line)
        if failed:
            event("oom", 0, requested, line)
            break
        event("alloc", address, requested, line)
        live[address] = address, whole, requested
        if generator.random() < 0.3:
            free()
    keys = dict(setting.split(":") for setting in filter(None, settings.split(",")))
    values = {"garbage_collection_threshold": float(keys.get("garbage_collection_threshold", 0))}
    if "max_split_size_mb" in keys:
        values["max_split_size"] = int(keys["max_split_size_mb"]) * MIB
    return {
        "segments": _segments(allocator, live),
        "device_traces": [trace],
        "allocator_settings": values,
    }, allocator.retries


def _segments(allocator, live):
    segments = []
    for start, nbytes in allocator.segments.items():
        inside = [(at, whole, "active_allocated", asked) for at, whole, asked in live.values()]
        inside += [(at, whole, "inactive", 0) for at, whole in allocator.free_blocks(0)]
        keys = ("address", "size", "state", "requested_size")
        blocks = [dict(zip(keys, row, strict=True)) for row in sorted(inside) if start <= row[0] < start + nbytes]
        segment = {"device": 0, "address": start, "total_size": nbytes, "stream": 0, "segment_type": "large"}
        segments.append(segment | {"blocks": blocks})
    return segments


SETTINGS = ["", "max_split_size_mb:24", "garbage_collection_threshold:0.6", "garbage_collection_threshold:0.9"]


@pytest.mark.parametrize("settings", SETTINGS)
def test_retries(settings):
    """They are counted, or unknown if garbage collection may have freed all cached segments."""
    counts = []
    for seed in range(10):
        recording, retries = record(settings, 240 * MIB, seed)
        replay = Snapshot.load(recording).replay()
        assert replay.grade == "exact"
        assert replay.retries in ({retries, None} if settings.startswith("garbage") else {retries})
        assert (replay.retries is None) == bool(replay.retries_reason)
        with_limit = Snapshot.load(recording | {"ipygpumem": {"devices": [{"limit": 240 * MIB}]}}).replay()
        assert (with_limit.grade, with_limit.retries, with_limit.retries_reason) == ("exact", retries, "")
        counts.append(retries)
    assert any(counts)


def test_retries_without_stacks():
    """They cannot be distinguished from calls to ``empty_cache``."""
    recording, retries = record("", 240 * MIB, 1, stacks=False)
    replay = Snapshot.load(recording).replay()
    assert retries > 0
    assert (replay.grade, replay.retries) == ("exact", None)
    assert replay.to_dict()["retries_reason"].startswith("without the stacks of frees, torch.cuda.empty_cache()")
