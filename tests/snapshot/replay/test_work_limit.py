"""Replays of files with many free blocks are refused if they would take too long."""

import itertools
import math
import tracemalloc

import pytest

from ipygpumem.core.units import GIB, MIB
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.export.encoded_replay import encode_replays
from ipygpumem.snapshot.replay import smallest_capacity, verification, work_limit
from ipygpumem.snapshot.replay.blockers import blocks_to_free
from ipygpumem.snapshot.replay.expandable_segments import ExpandableSegments
from ipygpumem.snapshot.replay.free_blocks import BlockPool
from ipygpumem.snapshot.replay.recording import Recording, ReplayError
from ipygpumem.snapshot.replay.run import run
from ipygpumem.snapshot.replay.settings import AllocatorSettings
from ipygpumem.snapshot.replay.settings_comparison import compare_settings
from ipygpumem.snapshot.replay.verification import cached_verification
from ipygpumem.snapshot.replay.work_limit import WorkLimit, WorkLimitExceededError
from snapshot import files

_START, TIB = 1 << 40, 1024 * GIB


def _record(requests, segments, **settings):
    """Return a snapshot of ``(action, address, size)`` events and of segments with ``(size, state)`` blocks."""
    events = [
        {"action": action, "addr": _START + address, "size": size, "stream": 0, "time_us": number}
        for number, (action, address, size) in enumerate(requests)
    ]
    table = []
    for address, blocks, options in segments:
        ends = itertools.accumulate(size for size, _ in blocks)
        table.append(
            {
                "address": _START + address,
                "total_size": sum(size for size, _ in blocks),
                "stream": 0,
                "blocks": [
                    {"address": _START + address + end - size, "size": size, "requested_size": size, "state": state}
                    for end, (size, state) in zip(ends, blocks, strict=True)
                ],
                **options,
            }
        )
    return Snapshot.load({"segments": table, "device_traces": [events], "allocator_settings": settings})


def _frees(addresses, size):
    return [(action, address, size) for address in addresses for action in ("free_requested", "free_completed")]


def _with_failed_requests(count, failed, block):
    """Return a recording with free blocks of one size between blocks in use, and with requests that failed."""
    addresses = [number * block for number in range(2 * count)]
    requests = _frees(addresses[1::2], block)
    requests += [("alloc", block, block), *_frees([block], block), *[("oom", 0, 64 * TIB)] * failed]
    kind = {"segment_type": "small" if block <= MIB else "large"}
    blocks = [(block, "active_allocated"), (block, "inactive")] * count
    return _record(requests, [(0, blocks, kind), (TIB, [(2 * MIB, "inactive")], kind)])


def _with_freed_expandable_blocks(count, allocated):
    """Return a recording whose free blocks cannot be used if expandable segments are turned off."""
    size, addresses = 2 * MIB, [number * 2 * MIB for number in range(2 * count)]
    requests = _frees(addresses[1::2], size)
    requests += [("alloc", size, size), *_frees([size], size)] * allocated
    blocks = [(size, "active_allocated"), (size, "inactive")] * count
    return _record(requests, [(0, blocks, {"is_expandable": True})], expandable_segments=True)


def _with_unmapped_blocks(count, allocated):
    """Return a recording with unmapped memory between blocks in use."""
    size = 20 * MIB
    addresses, end = [number * size for number in range(2 * count)], 2 * count * size
    requests = [event for address in addresses for event in (("segment_map", address, size), ("alloc", address, size))]
    requests += [*_frees(addresses[1::2], size), *[("segment_unmap", address, size) for address in addresses[1::2]]]
    requests += [
        ("segment_map", end, 2 * size),
        ("alloc", end, 2 * size),
        *_frees([end], 2 * size),
        ("segment_unmap", end, 2 * size),
    ] * allocated
    segments = [(address, [(size, "active_allocated")], {"is_expandable": True}) for address in addresses[::2]]
    return _record(requests, segments, expandable_segments=True)


def _cost(snapshot, settings="", **options):
    return run(Recording(snapshot, 0), AllocatorSettings.parse(settings), **options).cost


def test_small_free_blocks_are_not_examined_when_requests_fail():
    cost = [_cost(_with_failed_requests(count, 200, 512), limit=TIB) for count in (100, 200)]
    single = [_cost(_with_failed_requests(count, 1, 512), limit=TIB) for count in (100, 200)]
    assert cost[1] - single[1] == pytest.approx(cost[0] - single[0], rel=0.05)


@pytest.mark.parametrize(
    ("record", "settings", "options"),
    [
        (lambda count: _with_failed_requests(count, count, 2 * MIB), "", {"limit": TIB}),
        (lambda count: _with_freed_expandable_blocks(count, count), "", {}),
        (lambda count: _with_unmapped_blocks(count, count), "expandable_segments:True", {"recorded": True}),
    ],
)
def test_searches_of_many_blocks_are_counted(record, settings, options):
    cost = [_cost(record(count), settings, **options) for count in (200, 400)]
    assert cost[1] / cost[0] == pytest.approx(4, rel=0.2)


def _with_failed_requests_only(failed):
    alloc = [("segment_alloc", 0, 20 * MIB), ("alloc", 0, 11 * MIB)]
    segment = (0, [(11 * MIB, "active_allocated"), (9 * MIB, "inactive")], {"segment_type": "large"})
    return _record([*alloc, *[("oom", 0, 64 * TIB)] * failed], [segment])


def test_failed_requests_are_counted_and_rounded_together(monkeypatch):
    calls = []
    monkeypatch.setattr(
        AllocatorSettings, "round", lambda self, sizes, f=AllocatorSettings.round: calls.append(1) or f(self, sizes)
    )
    recordings = [Recording(_with_failed_requests_only(failed), 0) for failed in (10, 1010)]
    costs, counts = [], []
    for recording in recordings:
        calls.clear()
        costs.append(run(recording, AllocatorSettings(), limit=TIB).cost)
        counts.append(len(calls))
    assert costs[1] - costs[0] > 1000 * 12e-6  # a failed request takes 8 to 20 µs
    assert counts[0] == counts[1]


def test_long_replays_of_failed_requests_name_the_cause(monkeypatch):
    monkeypatch.setattr(work_limit, "_SECONDS_PER_ITEM", 0)
    monkeypatch.setattr(work_limit, "_SECONDS", 1e-3)
    message = "replays would take too long, because 1,000 requests failed: make a shorter recording"
    with pytest.raises(ReplayError, match=message):
        compare_settings(_with_failed_requests_only(1000))
    with pytest.raises(ReplayError, match="because requests search many free blocks"):
        compare_settings(_with_failed_requests(1000, 1, 2 * MIB))


def test_long_replays_are_refused(monkeypatch):
    snapshot = _with_failed_requests(60, 60, 2 * MIB)
    assert compare_settings(snapshot, settings=["max_split_size_mb:64"]).recorded.replay.smallest_capacity
    cost = _cost(snapshot, limit=TIB)
    message = "^snapshot: device 0 cannot be replayed: replays would take too long, .* make a shorter recording$"
    monkeypatch.setattr(work_limit, "_SECONDS_PER_ITEM", 0)
    monkeypatch.setattr(work_limit, "_SECONDS", 5 * cost)
    snapshot.clear_caches()
    for _ in range(8):  # each call has its own limit
        assert snapshot.replay("", TIB).failure
    with pytest.raises(ReplayError, match=message):
        compare_settings(snapshot)
    monkeypatch.setattr(work_limit, "_SECONDS", cost / 10)
    snapshot.clear_caches()
    for function in (snapshot.replay, lambda: compare_settings(snapshot), lambda: encode_replays(snapshot, "")):
        with pytest.raises(ReplayError, match=message):
            function()
    monkeypatch.setattr(verification, "verify", lambda _: pytest.fail("verified again"))
    with pytest.raises(ReplayError, match=message):
        snapshot.replay()
    assert snapshot.summary()


def test_devices_share_the_limit_of_single_replays(monkeypatch):
    monkeypatch.setattr(work_limit, "_SECONDS_PER_ITEM", 0)
    raw = files.raw("two_streams_expandable")
    one = Recording(Snapshot.load(raw), 0).work_limit
    raw["device_traces"] = [list(raw["device_traces"][0]) for _ in range(4)]
    four = Recording(Snapshot.load(raw), 0).work_limit
    assert four.seconds == one.seconds
    assert four.replay_seconds == pytest.approx(one.replay_seconds / 4)


def test_limit_of_a_verification():
    snapshot = Snapshot.load(files.raw("oom_fragmented"))
    with pytest.raises(ReplayError, match="too long"):
        cached_verification(snapshot, 0, 1e-6)


def test_search_that_takes_long_ends_with_an_upper_bound(monkeypatch):
    snapshot = files.snapshot("cnn_steps")
    exact = snapshot.replay().smallest_capacity
    monkeypatch.setattr(smallest_capacity, "_SHARE", 0)
    bound = snapshot.replay().smallest_capacity
    assert exact < bound
    assert snapshot.replay("", bound).failure is None


def test_nested_limits():
    limit = WorkLimit(1000)
    limit.count(1e12)
    with limit.limited(2.0):
        limit.count(5e6)
        with limit.limited():
            limit.count(5e6)
        with limit.limited(0.5):
            limit.count(4e6)
        assert limit.left == pytest.approx(1)
        with pytest.raises(WorkLimitExceededError):
            limit.count(11e6)
    assert limit.left == math.inf
    with limit.limited():
        assert limit.left == limit.seconds


def test_work_that_takes_longer_than_its_count(monkeypatch):
    seconds = iter([0, 10, 15.9, 16.1])
    monkeypatch.setattr(work_limit.time, "thread_time", lambda: next(seconds))
    limit = WorkLimit()
    limit.check_time()
    blocks = ExpandableSegments(
        AllocatorSettings(), [BlockPool(0, 0, False, False)], 0, False, 0, lambda size: 0, collects=False
    )
    blocks.work = limit
    with limit.limited(2.5):
        blocks.count_requests(1)
        with pytest.raises(WorkLimitExceededError):
            blocks.count_requests(1)


def test_insertions_into_a_long_list_of_unmapped_memory_are_counted():
    pool = BlockPool(0, 0, False, False)
    blocks = ExpandableSegments(AllocatorSettings(), [pool], 0, False, 0, lambda size: 0, collects=False)
    blocks.add_range(0, 0, 200_001 * MIB, [(number * MIB, MIB) for number in range(0, 200_000, 2)])
    with blocks.work.limited(10.0):
        blocks.count_requests(1000)
        assert blocks.work.left == pytest.approx(10 - 1000 * (14 + 100_000 / 200) / work_limit.STEPS_PER_SECOND)


class _Sizes:
    """Substitute for a `ReplayRun` that contains only the sizes of blocks."""

    def __init__(self, sizes):
        self.sizes = sizes


def _segments(sizes, used):
    table = [blocks_to_free.SimulatedSegment(0, size * 2 * MIB, 0, [], [row]) for row, size in enumerate(sizes)]
    return _Sizes(used), table


def test_smallest_set_of_segments():
    sizes, used = [1, 3, 4, 2, 7, 5, 1, 9], [5, 9, 8, 7, 30, 11, 2, 50]
    result, segments = _segments(sizes, used)
    for units in range(1, sum(sizes) + 1):
        least = min(
            sum(used[row] for row in rows)
            for count in range(1, len(sizes) + 1)
            for rows in itertools.combinations(range(len(sizes)), count)
            if sum(sizes[row] for row in rows) >= units
        )
        choice = blocks_to_free._whole_segments(result, segments, units * 2 * MIB)
        assert (choice.bytes, sum(used[row] for row in choice.rows)) == (least, least)
        assert sum(sizes[row] for row in choice.rows) >= units
    assert blocks_to_free._whole_segments(result, segments, (sum(sizes) + 1) * 2 * MIB) is None


def test_memory_for_the_smallest_set_of_segments():
    result, segments = _segments([8] * 4096, [1] * 4096)
    tracemalloc.start()
    try:
        assert len(blocks_to_free._whole_segments(result, segments, 32768 * 2 * MIB).rows) == 4096
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 * MIB
    result, segments = _segments([1] * 40_000, [1] * 40_000)
    assert blocks_to_free._whole_segments(result, segments, 40_000 * 2 * MIB) is None
