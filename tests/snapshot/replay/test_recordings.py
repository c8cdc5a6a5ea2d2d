"""Replays of real recordings."""

import copy
import itertools
import random
import tracemalloc
from dataclasses import fields, replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from ipygpumem.core.errors import OptionError
from ipygpumem.core.units import MIB
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.export.encoded_replay import encode_replays
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.queries import overview
from ipygpumem.snapshot.replay import block_sizes, result, verification
from ipygpumem.snapshot.replay.allocator import SimulatedAllocator
from ipygpumem.snapshot.replay.blockers.advice import _padded
from ipygpumem.snapshot.replay.recording import Recording, ReplayError
from ipygpumem.snapshot.replay.run import run
from ipygpumem.snapshot.replay.settings import AllocatorSettings
from ipygpumem.snapshot.replay.settings_comparison import compare_settings
from ipygpumem.snapshot.replay.smallest_capacity import smallest_capacity
from ipygpumem.snapshot.replay.verification import cached_verification
from ipygpumem.snapshot.replay.work_limit import WorkLimit
from snapshot import files
from snapshot.replay.test_allocator import make


@pytest.fixture(params=files.NAMES)
def snapshot(request):
    return files.snapshot(request.param)


def test_recording_is_reproduced(snapshot):
    replay = snapshot.replay()
    assert (replay.grade, replay.reason) == ("exact", "")
    assert (
        cached_verification(snapshot, replay.device).run.addresses.tolist()
        == snapshot.timeline().allocations.address.tolist()
    )
    assert replay.reserved_peak == snapshot.timeline().reserved_peak
    assert replay.reserved.bytes.tolist() == snapshot.reserved().bytes.tolist()


@pytest.mark.parametrize(
    "name", ["collection", "cuda_graphs", "cuda_graphs_expandable", "max_split", "two_streams_expandable"]
)
def test_recording_with_settings_streams_and_graphs_is_reproduced(name):
    snapshot = files.snapshot(name)
    replay = snapshot.replay()
    assert (replay.grade, replay.reason) == ("exact", "")
    assert replay.reserved.bytes.tolist() == snapshot.reserved().bytes.tolist()
    assert (
        cached_verification(snapshot, replay.device).run.addresses.tolist()
        == snapshot.timeline().allocations.address.tolist()
    )


@pytest.mark.parametrize("name", files.NAMES)
def test_end_is_reproduced_from_any_start(name):
    recording = files.raw(name)
    device = max(range(len(recording["device_traces"])), key=lambda index: len(recording["device_traces"][index]))
    trace = recording["device_traces"][device]
    for start in random.Random(1).sample(range(len(trace) * 3 // 4), 3):
        traces = list(recording["device_traces"])
        traces[device] = trace[start:]
        verification = cached_verification(Snapshot.load({**recording, "device_traces": traces}), device)
        assert verification.difference == ""


@pytest.mark.parametrize(
    ("name", "settings", "peak"),
    [  # computed by an independent implementation
        ("gpt_small", "expandable_segments:True", 1928),
        ("gpt_small", "max_split_size_mb:64", 2012),
        ("gpt_small", "roundup_power2_divisions:4", 2012),
        ("gpt_small", "large_segment_size_mb:64", 2008),
        ("resnet50", "roundup_power2_divisions:4", 1376),
        ("resnet50", "roundup_power2_divisions:8", 1208),
        ("oom_fragmented", "max_split_size_mb:32", 1788),
        ("oom_fragmented", "expandable_segments:True,max_split_size_mb:128", 1840),
    ],
)
def test_peak_under_other_settings(name, settings, peak):
    assert files.snapshot(name).replay(settings).reserved_peak == peak * MIB


def test_smallest_capacity():
    snapshot = files.snapshot("gpt_small")
    assert snapshot.replay().smallest_capacity == 1874 * MIB
    assert snapshot.replay(capacity=1874 * MIB).failure is None
    failing = snapshot.replay(capacity="1872 MiB")
    assert failing.failure is not None
    assert failing.failure.reserved + failing.failure.segment > 1872 * MIB
    assert failing.reserved_peak <= 1872 * MIB


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("collection", "garbage_collection_threshold:0.8"),
        ("collection", "roundup_power2_divisions:4"),
        ("gpt_small", "roundup_power2_divisions:4"),
        ("variable_lengths_oom", "garbage_collection_threshold:0.6"),
        ("collection", ""),
        ("resnet50", ""),
    ],
)
def test_smallest_capacity_is_confirmed(name, settings):
    replay = files.snapshot(name).replay(settings, "300 GiB")
    smallest = replay.smallest_capacity
    assert replay.fits(smallest) is not False
    for below in range(2, 18, 2):
        failing = files.snapshot(name).replay(settings, smallest - below * MIB)
        assert failing.failure is not None or smallest - below * MIB < replay.allocated_peak
    if replay.failing_capacity is not None:
        assert replay.failing_capacity > smallest
        assert files.snapshot(name).replay(settings, replay.failing_capacity).failure is not None
    if (name, settings) == ("collection", ""):
        assert replay.failing_capacity == 1174 * MIB


def test_search_for_the_smallest_capacity():
    tested = []

    def run_again(limit, raises_limit=False):
        tested.append(limit)
        fits = limit in {20 * MIB, 26 * MIB} or 30 * MIB <= limit != 44 * MIB
        allocator = SimpleNamespace(same_limits=range(limit, limit + 1), limit=estimate)
        return SimpleNamespace(failure=None if fits else "failure", allocator=allocator)

    def search(probes):
        return smallest_capacity(run_again, [], 10 * MIB, 60 * MIB, probes=probes, work=WorkLimit())

    estimate = 40 * MIB
    assert search(4) == (20 * MIB, 44 * MIB)
    tested.clear()
    estimate = 28 * MIB
    assert search(None) == (60 * MIB, None)
    assert tested == [10 * MIB, 28 * MIB]


def test_limits_with_the_same_result_are_not_replayed_again():
    tested = []

    def run_again(limit, raises_limit=False):
        if raises_limit:
            return SimpleNamespace(allocator=SimpleNamespace(limit=40 * MIB))
        start = limit // (7 * MIB) * 7 * MIB
        tested.append(start)
        failure = None if start in {21 * MIB, 35 * MIB} or start >= 49 * MIB else "failure"
        return SimpleNamespace(failure=failure, allocator=SimpleNamespace(same_limits=range(start, start + 7 * MIB)))

    found = smallest_capacity(run_again, [], 10 * MIB, 90 * MIB, probes=8, work=WorkLimit())
    assert found == (21 * MIB, 44 * MIB)
    assert len(tested) == len(set(tested))


def test_capacity_below_the_blocks_before_the_recording():
    snapshot = files.snapshot("gpt_small")
    replay = snapshot.replay("", capacity="10 MiB")
    in_use = int(snapshot.replay("").state(-1).blocks["rounded"].sum())
    assert (replay.failure.event, replay.failure.size, replay.failure.allocated) == (-1, in_use, in_use)
    assert replay.failure.segment == replay.failure.reserved == replay.reserved.bytes[0] == replay.reserved_peak
    assert (replay.fits(10 * MIB), replay._run.end) == (False, -1)
    cached = snapshot.replay("", capacity=replay.reserved_peak)  # the cached segments are freed
    assert cached.failure.event > 0
    assert cached.reserved.bytes[0] == replay.reserved_peak < snapshot.replay("").reserved.bytes[0]


@pytest.mark.parametrize(
    ("name", "event", "requested", "never_used"),  # computed by an independent implementation
    [("oom_fragmented", 5998, 1632.46, 67.54), ("variable_lengths_oom", 8809, 2945.05, 108.94)],
)
def test_memory_of_a_request_that_failed_only_in_the_recording(name, event, requested, never_used):
    replay = files.snapshot(name).replay("expandable_segments:True")
    waste, state = replay.waste, replay.state(event)
    assert (replay.failure, replay.served, waste.event) == (None, (event,), event)
    assert waste.requested / MIB == pytest.approx(requested, abs=0.01)
    assert waste.never_used / MIB == pytest.approx(never_used, abs=0.01)
    assert replay.allocated_peak == replay.allocated.bytes[event + 1] == int(state.blocks["rounded"].sum())
    (served,) = state.blocks[state.blocks["row"] < 0]
    assert served["requested"] == served["rounded"] == replay._run.recording.trace.size[event]
    assert (replay.state(event + 1).blocks["row"] >= 0).all()


@pytest.mark.parametrize(
    ("name", "event", "retries"),
    [("oom_fragmented", 5998, 2), ("variable_lengths_oom", 8809, 3), ("max_split", None, None), ("gpt_small", None, 0)],
)
def test_recorded_failures_and_retries(name, event, retries):
    replay = files.snapshot(name).replay()
    assert (replay.failure and replay.failure.event, replay.served, replay.retries) == (event, (), retries)
    if event is not None:
        assert replay.failure.reserved == snapshot_reserved(files.snapshot(name), event)
        assert replay.failure.free == replay.failure.reserved - replay.failure.allocated > 0


def snapshot_reserved(snapshot, event):
    return int(snapshot.reserved().bytes[event])


def _failed_recording(sizes, request, free, **settings):
    recording = _record([("line", size) for size in (*sizes, request)], {})
    recording["device_traces"][0][-1]["device_free"] = free
    return Snapshot.load(recording | {"allocator_settings": settings})


def test_failed_request_is_known_only_rounded():
    variable = {"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:2"}
    snapshot = _failed_recording([256 * MIB] * 2, 768 * MIB, 560 * MIB, **variable)
    compared = compare_settings(snapshot, settings=["", "roundup_power2_divisions:4"])
    fits = {item.settings: item.fits for item in compared.alternatives}
    assert fits == {"": None, "roundup_power2_divisions:4": False}, "640 MiB at least"
    replay = compared.alternatives[0].replay
    assert (replay.grade, compared.missing, compared.recommended) == ("approximate", 0, None)
    assert replay.reason == "the size of the failed request is known only as rounded by the recorded settings"
    assert replay.fits(512 * MIB + 513 * MIB) is False
    assert replay.fits(512 * MIB + 514 * MIB) is None
    assert replay.fits(512 * MIB + 768 * MIB) is True


def test_setting_that_caused_the_failure():
    variable = {"PYTORCH_CUDA_ALLOC_CONF": "large_segment_size_mb:64"}
    snapshot = _failed_recording([100 * MIB] * 4, 5 * MIB, 40 * MIB, **variable)
    assert compare_settings(snapshot, settings=["", "large_segment_size_mb:32"]).recommended.settings == ""
    (oom,) = snapshot.ooms()
    assert "A new segment of 64.0 MiB was needed, but only 40.0 MiB of device memory was free." in oom.reason


def test_older_blocks_that_are_never_split():
    trace = [{"action": action, "addr": 1 << 30, "size": 84 * MIB} for action in ("free_requested", "free_completed")]
    trace.append({"action": "alloc", "addr": 1 << 30, "size": 90 * MIB})
    block = {"address": 1 << 30, "size": 94 * MIB, "requested_size": 90 * MIB, "state": "active_allocated"}
    segment = {"device": 0, "address": 1 << 30, "total_size": 94 * MIB, "segment_type": "large", "blocks": [block]}
    recording = {"device_traces": [[event | {"stream": 0, "time_us": 1} for event in trace]]}
    recording |= {"segments": [segment | {"stream": 0}], "allocator_settings": {"max_split_size": 64 * MIB}}
    replay = Snapshot.load(recording).replay()
    assert (replay.grade, replay.state(-1).blocks["rounded"].tolist()) == ("exact", [94 * MIB])


def test_requests_that_failed_are_rounded():
    snapshot = files.snapshot("variable_lengths_oom")
    replay = snapshot.replay("roundup_power2_divisions:4")
    (event,) = replay.served
    block = replay.state(event).blocks[-1]
    assert (int(snapshot.timeline().trace.size[event]), block["row"], block["rounded"]) == (267124736, -1, 256 * MIB)


def test_failure_that_the_program_handled():
    recording = files.raw("oom_fragmented")
    trace = max(recording["device_traces"], key=len)
    number = next(number for number, event in enumerate(trace) if event["action"] == "oom")
    trace.insert(1000, {**trace[number], "size": 90 << 30, "time_us": trace[1000]["time_us"]})
    compared = compare_settings(Snapshot.load(recording), settings=["expandable_segments:True"])
    best = compared.alternatives[0]
    assert best.fits
    assert best.replay.smallest_capacity < 1664 * MIB
    assert compared.recorded.replay.failure.event == number + 1
    assert compared.recommended is best


def test_state_after_a_failure():
    replay = files.snapshot("gpt_small").replay("", capacity="1800 MiB")
    state = replay.state(replay.failure.event)
    assert state.blocks["rounded"].min() > 0
    assert int(state.blocks["rounded"].sum()) == replay.failure.allocated == replay.allocated.bytes[-1]
    later = replay.state(replay.failure.event + 500)
    for name in ("address", "rounded", "row", "pending"):
        assert (later.blocks[name] == state.blocks[name]).all()
    assert set(replay.reserved.bytes[replay.failure.event + 1 :].tolist()) == {state.reserved} == {later.reserved}


@pytest.mark.parametrize("name", ["two_streams_expandable", "cuda_graphs", "gpt_small"])
def test_state_contains_the_pools_of_segments(name):
    snapshot = files.snapshot(name)
    device = snapshot.timeline().device
    last = len(snapshot.timeline().trace) - 1
    simulated, recorded = snapshot.replay().state(last).segments, snapshot.history(device).at(last).segments
    for column in ("address", "size", "stream", "pool", "small", "expandable"):
        assert (simulated[column] == recorded[column]).all(), column


def test_state_at_events_of_segments():
    for name in ("resnet_steps", "two_streams_expandable", "cuda_graphs_expandable"):
        snapshot = files.snapshot(name)
        replay, recorded = snapshot.replay(), snapshot.reserved().bytes
        following = replay._run.recording.following
        events = np.flatnonzero(following > np.arange(len(following))).tolist()
        groups = [event for event, after in itertools.pairwise(events) if after == event + 1]
        for event in [*events[:3], *groups[-2:], events[-1]]:
            state, after = replay.state(event), replay.state(following[event])
            assert state.reserved == replay.reserved.bytes[event + 1] == recorded[event + 1]
            pools = {segment["address"]: (segment["pool"], segment["stream"]) for segment in after.segments}
            common = [segment for segment in state.segments if segment["address"] in pools]
            assert common
            assert all((item["pool"], item["stream"]) == pools[item["address"]] for item in common)


def test_capacity_as_text():
    replay = files.snapshot("gpt_small").replay()
    assert (replay.fits("24 GiB"), replay.fits("1 GiB")) == (True, False)


def test_recording_fits_into_its_own_peak():
    generator, program, live = random.Random(44), [], []
    for number in range(120):
        if live and generator.random() < 0.45:
            program.append(("free", live.pop(generator.randrange(len(live)))))
        else:
            program.append(("step", generator.choice([2, 6, 12, 14, 30]) * MIB))
            live.append(number)
    recording = _record([*program, ("request", MIB)], {}, addresses=generator)
    recording["device_traces"][0].pop()
    snapshot = Snapshot.load(recording)
    peak = snapshot.timeline().reserved_peak
    compared = compare_settings(snapshot, settings=["expandable_segments:True"], capacity=peak)
    assert snapshot.replay("", peak).failure is not None, "other addresses require more memory"
    assert compared.recorded.fits is True
    assert compared.recorded.replay.smallest_capacity <= peak


def test_limits_that_fit_are_not_below_the_smallest_capacity():
    snapshot = files.snapshot("cnn_steps")
    replay = snapshot.replay()
    limit = next(limit for limit in range(1220 * MIB, 4000 * MIB, 20 * MIB) if replay.fits(limit))
    assert replay.smallest_capacity <= limit
    assert snapshot.replay().smallest_capacity <= limit


def test_recording_without_failures_in_which_memory_ran_short():
    compared = compare_settings(files.snapshot("max_split"), settings=["", "expandable_segments:True"])
    assert compared.limit == (1146 * MIB, 1154 * MIB - 1)
    assert compared.recorded.fits
    assert {item.settings: item.fits for item in compared.alternatives} == {"": False, "expandable_segments:True": True}
    assert compared.recommended is None


def test_out_of_memory_error_under_other_settings():
    snapshot = files.snapshot("oom_fragmented")
    event = int(snapshot.timeline().trace.events(Action.OOM)[0])
    limit = snapshot.timeline().reserved_peak
    recorded, expandable = snapshot.replay("", limit), snapshot.replay("expandable_segments:True", limit)
    assert (recorded.failure.event, recorded.served) == (event, ())
    assert recorded.to_dict()["failure"]["free"] == recorded.failure.reserved - recorded.failure.allocated == 105426944
    assert (expandable.failure, expandable.served, expandable.grade) == (None, (event,), "exact")
    assert snapshot.replay("large_segment_size_mb:32").reserved_range == (1704 * MIB, 1712 * MIB)


def test_waste_adds_up(snapshot):
    for settings in (None, "expandable_segments:True", "roundup_power2_divisions:2"):
        waste = snapshot.replay(settings).waste
        parts = (waste.requested, waste.rounding, waste.not_split, waste.used_later, waste.never_used)
        assert min(parts) >= 0
        assert sum(parts) == waste.reserved


def test_state_contains_the_blocks_inside_segments(snapshot):
    for settings in (None, "expandable_segments:True"):
        replay = snapshot.replay(settings)
        for event in (-1, 1000, len(snapshot.timeline().trace) - 1):
            state = replay.state(event)
            assert state.reserved == replay.reserved.bytes[event + 1]
            assert int(state.blocks["rounded"].sum()) == replay.allocated.bytes[event + 1]
            segments, blocks = state.segments, state.blocks
            owner = np.searchsorted(segments["address"], blocks["address"], side="right") - 1
            end = (segments["address"] + segments["size"])[owner]
            assert (blocks["address"] + blocks["rounded"] <= end).all()
    with pytest.raises(OptionError, match="has no event"):
        replay.state(10**9)


def test_memory_of_replays():
    recording = files.raw("gpt_cpp")
    (device, trace), *_ = sorted(enumerate(recording["device_traces"]), key=lambda item: -len(item[1]))
    duration = trace[-1]["time_us"] - trace[0]["time_us"] + 1  # it begins and ends between steps
    repeated = [{**event, "time_us": event["time_us"] + number * duration} for number in range(4) for event in trace]
    recording["device_traces"][device] = repeated
    snapshot = Snapshot.load(recording)
    files.snapshot("gpt_cpp").replay("expandable_segments:True")  # imports all modules
    tables = (snapshot.timeline(device).trace, snapshot.timeline(device).allocations)
    columns = [getattr(table, field.name) for table in tables for field in fields(table)]
    tracemalloc.start()
    try:
        recorded = snapshot.replay(device=device)
        snapshot.replay("expandable_segments:True", device=device)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (recorded.grade, len(repeated)) == ("exact", 19920)
    assert peak < sum(column.nbytes for column in columns if isinstance(column, np.ndarray))


def test_difference_is_reported():
    changed = files.raw("oom_fragmented")
    changed["allocator_settings"]["max_split_size"] = 20 * MIB
    compared = compare_settings(Snapshot.load(changed), settings=["expandable_segments:True"])
    replay, best = compared.recorded.replay, compared.alternatives[0]
    assert replay.grade == "approximate"
    assert "the recorded settings do not reproduce the recording (event " in replay.reason
    assert best.fits
    assert best.replay.smallest_capacity + compared.verification.largest_error > compared.limit[0]
    assert compared.recommended is None


def test_recorded_peak_of_an_approximate_replay():
    changed = files.raw("collection")
    changed["allocator_settings"]["garbage_collection_threshold"] = 0.0
    compared = compare_settings(Snapshot.load(changed), settings=["roundup_power2_divisions:4"])
    assert compared.recorded.peaks == (1274 * MIB,) * 2
    assert compared.recorded.replay.reserved_peak == 1312 * MIB
    assert compared.recorded.fits is False
    changed = files.raw("variable_lengths_oom")
    changed["allocator_settings"]["max_split_size"] = 64 * MIB
    compared = compare_settings(Snapshot.load(changed), settings=["max_split_size_mb:128"])
    assert compared.limit[0] < compared.recorded.replay.smallest_capacity < compared.limit[1] == 3350 * MIB - 1


def _without_alloc(file):
    trace = max(file["device_traces"], key=len)
    del trace[next(place for place, event in enumerate(trace) if place > 3000 and event["action"] == "alloc")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.pop("segments"), "does not contain the segments"),
        (lambda file: file.update(device_traces=[[]]), "contains no allocations"),
        (
            lambda file: file["allocator_settings"].update(backend="cudaMallocAsync"),
            "not made with PyTorch's native allocator",
        ),
        (_without_alloc, "missing from the recording"),
    ],
)
def test_recording_that_cannot_be_replayed(change, message):
    file = files.raw("gpt_small")
    change(file)
    with pytest.raises(ReplayError, match=message):
        Snapshot.load(file).replay()


def test_recorded_garbage_collection_needs_no_capacity():
    file = files.raw("gpt_cpp")
    file["allocator_settings"]["garbage_collection_threshold"] = 0.8
    assert Snapshot.load(file).replay().grade == "exact"


def test_settings_that_need_a_capacity():
    snapshot = files.snapshot("gpt_cpp")
    with pytest.raises(OptionError, match="specify the capacity"):
        snapshot.replay("garbage_collection_threshold:0.8")
    with pytest.raises(OptionError, match="specify the capacity"):
        snapshot.replay("per_process_memory_fraction:0.5")
    assert snapshot.replay("garbage_collection_threshold:0.8", "3 GiB").failure is None
    with pytest.raises(OptionError, match=r"24 bytes is less than 2.0 MiB.*write a unit"):
        snapshot.replay(capacity="24")


def test_settings_are_compared():
    compared = compare_settings(files.snapshot("oom_fragmented"))
    assert compared.limit == (1716 * MIB, 1742 * MIB - 1), "with 1,742 MiB, no request would have failed"
    assert compared.recommended.settings == "expandable_segments:True"
    assert [item.fits for item in compared.alternatives] == [True, True, None, None]
    without_effect = ("max_split_size_mb:64", "max_split_size_mb:128", "max_split_size_mb:512")
    assert compared.equivalent == dict.fromkeys(without_effect, "default settings")
    assert (compared.recorded.fits, compared.missing) == (False, 0)
    only_one = compare_settings(files.snapshot("oom_fragmented"), settings=["max_split_size_mb:64"])
    assert (only_one.recommended, only_one.missing) == (None, 24 * MIB)
    collected = "garbage_collection_threshold:0.5"  # within the limit of the recording, or a given capacity
    fits = [compare_settings(files.snapshot("oom_fragmented"), None, [collected], size) for size in (None, "1760 MiB")]
    assert [item.alternatives[0].fits for item in fits] == [False, True]


def test_files_whose_replay_would_take_very_long(monkeypatch):
    monkeypatch.setattr(overview, "_MAX_SECONDS", 0)
    monkeypatch.setattr(block_sizes, "_MAX_SECONDS", 0)
    snapshot = files.snapshot("oom_fragmented")
    snapshot.clear_caches()
    assert "allocated memory by at least 108.5 MiB (6%)" in snapshot.summary()
    assert not snapshot.fragmentation(1000).derived
    assert not snapshot.verifications  # the sizes of the blocks follow from their addresses
    for name in ("max_split", "cuda_graphs"):
        assert "fragmentation:" not in files.snapshot(name).summary()
        assert files.snapshot(name).fragmentation(500).derived


@pytest.mark.parametrize("name", [*files.NAMES, "collection", "cnn_steps", "variable_lengths_oom"])
def test_sizes_of_blocks_follow_from_addresses(name):
    recording = files.raw(name)
    events = len(recording["device_traces"][0])
    for first in (0, events // 3):
        snapshot = Snapshot.load({**recording, "device_traces": [recording["device_traces"][0][first:]]})
        replayed = cached_verification(snapshot, 0).run.sizes.tolist()
        assert replayed == block_sizes.block_sizes(snapshot, 0, 10).tolist()
        old_blocks_freed = (
            (snapshot.timeline().allocations.start < 0) & (snapshot.timeline().allocations.block < 0)
        ).any()
        snapshot.clear_caches()
        block_sizes.block_sizes(snapshot, 0, 10)
        assert not snapshot.verifications or (first and old_blocks_freed)
    sizes = np.asarray(replayed)
    assert (sizes > AllocatorSettings().round(snapshot.timeline().allocations.size)).any()  # remainders of up to 1 MiB


def test_sizes_of_blocks_that_contradict_addresses():
    snapshot = Snapshot.load(files.raw("oom_fragmented"))
    allocations = snapshot.timeline().allocations
    new = (allocations.start >= 0) & (allocations.block >= 0)
    for rows in (np.flatnonzero(new & (allocations.size > MIB)), np.flatnonzero(new & (allocations.size <= MIB))):
        snapshot.clear_caches()
        snapshot.blocks.size[allocations.block[rows[0]]] += 512
        assert block_sizes.block_sizes(snapshot, 0, 10) is None
        assert snapshot.verifications[0].difference.endswith("the sizes of the blocks at the end differ")
        snapshot.blocks.size[allocations.block[rows[0]]] -= 512


@pytest.mark.parametrize(("stream", "private"), [(0, False), (5, False), (0, True), (5, True)])
def test_pool_of_a_request_that_failed(stream, private):
    file = files.raw("oom_fragmented")
    (event,) = (event for event in file["device_traces"][0] if event["action"] == "oom")
    event |= {"stream": stream, "size": 6 * MIB, "pool_id": (0, 7) if private else (0, 0)}
    recording = Recording(Snapshot.load(file), 0)
    number, rounded = recording.failed_requests(recording.settings)[recording.last_failed]
    pool = recording.pools[number]
    assert (rounded, pool.stream, pool.private, pool.small) == (6 * MIB, stream, private, False)
    fits = bool(Snapshot.load(file).replay().served)  # 7 MiB are free in the default pool
    assert fits is (stream == 0 and not private)


def test_advice_requires_the_pool_of_the_request():
    file = files.raw("oom_fragmented")
    found = compare_settings(Snapshot.load(file), settings=[""]).blockers
    assert found.smallest is not None and found.changes
    segment = {**next(item for item in file["segments"] if item["device"] == 0), "segment_pool_id": (0, 7)}
    block = {"address": 1 << 30, "size": 2 * MIB, "requested_size": 2 * MIB, "state": "active_allocated", "frames": []}
    segment |= {"address": 1 << 30, "total_size": 2 * MIB, "blocks": [block]}
    file["segments"] = [{**item, "segment_pool_id": (0, 0)} for item in file["segments"]] + [segment]
    compared = compare_settings(Snapshot.load(file), settings=[""])
    assert any(pool.private for pool in compared.verification.recording.pools)
    assert (
        Snapshot.load(file)
        .replay("expandable_segments:True")
        .reason.endswith("the file does not contain the pool of the failed request, which may be a private pool")
    )
    next(event for event in file["device_traces"][0] if event["action"] == "oom")["size"] = 512
    reason = Snapshot.load(file).replay().reason
    assert "the failed request would succeed in the default pool, but its pool is unknown" in reason
    assert (compared.blockers.smallest, compared.blockers.changes) == (None, ())


@pytest.mark.parametrize(
    ("line", "limit", "retry", "same_line"),
    [
        (1, None, False, False),
        (2, None, True, False),
        (2, 100 * MIB, True, False),
        (2, 170 * MIB, False, False),
        (1, None, True, True),
    ],
)
def test_empty_cache_before_a_request(line, limit, retry, same_line):
    def event(action, line, size):
        frames = [{"filename": "a.py", "line": line, "name": "f"}]
        return {"action": action, "addr": 1 << 40, "size": size * MIB, "stream": 0, "frames": frames, "time_us": 0}

    actions = ("segment_alloc", "alloc", "free_requested", "free_completed")
    events = [event(action, 1, 80) for action in actions]
    events += [event("segment_free", line, 80), event("segment_alloc", 2, 70), event("alloc", 2, 70)]
    if same_line:
        events = [{**item, "frames": events[0]["frames"]} for item in events]
    block = {"address": 1 << 40, "size": 70 * MIB, "requested_size": 70 * MIB, "state": "active_allocated"}
    segment = {"device": 0, "address": 1 << 40, "total_size": 70 * MIB, "blocks": [block]}
    limits = {} if limit is None else {"ipygpumem": {"devices": [{"limit": limit}]}}
    snapshot = Snapshot.load({"segments": [segment], "device_traces": [events], **limits})
    assert [item.retry for item in Recording(snapshot, 0).special] == [retry]
    replay = snapshot.replay("expandable_segments:True")  # further calls may have freed no memory
    unknown = "calls to torch.cuda.empty_cache() that freed no memory are not recorded"
    if same_line:
        unknown = (
            "without the stacks of frees, torch.cuda.empty_cache() cannot be distinguished from the retry of a request"
        )
    assert (replay.grade, replay.reason) == (("exact", "") if retry and not same_line else ("approximate", unknown))
    assert (snapshot.replay().retries is None) == same_line


def test_unused_segments_of_private_pools():
    file = files.raw("oom_fragmented")
    segment = next(item for item in file["segments"] if item["device"] == 0)
    segment = {**segment, "address": 1 << 30, "total_size": 2 * MIB, "blocks": [{"size": 2 * MIB, "state": "inactive"}]}
    file["segments"] = [{**item, "segment_pool_id": (0, 0)} for item in file["segments"]]
    file["segments"].append({**segment, "segment_pool_id": (0, 7)})
    blockers = compare_settings(Snapshot.load(file), settings=[""]).blockers
    assert (blockers.private, blockers.empty) == (2 * MIB, 0)


def test_empty_cache_without_stacks():
    base = {"stream": 0, "frames": [], "time_us": 0}

    def events(address, size):
        at = base | {"addr": address << 40, "size": size * MIB}
        return [at | {"action": "segment_alloc"}, at | {"action": "alloc"}]

    first, second, third = events(1, 80), events(2, 70), events(3, 100)
    freed = [first[0] | {"action": action} for action in ("free_requested", "free_completed", "segment_free")]
    for trace, retry in ((first + freed + second + third, False), (first + freed + second, True)):
        segments = []
        for start, end in ((second, 70), (third, 100))[: 1 if retry else 2]:
            block = {"address": start[0]["addr"], "size": end * MIB, "requested_size": end * MIB}
            block |= {"state": "active_allocated"}
            segments.append({"device": 0, "address": block["address"], "total_size": end * MIB, "blocks": [block]})
        snapshot = Snapshot.load({"segments": segments, "device_traces": [trace]})
        assert [item.retry for item in Recording(snapshot, 0).special] == [retry]
        reason = (
            "without the stacks of frees, torch.cuda.empty_cache() cannot be distinguished from the retry of a request"
        )
        replay = snapshot.replay("expandable_segments:True")
        assert (replay.grade, reason in replay.reason) == ("approximate", retry)
        assert snapshot.replay().grade == "exact"


def test_many_releases_streams_and_failed_requests():
    base = {"addr": 1 << 40, "size": 2 * MIB, "stream": 0, "frames": []}
    release = [{**base, "action": "segment_free"}, {**base, "action": "segment_alloc"}]
    events = [{**base, "action": "segment_alloc"}]
    for stream in range(1000):
        used = {**base, "size": 512, "stream": stream}
        events += [{**used, "action": "alloc"}, {**used, "action": "free_completed"}]
    events += [*release * 20, *[{**base, "action": "oom", "size": MIB}] * 2000]
    events = [{**event, "time_us": number} for number, event in enumerate(events)]
    segment = {
        "device": 0,
        "address": 1 << 40,
        "total_size": 2 * MIB,
        "blocks": [{"size": 2 * MIB, "state": "inactive"}],
    }
    snapshot = Snapshot.load({"segments": [segment], "device_traces": [events]})
    assert verification.expected_seconds(snapshot.timeline(0)) > 1.5
    recording = Recording(snapshot, 0)
    assert len([item for item in recording.special if not isinstance(item, int)]) == 20


def test_expandable_segments_from_before_the_recording():
    recording = files.raw("two_streams_expandable")
    recording["device_traces"][0] = recording["device_traces"][0][3000:]
    replayed = Snapshot.load(recording).replay("")._run
    new = np.flatnonzero(replayed.recording.allocations.start >= 0)
    assert len(replayed.allocator.ranges)
    assert not any(replayed.allocator._in_range(replayed.addresses[row]) for row in new)


def test_impossible_addresses():
    address = (1 << 63) - 1
    event = {"action": "alloc", "addr": address, "size": 1 << 48, "stream": 0, "time_us": 0, "frames": []}
    blocks = [{"size": 0, "state": "inactive"}, {"size": 1, "state": "active_pending_free"}]
    state = {"segments": [{"address": address, "total_size": 1, "blocks": blocks}], "device_traces": [[event]]}
    snapshot = Snapshot.load(state)
    for replay in (snapshot.replay, partial(compare_settings, snapshot), partial(encode_replays, snapshot, "")):
        with pytest.raises(ReplayError, match="the recording contains addresses or sizes that no process can have"):
            replay()
    assert snapshot.fragmentation(need="1MiB")


def test_older_block_whose_end_is_unknown():
    def at(action, address, size):
        return {"action": action, "addr": (1 << 40) + address, "size": size, "stream": 0, "time_us": 0, "frames": []}

    def freed(address, size):
        return [at("free_requested", address, size), at("free_completed", address, size)]

    large, near = at("alloc", 22 * MIB, 15 * MIB), at("alloc", 8 * MIB + 512, 4 * MIB)
    end = [(2 * MIB, 2 * MIB), (15 * MIB, 15 * MIB), (3 * MIB, 0)]
    certain = [(8 * MIB + 512, 0), (4 * MIB, 4 * MIB), (8 * MIB - 512, 0), *end]
    for new, blocks, derived in (([large], [(20 * MIB, 0), *end], True), ([large, near], certain, False)):
        rows = [
            {"size": size, "requested_size": used, "state": "active_allocated" if used else "inactive"}
            for size, used in blocks
        ]
        segment = {"device": 0, "address": 1 << 40, "total_size": 40 * MIB, "segment_type": "large", "blocks": rows}
        trace = [*new, *freed(0, 8 * MIB)]
        snapshot = Snapshot.load({"segments": [segment], "device_traces": [trace]})
        assert snapshot.replay().grade == "exact"
        assert [snapshot.fragmentation(event).derived for event in (0, len(trace) - 1)] == [derived, False]
        assert derived or snapshot.fragmentation(0).free == (23 - 8) * MIB - 512


def test_contradictory_events(monkeypatch):
    snapshot = Snapshot.load(files.raw("gpt_cpp"))
    assert snapshot.replay().grade == "exact"
    monkeypatch.setattr(SimulatedAllocator, "free", lambda *_: {}[0])
    with pytest.raises(ReplayError, match="the events contradict each other"):
        snapshot.replay("expandable_segments:True")


@pytest.mark.parametrize("settings", ["max_split_size_mb:32", "expandable_segments:True"])
def test_failed_request_of_more_memory_than_any_machine_has(settings):
    recording = files.raw("oom_fragmented")
    (event,) = (event for event in recording["device_traces"][0] if event["action"] == "oom")
    event["size"] = 1 << 50
    compared = compare_settings(Snapshot.load(recording), settings=[settings])
    assert compared.alternatives[0].replay.smallest_capacity > 1 << 50
    event["size"] = 1 << 52
    with pytest.raises(ReplayError, match="the requests exceed the address space of a process"):
        compare_settings(Snapshot.load(recording), settings=[settings])


def test_limit_of_the_program():
    recording = files.raw("oom_fragmented")
    recording["ipygpumem"] = {"devices": [{"index": 0, "limit": 1738 * MIB}]}
    compared = compare_settings(Snapshot.load(recording), settings=["max_split_size_mb:32"])
    assert compared.limit == (1738 * MIB,) * 2
    assert (compared.recorded.fits, compared.missing) == (False, 2 * MIB)


@pytest.mark.parametrize(
    ("free", "limit", "available"),
    [
        (10, None, 1720),  # the device was full: 1,710 MiB were reserved
        (10, 1800, 1720),
        (10, 1716, 1716),
        (31, None, 1741),
        (32, 1712, 1712),  # was lowered while the program ran
        (32, 1700, None),  # was set after the failure
        (32, None, None),
        (None, None, None),
    ],
)
def test_available_memory(free, limit, available):
    """Sizes are in MiB. If 32 MiB was free on the device, the request of 32 MiB failed because of the limit."""
    recording = files.raw("oom_fragmented")
    (event,) = (event for event in recording["device_traces"][0] if event["action"] == "oom")
    event.pop("device_free")
    event |= {} if free is None else {"device_free": free * MIB}
    recording["ipygpumem"] = {"devices": [{"index": 0, **({} if limit is None else {"limit": limit * MIB})}]}
    bounds = (1716 * MIB, 1742 * MIB - 1) if available is None else (available * MIB,) * 2
    assert Recording(Snapshot.load(recording), 0).limit == bounds


def test_long_recordings_are_replayed_only_a_few_times_per_setting(monkeypatch):
    runs = []
    monkeypatch.setattr(result, "_LONG", 1000)
    monkeypatch.setattr(result, "run", lambda *args, **options: runs.append(options) or run(*args, **options))
    settings = ["expandable_segments:True", "max_split_size_mb:512", "roundup_power2_divisions:4"]
    found = compare_settings(files.snapshot("gpt_small"), settings=settings)
    assert (len(found.alternatives), found.equivalent) == (2, {"max_split_size_mb:512": "default settings"})
    assert all(item.fits is None and item.replay.smallest_capacity for item in (found.recorded, *found.alternatives))
    assert len(runs) <= 8


def test_blockers_of_an_out_of_memory_error():
    found = compare_settings(files.snapshot("oom_fragmented"), settings=["expandable_segments:True"]).blockers
    assert (found.partly_used + found.other_size, found.empty) == (int(102.54296875 * MIB), 0)
    assert found.largest == 7 * MIB < found.size == 32 * MIB
    assert [line.exclusive_segments // MIB for line in found.lines[:3]] == [180, 180, 100]
    smallest = found.smallest
    assert (smallest.bytes, len(smallest.rows), smallest.segments) == (int(14.484375 * MIB), 16, 4)
    assert not smallest.contiguous
    assert [(change.label, change.allocated_first, change.count) for change in found.changes] == [
        ("project/experiment.py:33 <module>", False, 25)
    ]


def test_blocks_to_free_are_contiguous_if_they_are_cheaper():
    trace, blocks, address = [], [], 1 << 40
    sizes = [8 * MIB, 3 * MIB // 2, 8 * MIB]

    def event(action, size, offset):
        entry = {"action": action, "addr": address + offset, "size": size, "stream": 0, "time_us": len(trace)}
        trace.append({**entry, "frames": []})

    event("segment_alloc", 20 * MIB, 0)
    position = 0
    for size in sizes:
        event("alloc", size, position)
        position += size
    for offset, size in ((0, 8 * MIB), (position - 8 * MIB, 8 * MIB)):
        event("free_requested", size, offset)
        event("free_completed", size, offset)
    trace.append({"action": "oom", "size": 18 * MIB, "stream": 0, "time_us": 9, "device_free": 0, "frames": []})
    parts = [(8 * MIB, "inactive"), (3 * MIB // 2, "active_allocated"), (21 * MIB // 2, "inactive")]
    position = address
    for size, state in parts:
        blocks.append({"address": position, "size": size, "requested_size": size, "state": state, "frames": []})
        position += size
    segment = {"device": 0, "address": address, "total_size": 20 * MIB, "stream": 0, "segment_type": "large"}
    file = {"segments": [{**segment, "blocks": blocks}], "device_traces": [trace], "allocator_settings": {}}
    found = compare_settings(Snapshot.load(file), settings=["expandable_segments:True"]).blockers
    assert (found.smallest.bytes, found.smallest.rows, found.smallest.contiguous) == (3 * MIB // 2, (1,), True)
    assert found.partly_used == 37 * MIB // 2


def _record(program, frames, addresses=None):
    """Return a recording that ends with a failed request.

    ``program``: ``(line, size)`` for each allocation, ``("free", index)`` to free the block that the item with this
    index allocated and, as the last item, the request that fails. ``frames``: Line number of each named line.
    ``addresses``: Generator of random addresses of segments; by default, their addresses increase.
    """
    allocator = make()
    if addresses is not None:
        allocator._choose_address = lambda _: addresses.randrange(1 << 12, 1 << 15) << 30
    trace, blocks, live = [], [], {}

    def event(action, address, size, line="other"):
        entry = {"action": action, "addr": address, "size": size, "stream": 0, "time_us": len(trace), "frames": []}
        trace.append(entry | {"frames": [{"filename": "train.py", "line": frames.get(line, 0), "name": line}]})

    for number, (line, size) in enumerate(program[:-1]):
        if line == "free":
            address, whole, _ = live.pop(size)
            event("free_requested", address, whole)
            event("free_completed", address, whole)
            allocator.free(0, address, whole)
            continue
        known = len(allocator.events)
        address, whole = allocator.allocate(0, size, 0)
        for segment in allocator.events[known:]:
            event("segment_alloc", segment.address, segment.size)
        event("alloc", address, size, line)
        live[number] = address, whole, size
    trace.append({"action": "oom", "size": program[-1][1], "stream": 0, "time_us": len(trace), "device_free": 0})
    for address, size in allocator.segments.items():
        inside = [(at, whole, "active_allocated", asked) for at, whole, asked in live.values()]
        inside += [(at, whole, "inactive", 0) for at, whole in allocator.free_blocks(0)]
        keys = ("address", "size", "state", "requested_size")
        rows = [dict(zip(keys, row, strict=True)) for row in sorted(inside) if address <= row[0] < address + size]
        segment = {"device": 0, "address": address, "total_size": size, "stream": 0, "segment_type": "large"}
        blocks.append(segment | {"blocks": rows})
    return {"segments": blocks, "device_traces": [trace], "allocator_settings": {}}


def test_padding_is_confirmed():
    found = compare_settings(files.snapshot("variable_lengths_oom"), settings=["expandable_segments:True"]).blockers
    padding = found.changes[-1]
    assert (padding.count, padding.padding) == (1806, 10030336)
    assert "1,806 blocks whose sizes vary from step to step grow by up to 25% (by 9.6 MiB" in padding.sentence()


def test_padding_of_requests_that_failed():
    snapshot = files.snapshot("variable_lengths_oom")
    recording = copy.copy(cached_verification(snapshot, 0).recording)
    event = recording.last_failed
    assert _padded(recording)[1].trace.size[event] == 256 * MIB > recording.trace.size[event]
    sizes = recording.allocations.size
    parts = [set(sizes[recording.allocations.start // (len(recording.trace) // 8 + 1) == part]) for part in range(8)]
    constant = max(size for size in set.intersection(*parts) if size > MIB and size & (size - 1))
    changed = recording.trace.size.copy()
    changed[event] = recording.settings.round(np.array([constant]))[0]
    recording.trace = replace(recording.trace, size=changed)
    assert (_padded(recording)[1].trace.size == changed).all()


def test_changes_of_the_program_are_confirmed():
    program = []
    for step, size in enumerate([34, 38, 36, 39, 38, 30, 38, 29, 36, 33, 37, 32]):
        program += [("temporary", size * MIB), ("free", len(program)), ("kept", 10 * MIB)][: 3 if step < 8 else 2]
    recording = _record([*program, ("request", 67 * MIB)], {"kept": 7})
    blocks = [block for segment in recording["segments"] for block in segment["blocks"]]
    names = [{"device": 0, "address": block["address"], "name": "results"} for block in blocks]
    recording["ipygpumem"] = {"variables": names}
    found = compare_settings(Snapshot.load(recording), settings=["expandable_segments:True"]).blockers
    assert [(line.label, line.variables) for line in found.lines] == [("train.py:7 kept", ("results",))]
    assert [(change.label, change.allocated_first, change.count) for change in found.changes] == [
        ("train.py:7 kept", True, 8),
        ("train.py:7 kept", False, 8),
    ]
    assert found.changes[0].sentence().startswith("Allocating 8 blocks of train.py:7 kept (80.0 MiB) before all")
    assert recording["device_traces"][0].pop()["action"] == "oom"
    found = compare_settings(Snapshot.load(recording), settings=["expandable_segments:True"]).blockers
    assert (found.size, found.reserved, found.smallest.bytes) == (37 * MIB, 186 * MIB, 20 * MIB)
    (change,) = found.changes
    assert (change.allocated_first, change.reserved) == (False, 148 * MIB)
    assert change.sentence().endswith("would have lowered the peak of reserved memory to 148 MiB.")


def test_blockers_at_the_peak_of_reserved_memory():
    setting = ["max_split_size_mb:64"]
    names = ("two_streams_expandable", "cnn_steps", "resnet50")
    found, padded, nothing = (compare_settings(files.snapshot(name), settings=setting).blockers for name in names)
    assert (found.event, found.reserved, found.smallest.bytes) == (4300, 1502 * MIB, 14110720)
    assert (padded.event, padded.partly_used, padded.empty) == (1327, 297854976, 1540 * MIB)
    assert [change.reserved for change in padded.changes] == [2558 * MIB]
    assert nothing is None
