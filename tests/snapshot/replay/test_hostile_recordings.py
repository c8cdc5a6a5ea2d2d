"""Replays of files with unusual contents: the work is proportional to the file, and all errors are `ReplayError`."""

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

from ipygpumem.core.units import GIB, MIB
from ipygpumem.features.whatif.table import comparison_table
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.queries import groups
from ipygpumem.snapshot.replay import block_sizes, recording
from ipygpumem.snapshot.replay.allocator import SimulatedAllocator
from ipygpumem.snapshot.replay.blockers import blocks_to_free, segment_blockers
from ipygpumem.snapshot.replay.free_blocks import BlockPool
from ipygpumem.snapshot.replay.recording import Recording, ReplayError
from ipygpumem.snapshot.replay.settings import AllocatorSettings
from ipygpumem.snapshot.replay.settings_comparison import compare_settings
from ipygpumem.snapshot.replay.verification import cached_verification
from ipygpumem.snapshot.replay.work_limit import WorkLimitExceededError
from snapshot import files

_START, _BLOCK, TIB = 1 << 40, MIB + 512, 1024 * GIB
_STACK = [{"filename": "/a.py", "line": 3, "name": "f"}]


def _load(events, segments=(), own=None, **settings):
    """Return a snapshot of ``(action, address, size, stream, frames)`` events and of segments with block sizes."""
    trace = [
        {"action": action, "addr": _START + address, "size": size, "stream": stream, "time_us": number + 1}
        | ({"frames": frames} if frames else {})
        | ({"device_free": 0} if action == "oom" else {})
        for number, (action, address, size, stream, frames) in enumerate(events)
    ]
    table = []
    for address, kind, expandable, blocks in segments:
        end, listed = _START + address, []
        for size, requested in blocks:
            state = "active_allocated" if requested else "inactive"
            listed.append({"address": end, "size": size, "requested_size": requested, "state": state})
            end += size
        options = {"segment_type": kind, "is_expandable": expandable, "segment_pool_id": (0, 0)}
        total = sum(size for size, _ in blocks)
        table.append({"address": _START + address, "total_size": total, "stream": 0, "blocks": listed, **options})
    data = {"segments": table, "device_traces": [trace], "allocator_settings": settings}
    return Snapshot.load(data | ({"ipygpumem": {"schema": 1, **own}} if own else {}))


def _with_lines(count):
    """Return a recording that ends with a failed request and has blocks of many lines in one segment."""
    size = -(-(count + 40) * _BLOCK // (2 * MIB)) * 2 * MIB
    events = [("segment_alloc", 0, size, 0, None), ("alloc", 0, size, 0, None), ("free_completed", 0, size, 0, None)]
    for number in range(count):
        frames = [{"filename": "/a.py", "line": number + 1, "name": "f"}]
        events.append(("alloc", number * _BLOCK, _BLOCK, 0, frames))
    events += [("free_completed", 0, _BLOCK, 0, None), ("oom", 0, 64 * TIB, 0, None)]
    blocks = [(_BLOCK, 0), *[(_BLOCK, _BLOCK)] * (count - 1), (size - count * _BLOCK, 0)]
    return _load(events, [(0, "large", False, blocks)])


def _retry(frames, **own):
    """Return a recording in which cached segments were freed before a request failed."""
    events = [
        ("segment_alloc", 0, 30 * MIB, 0, frames),
        ("alloc", 0, 30 * MIB, 0, frames),
        ("segment_alloc", 30 * MIB, 40 * MIB, 0, frames),
        ("alloc", 30 * MIB, 40 * MIB, 0, frames),
        ("free_completed", 0, 30 * MIB, 0, frames),
        ("segment_free", 0, 30 * MIB, 0, frames),
        ("oom", 0, 80 * MIB, 0, frames),
    ]
    return _load(events, [(30 * MIB, "large", False, [(40 * MIB, 40 * MIB)])], own)


def _seconds(function, *arguments):
    start = time.process_time()
    function(*arguments)
    return time.process_time() - start


def test_lines_of_one_segment(monkeypatch):
    find_lines, arguments = segment_blockers._lines, []
    monkeypatch.setattr(segment_blockers, "_lines", lambda *values: arguments.append(values) or find_lines(*values))
    for count in (2000, 8000):
        snapshot = _with_lines(count)
        assert len(compare_settings(snapshot, settings=["max_split_size_mb:64"]).blockers.lines) == count - 1
    few, many = (min(_seconds(find_lines, *values) for _ in range(3)) for values in arguments)
    assert many < 9 * few


def test_releases_of_many_streams(monkeypatch):
    accesses = 0

    class CountedPool(BlockPool):
        def __getattribute__(self, name):
            nonlocal accesses
            accesses += name == "private"
            return super().__getattribute__(name)

    limits = []
    program_limit = recording.program_limit
    monkeypatch.setattr(recording, "BlockPool", CountedPool)
    monkeypatch.setattr(recording, "program_limit", lambda *values: limits.append(values) or program_limit(*values))
    events = []
    for number in range(100):
        address, size = number * 2 * MIB, 2 * MIB
        events += [("segment_alloc", address, size, number, _STACK), ("alloc", address, 512, number, _STACK)]
    for number in range(100):
        address, size = number * 2 * MIB, 2 * MIB
        events += [("free_completed", address, 512, number, _STACK), ("segment_free", address, size, number, _STACK)]
        events += [("segment_alloc", address + 4 * GIB, size, number, _STACK)]
        events += [("alloc", address + 4 * GIB, 512, number, _STACK)]
    segments = [(number * 2 * MIB + 4 * GIB, "small", False, [(512, 512), (2 * MIB - 512, 0)]) for number in range(100)]
    result = Recording(_load(events, segments), 0)
    assert (result.problem, len(result.special), len(result.pools)) == ("", 100, 200)
    assert not any(result.may_be_private(event) for event in range(len(result.trace)))
    assert accesses <= 2 * len(result.pools)
    assert len(limits) <= 2


def test_many_releases_before_one_request(monkeypatch):
    calls = []
    segment_size = AllocatorSettings.segment_size
    monkeypatch.setattr(
        AllocatorSettings, "segment_size", lambda self, size: calls.append(size) or segment_size(self, size)
    )
    count, end = 50, 4 * TIB
    events = [("alloc", 0, 512, 0, None), ("free_completed", 0, 512, 0, None)]
    for number in range(count):
        events += [("free_completed", 512 * (number + 2), 512, 0, None)]
        events += [("segment_free", TIB + 4 * MIB * number, 4 * MIB, 0, None)]
    events += [("segment_alloc", end + 4 * MIB * number, 4 * MIB, 0, None) for number in range(count)]
    events += [("alloc", end, 3 * MIB, 0, None), ("free_completed", end, 3 * MIB, 0, None)]
    events += [("segment_free", end + 4 * MIB * number, 4 * MIB, 0, None) for number in range(count)]
    own = {"devices": [{"index": 0, "limit": 64 * TIB}]}
    settings = {"max_split_size": 64 * MIB, "PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:64"}
    result = Recording(_load(events, [(0, "small", False, [(2 * MIB, 0)])], own, **settings), 0)
    releases = [item for item in result.special if item.request == 2 * count + 2]
    assert (result.problem, len(releases), len(calls)) == ("", count, 1)
    assert not any(item.retry for item in releases)
    assert result.release_causes.new_bytes(2 * count + 2) == count * 4 * MIB


def test_sizes_of_blocks_are_computed_once(monkeypatch):
    calls = []
    compute = block_sizes._sizes_from_addresses
    monkeypatch.setattr(block_sizes, "_sizes_from_addresses", lambda *values: calls.append(values) or compute(*values))
    events = [("segment_alloc", 0, 20 * MIB, 0, None), ("alloc", 0, _BLOCK, 0, None)]
    events += [("oom", 0, TIB, 0, None)] * 20
    snapshot = _load(events, [(0, "large", False, [(_BLOCK, _BLOCK), (20 * MIB - _BLOCK, 0)])])
    results = snapshot.ooms()
    assert [result.memory.derived for result in results] == [False] * 20
    assert len(calls) == 1
    snapshot.clear_caches()
    assert snapshot.ooms() == results
    assert len(calls) == 2
    snapshot.clear_caches()
    assert [block_sizes.block_sizes(snapshot, 0, seconds).tolist() for seconds in (0, 1, 3, 10)] == [[_BLOCK]] * 4
    assert len(calls) == 3


def test_sizes_of_blocks_with_many_addresses_in_their_range(monkeypatch):
    count = 600
    addresses = [512 * ((number * 7) % count) for number in range(count)]
    pairs = [
        [("alloc", address, 2 * MIB, 0, None), ("free_completed", address, 2 * MIB, 0, None)] for address in addresses
    ]
    events = [("segment_alloc", 0, 40 * MIB, 0, None), *(event for pair in pairs for event in pair)]
    snapshot = _load(events, [(0, "large", False, [(40 * MIB, 0)])])
    considered = 0
    searchsorted = np.searchsorted

    def counted(values, keys, **options):
        nonlocal considered
        considered += np.size(keys)
        return searchsorted(values, keys, **options)

    monkeypatch.setattr(block_sizes.np, "searchsorted", counted)
    assert block_sizes.block_sizes(snapshot, 0, 0).tolist() == [2 * MIB] * count
    assert considered > 100 * count
    snapshot.clear_caches()
    considered = 0
    monkeypatch.setattr(block_sizes, "_MIN_STEPS", 0)
    assert block_sizes.block_sizes(snapshot, 0, 0) is None
    assert considered < (block_sizes._MAX_MEAN_ADDRESSES + 20) * count


def test_rows_to_unmap_are_converted_once(monkeypatch):
    conversions = 0

    class Rows(list):
        def __iter__(self):
            nonlocal conversions
            conversions += 1
            return super().__iter__()

    monkeypatch.setattr(blocks_to_free, "blocks_to_unmap", lambda *_: Rows([1, 2]))
    segments = [blocks_to_free.SimulatedSegment(row, 1, 0, [], [row]) for row in range(50)]
    allocator = SimpleNamespace(
        is_mapped=lambda _: True, mapped_ranges=list, reserved=0, page_size=lambda _: 1, pools=[None]
    )
    result = SimpleNamespace(
        recording=SimpleNamespace(limit=(10, 10), by_fraction=False), allocator=allocator, sizes=[1] * 50
    )
    sets = list(blocks_to_free._unmapped(result, segments, 0, 1))
    assert [(choice.bytes, choice.segments) for choice in sets] == [(2, 2)] * 2
    assert conversions <= 6


def test_allocations_are_assigned_to_lines_once(monkeypatch):
    calls = []
    find_frames = groups._user_frames
    monkeypatch.setattr(groups, "_user_frames", lambda *values: calls.append(values) or find_frames(*values))
    found = files.snapshot("oom_fragmented").live().by("allocation")
    assert len(found) > 20
    assert len(calls) == 1
    by_line = files.snapshot("oom_fragmented").live().by("line")
    assert {group.line for group in found} == {group.line for group in by_line}


def test_searches_of_many_pools_are_counted():
    pools = [BlockPool(number, 0, False, True) for number in range(5000)]
    settings = AllocatorSettings.parse("garbage_collection_threshold:0.5")
    allocator = SimulatedAllocator(settings, pools, limit=GIB, by_fraction=True, choose_address=lambda _: _START)
    allocator.reserved = GIB
    for search in (allocator.cached_segments, lambda: allocator.segments_to_collect(GIB)):
        with allocator.work.limited(1):
            search()
            assert allocator.work.left <= 1 - 1e-7 * len(pools)


_RETRIES = ("retry", "retry_with_stacks", "retry_with_limit")
_RECORDINGS = ("oom_fragmented", "max_split", "two_streams_expandable", "collection")


@pytest.mark.parametrize("name", [*_RETRIES, "lines", *_RECORDINGS])
def test_results_are_written_as_json(name):
    made = {
        "retry": lambda: _retry(None),
        "retry_with_stacks": lambda: _retry(_STACK),
        "retry_with_limit": lambda: _retry(_STACK, devices=[{"index": 0, "limit": 100 * MIB}]),
        "lines": lambda: _with_lines(20),
    }
    snapshot = made[name]() if name in made else files.snapshot(name)
    timeline = snapshot.timeline()
    replayed = snapshot.replay()
    middle = len(timeline.trace) // 2
    results = [
        replayed,
        replayed.waste,
        replayed.state(middle),
        snapshot.fragmentation(middle),
        snapshot.fragmentation(need="20 MiB"),
        snapshot.state_at(middle),
        *snapshot.ooms(last=3),
    ]
    results.append(compare_settings(snapshot, settings=["max_split_size_mb:64"]))
    for result in results:
        json.dumps(result.to_dict())
    assert not name.startswith("retry") or type(cached_verification(snapshot, 0).run.allocator.retries) is int


def test_adjacent_expandable_segments_of_two_pools():
    size, kib, mapped = GIB, 1024, 2122 * MIB
    small = (0, "small", True, [(1536, 1025), (2 * MIB - 1536, 0)])
    large = [(address, "large", True, [(size, size), (16 * MIB, 0)]) for address in (2 * MIB, mapped)]
    events = [("alloc", 2560, kib, 0, None), ("free_completed", 2560, kib, 0, None)]
    events += [("free_completed", 1536, kib, 0, None)]
    events += [("segment_map", mapped, 1040 * MIB, 0, None), ("alloc", mapped, size, 0, None)]
    own = {"devices": [{"index": 0, "total": MIB}]}
    snapshot = _load(events, [small, *large], own, expandable_segments=True)
    replayed = snapshot.replay()
    for function in (lambda: replayed.waste, lambda: replayed.state(4), replayed.to_dict):
        with pytest.raises(ReplayError, match="the events contradict each other"):
            function()


def test_recording_without_reserved_memory():
    events = [("alloc", 0, _BLOCK, 0, None), ("free_completed", 0, _BLOCK, 0, None)]
    result = compare_settings(_load(events))
    assert result.recorded.peaks == (0, 0)
    assert [item.settings for item in result.alternatives]
    assert comparison_table(result).rows


def test_long_search_after_a_replay_is_one_error(monkeypatch):
    def serves(*_):
        raise WorkLimitExceededError

    monkeypatch.setattr(blocks_to_free, "_serves", serves)
    with pytest.raises(ReplayError, match="replays would take too long"):
        compare_settings(files.snapshot("oom_fragmented"), settings=["max_split_size_mb:64"])


@pytest.mark.parametrize("threshold", [-0.5, 0.0, 1.0, 5.0, 1e300, True, 3, "nan"])
def test_invalid_thresholds_are_ignored(threshold):
    assert AllocatorSettings.from_snapshot({"garbage_collection_threshold": threshold}) == AllocatorSettings()


@pytest.mark.filterwarnings("error")
def test_sizes_beyond_64_bits_do_not_warn():
    divisions = {"PYTORCH_ALLOC_CONF": "roundup_power2_divisions:[>:1]"}
    events = [("segment_alloc", 0, 20 * MIB, 0, None), ("alloc", 0, _BLOCK, 0, None), ("oom", 0, 2**63 - 1, 0, None)]
    segments = [(0, "large", False, [(_BLOCK, _BLOCK), (20 * MIB - _BLOCK, 0)])]
    assert len(_load(events, segments, **divisions).ooms()) == 1
