"""The number of retries in a replay, compared with the counter of the allocator that made the recording."""

import random

import pytest

from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.replay.allocator import SimulatedOutOfMemoryError
from ipygpumem.snapshot.replay.settings_comparison import compare_settings
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
    counts = []
    for seed in range(5):
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
    recording, retries = record("", 240 * MIB, 1, stacks=False)
    replay = Snapshot.load(recording).replay()
    assert retries > 0
    assert (replay.grade, replay.retries) == ("exact", None)
    assert replay.to_dict()["retries_reason"].startswith("without the stacks of frees, torch.cuda.empty_cache()")


def load(events, blocks, *, limit=None, settings=None):
    """Return a snapshot. All addresses and sizes are in MiB.

    ``events`` contains (action, address, size, line[, pool]). ``blocks`` maps each segment at the end, given as
    (address, size[, pool]), to a dict from the size of each block to its line; None for a free block.
    """
    trace = []
    for action, start, size, line, *pool in events:
        frames = [{"filename": "train.py", "line": line, "name": "f"}] if line else []
        entry = {"action": action, "addr": (1 << 40) + start * MIB, "size": int(size * MIB), "stream": 0}
        entry |= {"time_us": len(trace), "frames": frames, "pool_id": (0, *(pool or [0]))}
        trace.append(entry)
    segments = []
    for (start, size, *pool), inside in blocks.items():
        states = [("inactive" if line is None else "active_allocated", line) for line in inside.values()]
        rows = [
            {"size": nbytes * MIB, "requested_size": nbytes * MIB, "state": state}
            for nbytes, (state, _) in zip(inside, states, strict=True)
        ]
        segment = {"device": 0, "address": (1 << 40) + start * MIB, "total_size": size * MIB, "blocks": rows}
        kind = {"segment_type": "large" if size > 2 else "small", "is_expandable": "segment_map" in events[0]}
        segments.append(segment | kind | {"segment_pool_id": (0, *(pool or [0]))})
    own = {"ipygpumem": {"devices": [{"index": 0, "limit": limit * MIB}]}} if limit else {}
    values = {"allocator_settings": settings or {}}
    return Snapshot.load({"segments": segments, "device_traces": [trace], **values, **own})


def replay(*arguments, other=(), **options):
    return load(*arguments, **options).replay(*other)


def allocated(start, size, line, *pool, action="segment_alloc"):
    return [(action, start, size, line, *pool), ("alloc", start, size, line, *pool)]


def freed(start, size, line, *pool):
    return [(action, start, size, line, *pool) for action in ("free_requested", "free_completed")]


def test_failed_request_after_empty_cache():
    events = [*allocated(0, 40, 1), *allocated(100, 80, 2), *freed(100, 80, 3), ("segment_free", 100, 80, 4)]
    result = replay([*events, ("oom", 0, 100, 5)], {(0, 40): {40: 1}})
    assert (result.grade, result.retries, result.retries_reason) == ("exact", 1, "")


@pytest.mark.parametrize(("line", "grade"), [(7, "exact"), (6, "approximate")])
def test_free_that_is_completed_while_a_request_is_tried_again(line, grade):
    events = [*allocated(0, 400, 1), *freed(0, 400, 2), *allocated(1000, 500, 3), ("alloc", 0, 300, 4)]
    events += [("alloc", 300, 80, 5), ("free_requested", 0, 300, 6), ("free_completed", 0, 300, line)]
    events.append(("oom", 0, 250, 7))
    blocks = {(0, 400): {300: None, 80: 5, 20: None}, (1000, 500): {500: 3}}
    result = replay(events, blocks)
    assert (result.grade, result.retries) == (grade, 1 if grade == "exact" else None)
    assert (result.failure is None) == (grade != "exact")
    if grade == "exact":  # a free block is large enough, so that no set of blocks to free is stated
        assert compare_settings(load(events, blocks), settings=[""]).blockers.smallest is None
    for settings in ("", "roundup_power2_divisions:8"):
        limited = replay(events, blocks, other=(settings, 1000 * MIB))
        assert (limited.failure is None) == (grade != "exact")


def test_retry_that_frees_segments_of_the_small_pool():
    events = [("segment_alloc", 0, 2, 1), ("alloc", 0, 1, 1), *freed(0, 1, 2), *allocated(100, 100, 3)]
    events += [("segment_free", 0, 2, 4), *allocated(300, 28, 4)]
    collection = {"garbage_collection_threshold": 0.7}
    result = replay(events, {(100, 100): {100: 3}, (300, 28): {28: 4}}, settings=collection)
    assert (result.grade, result.retries, result.retries_reason) == ("exact", 1, "")


@pytest.mark.parametrize(("limit", "retries"), [(4096, 0), (80, None)])
def test_retries_without_stacks_below_a_known_limit(limit, retries):
    events = [*allocated(0, 60, 0, action="segment_map"), *freed(0, 60, 0), ("segment_unmap", 0, 60, 0)]
    events += allocated(0, 40, 0, action="segment_map")
    expandable = {"expandable_segments": True, "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
    result = replay(events, {(0, 40): {40: 0}}, limit=limit, settings=expandable)
    assert (result.grade, result.retries) == ("exact", retries)
    assert result.retries_reason.startswith("without the stacks of frees") == (retries is None)


@pytest.mark.parametrize("failed", [False, True])
def test_retries_with_private_pools(failed):
    split = {} if failed else {"max_split_size": 24 * MIB}
    events = [*allocated(0, 30, 1, 7), *freed(0, 30, 2, 7)]
    if failed:
        result = replay([*events, ("oom", 0, 40, 3)], {(0, 30, 7): {30: None}}, settings=split)
    else:
        events += [("segment_free", 0, 30, 4, 7), *allocated(100, 40, 4, 7)]
        result = replay(events, {(100, 40, 7): {40: 4}}, settings=split)
    assert (result.grade, result.retries) == ("exact", None)
    assert result.retries_reason.startswith("there are private pools")
