"""Free memory inside the segments, and failed allocations."""

from __future__ import annotations

import time

import pytest

from ipygpumem.core.errors import SnapshotError
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.export.text import fragmentation_lines
from snapshot import files
from snapshot.entries import block, event, segment

MIB = 1 << 20


def test_fragmentation_at_the_end_is_exact(two_runs):
    memory = two_runs.fragmentation(need=10 * MIB)
    assert not memory.derived
    assert (memory.reserved, memory.free, memory.pieces) == (22 * MIB, 17 * MIB - 1536, 3)
    assert (memory.largest, memory.empty, memory.partly) == (11 * MIB - 512, 0, 17 * MIB - 1536)
    assert (memory.fit.block, memory.fit.segment) == (11 * MIB - 512, 10 * MIB)
    assert two_runs.fragmentation(need=12 * MIB).fit.block is None
    assert two_runs.fragmentation(need=100).fit.block is None  # the small pool's only segment is full


def test_fragmentation_before_the_end_is_derived(two_runs):
    memory = two_runs.fragmentation(2)
    assert memory.derived
    assert memory.free == 22 * MIB - 6 * MIB - 1024
    assert memory.largest == 16 * MIB - 1024


def test_free_memory_of_private_pools_is_separate():
    private_segment = {
        **segment(40 * MIB, 2 * MIB, [block(40 * MIB, 2 * MIB, 0, "inactive")]),
        "segment_pool_id": (0, 1),
    }
    default_segment = {
        **segment(80 * MIB, 4 * MIB, [block(80 * MIB, 4 * MIB, 0, "inactive")]),
        "segment_pool_id": (0, 0),
    }
    snapshot = Snapshot.load({"segments": [private_segment, default_segment]})
    memory = snapshot.fragmentation()
    assert (memory.free, memory.empty, memory.partly, memory.private) == (6 * MIB, 4 * MIB, 0, 2 * MIB)
    text = "\n".join(fragmentation_lines(memory))
    assert "   2.0 MiB  in private pools, reserved for CUDA graphs or a MemPool" in text
    assert "private" not in "\n".join(
        fragmentation_lines(Snapshot.load({"segments": [default_segment]}).fragmentation())
    )


def test_reason_of_an_oom():
    (oom,) = files.snapshot("oom_fragmented").ooms()
    assert (oom.event, oom.asked, oom.device_free) == (5998, 32 * MIB, 147527434240)
    assert oom.memory.largest == 7 * MIB
    limit = "the limit set with torch.cuda.set_per_process_memory_fraction may have prevented the allocation."
    advice = "which only PyTorch can reuse; expandable_segments:True often avoids this: see ipygpumem whatif."
    assert oom.reason == (
        "32.0 MiB was requested.",
        "PyTorch had 102.5 MiB free in 40 blocks, the largest 7.0 MiB: none was large enough.",
        f"A new segment of 32.0 MiB was needed. 137.4 GiB of device memory was free, but {limit}",
        f"102.5 MiB of free memory is in partly used segments, {advice}",
    )


def test_free_pieces_serve_only_their_own_stream():
    oom = {"action": "oom", "size": 5 * MIB, "device_free": 0, "stream": 0, "time_us": 6}
    segments = [segment(1 << 30, 20 * MIB, [block(1 << 30, 20 * MIB, 9, "inactive")], stream=7)]
    (failure,) = Snapshot.load({"device_traces": [[oom]], "segments": segments}).ooms()
    assert (failure.memory.largest, failure.memory.fit.block) == (20 * MIB, None)
    assert failure.reason[1].startswith("The largest free block, 20.0 MiB, belonged to another stream")


@pytest.mark.parametrize("on", [True, False])
def test_no_advice_to_enable_enabled_features(on):
    raw = {**files.raw("oom_fragmented"), "allocator_settings": {"expandable_segments": on}}
    (oom,) = Snapshot.load(raw).ooms()
    assert ("expandable_segments:True" in oom.reason[-1]) is not on
    assert oom.reason[-1].endswith(".")


def test_requests_of_any_size_may_fail():
    trace = [{"action": "oom", "size": 1 << 62, "device_free": 1, "time_us": 1}]
    (oom,) = Snapshot.load({"device_traces": [trace]}).ooms()
    assert (oom.asked, oom.reason[0]) == (1 << 62, "4294967296.0 GiB was requested.")
    with pytest.raises(SnapshotError, match="size is more than"):
        Snapshot.load({"device_traces": [[event("alloc", 512, 1 << 50, 1)]]})


def test_ooms_are_limited_to_the_last_hundred():
    trace = [{"action": "oom", "size": number, "device_free": 1, "time_us": number} for number in range(1, 301)]
    snapshot = Snapshot.load({"device_traces": [trace]})
    assert [oom.asked for oom in snapshot.ooms()] == list(range(201, 301))
    assert len(snapshot.ooms(last=None)) == 300


def test_many_private_pools_and_devices():
    oom = {"action": "oom", "addr": 0, "size": 1 << 30, "stream": 0, "time_us": 2}
    pools = [{"device": 0, "address": n << 12, "total_size": 512, "segment_pool_id": (n, n)} for n in range(20_000)]
    snapshot = Snapshot.load({"segments": pools, "device_traces": [[dict(oom) for _ in range(30)] for _ in range(60)]})
    start = time.process_time()
    assert sum(len(snapshot.ooms(device)) for device in range(1, 60)) == 30 * 59
    assert time.process_time() - start < 2.5


def test_request_is_not_served_from_private_pools():
    private_segment = {
        **segment(400 * MIB, 100 * MIB, [block(400 * MIB, 100 * MIB, 0, "inactive")]),
        "segment_pool_id": (0, 1),
    }
    default_segment = segment(800 * MIB, 20 * MIB, [block(800 * MIB, 20 * MIB, 0, "inactive")])
    loaded = Snapshot.load({"segments": [private_segment, default_segment], "device_traces": [[]]})
    assert loaded.fragmentation(need=20 * MIB).fit.block == 20 * MIB
    assert loaded.fragmentation(need=60 * MIB).fit.block is None


@pytest.mark.parametrize(("need", "used"), [(30, None), (40, None), (81, 100)])
def test_request_that_max_split_size_excludes_from_a_block(need, used):
    free_segment = segment(400 * MIB, 100 * MIB, [block(400 * MIB, 100 * MIB, 0, "inactive")])
    settings = {"max_split_size": 40 * MIB}
    loaded = Snapshot.load({"segments": [free_segment], "device_traces": [[]], "allocator_settings": settings})
    assert loaded.fragmentation(need=need * MIB).fit.block == (None if used is None else used * MIB)
