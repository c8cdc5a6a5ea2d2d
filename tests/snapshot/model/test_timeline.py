"""Columns agree with a slow replay of real files and random histories, also in unusual cases."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.columns import ACTIONS
from snapshot import files
from snapshot.reference import live_of, replay
from snapshot.simulator import Simulator

MIB = 1 << 20
operations = st.lists(
    st.tuples(st.integers(0, 12), st.integers(0, 15), st.integers(0, 5 * MIB), st.integers(0, 2)), max_size=60
)


def check(snapshot, expected, device):
    timeline = snapshot.timeline(device)
    assert timeline.requested.bytes.tolist() == expected["curve"]
    peak = snapshot.peak(device)
    assert (peak.requested, peak.event) == expected["peak"]
    assert peak.live.bytes == peak.requested
    assert sum(group.bytes for group in snapshot.by_line(device)) == peak.requested
    for event in {-1, peak.event, len(timeline.trace) // 2 - 1, len(timeline.trace) - 1}:
        assert live_of(snapshot, device, event) == {a: size for a, (size, _) in expected["sets"][event + 1].items()}
    for name in ("missing_frees", "frees_without_allocation", "only_in_segments", "only_in_events"):
        assert getattr(timeline.gaps, name) == expected[name], name
    if timeline.reserved is not None:
        assert timeline.reserved.bytes.tolist() == expected["reserved"]


@pytest.mark.parametrize("name", files.NAMES)
def test_real_files_agree_with_the_slow_replay(name):
    raw = files.raw(name)
    snapshots = files.snapshot(name), Snapshot.load(raw)
    for device in range(len(raw["device_traces"])):
        if len(raw["device_traces"][device]) or any(s["device"] == device for s in raw["segments"]):
            expected = replay(raw, device)
            for snapshot in snapshots:
                check(snapshot, expected, device)


def test_large_file_agrees_with_a_replay_in_one_pass():
    raw = files.raw("gpt_100k")
    snapshot = Snapshot.load(files.path("gpt_100k"))
    live, best = {}, (0, -1)
    touched = {e["addr"] for e in raw["device_traces"][0]}
    old = [b for s in raw["segments"] for b in s["blocks"] if b["state"] != "inactive" and b["address"] not in touched]
    live = {b["address"]: b["requested_size"] for b in old}
    used_addresses = set()
    for event in raw["device_traces"][0]:
        if event["addr"] not in used_addresses and event["action"] != "alloc":
            live[event["addr"]] = event["size"]
        used_addresses.add(event["addr"])
    level = sum(live.values())
    best = (level, -1)
    curve = [level]
    for number, event in enumerate(raw["device_traces"][0]):
        if event["action"] == "alloc":
            live[event["addr"]] = event["size"]
            level += event["size"]
        elif event["action"] == "free_completed":
            level -= live.pop(event["addr"])
        curve.append(level)
        best = max(best, (level, -number))
    assert (snapshot.peak().requested, -snapshot.peak().event) == best
    assert np.array_equal(snapshot.allocated().bytes, curve)


@pytest.mark.parametrize("name", files.NAMES)
def test_all_values_of_all_events(name):
    raw = files.raw(name)
    snapshot = files.snapshot(name)
    for device, events in enumerate(raw["device_traces"]):
        trace = snapshot.timeline(device).trace
        assert [ACTIONS[code] for code in trace.action] == [e["action"] for e in events]
        assert trace.address.tolist() == [e.get("addr", 0) for e in events]
        assert trace.size.tolist() == [e["size"] for e in events]
        assert trace.stream.tolist() == [e["stream"] for e in events]
        assert trace.time.tolist() == [e["time_us"] for e in events]
        assert [snapshot.texts[n] for n in trace.context] == [e["compile_context"] for e in events]
        assert [snapshot.texts[n] for n in trace.metadata] == [e["user_metadata"] for e in events]
        stacks = {}
        for number, event in zip(trace.stack.tolist(), events, strict=True):
            if number not in stacks:
                stacks[number] = [(f.file, f.line, f.name) for f in snapshot.stacks.stack(number)]
            assert stacks[number] == [(f["filename"], f["line"], f["name"]) for f in event["frames"]]


@settings(max_examples=100)
@given(operations, st.integers(1, 2), st.booleans(), st.none() | st.integers(0, 40), st.booleans())
def test_random_histories_agree_with_the_simulator(steps, devices, with_pools, remaining, as_pickle):
    simulator = Simulator(devices, with_pools)
    simulator.run(steps)
    raw = simulator.snapshot(remaining)
    snapshot = Snapshot.load(pickle.dumps(raw, 4) if as_pickle else raw)
    for device in simulator.devices:
        if device.index >= len(snapshot.timelines):
            continue
        check(snapshot, replay(raw, device.index), device.index)
        # the states that the simulator recorded since the first remaining event
        truth = device.truth[len(device.trace) - len(raw["device_traces"][device.index]) :]
        timeline = snapshot.timeline(device.index)
        assert timeline.requested.bytes.tolist() == [state[0] for state in truth]
        assert timeline.reserved.bytes.tolist() == [state[1] for state in truth]
        for event in range(-1, len(timeline.trace)):
            state = snapshot.state_at(event, device.index)
            _, _, live, segments = truth[event + 1]
            assert [tuple(map(int, b)) for b in state.blocks[["address", "requested", "pending"]]] == live
            assert [tuple(s) for s in state.segments[["address", "size", "stream"]].tolist()] == segments


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["alloc", "free_requested", "free_completed", "oom", "snapshot", "annotate", "new_in_9.9"]),
            st.integers(1, 4),
            st.integers(0, 5),
            st.integers(0, 20),
        ),
        max_size=40,
    ),
    st.lists(
        st.tuples(st.integers(1, 5), st.sampled_from(["inactive", "active_allocated", "active_awaiting_free"])),
        max_size=4,
    ),
)
def test_inconsistent_histories_agree_with_the_slow_replay(events, blocks):
    trace = [{"action": a, "addr": x * 512, "size": n, "stream": 0, "time_us": t} for a, x, n, t in events]
    unique = dict(blocks)
    raw = {
        "device_traces": [trace],
        "segments": [
            {
                "device": 0,
                "address": 0,
                "total_size": 8192,
                "blocks": [
                    {"address": a * 512, "size": 512, "requested_size": a, "state": state}
                    for a, state in sorted(unique.items())
                ],
            }
        ],
    }
    check(Snapshot.load(raw), replay(raw, 0), 0)


def event(action, address, size, time=0, **fields):
    return {"action": action, "addr": address, "size": size, "stream": 0, "time_us": time, **fields}


def block(address, size, requested, state="active_allocated"):
    return {"address": address, "size": size, "requested_size": requested, "state": state, "frames": []}


def segment(address, size, blocks, **fields):
    return {"device": 0, "address": address, "total_size": size, "stream": 0, "blocks": blocks, **fields}


def test_small_allocations_count_in_the_peak():
    # MemoryViz's axis stops at the largest allocations it draws
    trace = [event("alloc", 4096 + n * MIB, MIB, n) for n in range(1000)]
    trace += [event("alloc", (1 << 40) + n * 10 * MIB, 10 * MIB, 1000 + n) for n in range(2)]
    assert Snapshot.load({"device_traces": [trace], "segments": []}).peak().requested == 1020 * MIB


def test_peak_before_the_first_event():
    # MemoryViz shows 200 MiB, mosaic 0
    trace = [event("free_requested", 512, 100 * MIB), event("free_completed", 512, 100 * MIB)]
    segments = [segment(1 << 40, 200 * MIB, [block(1 << 40, 200 * MIB, 200 * MIB)])]
    peak = Snapshot.load({"device_traces": [trace], "segments": segments}).peak()
    assert (peak.requested, peak.event, peak.time_us, len(peak.live)) == (300 * MIB, -1, None, 2)


def test_expandable_segments_are_reserved():
    # MemoryViz shows 20 of 120 MiB
    trace = [event("segment_alloc", 1 << 30, 20 * MIB), event("segment_map", 1 << 40, 100 * MIB)]
    segments = [segment(1 << 30, 20 * MIB, []), segment(1 << 40, 100 * MIB, [], is_expandable=True)]
    assert Snapshot.load({"device_traces": [trace], "segments": segments}).reserved().bytes.tolist() == [
        0,
        20 * MIB,
        120 * MIB,
    ]


def test_events_in_the_same_microsecond():
    # mosaic keeps one point per time
    trace = [event("alloc", 512 * n, 512, 7) for n in range(1, 6)] + [event("free_completed", 512, 512, 7)]
    curve = Snapshot.load({"device_traces": [trace]}).allocated()
    assert curve.bytes.tolist() == [0, 512, 1024, 1536, 2048, 2560, 2048]
    assert set(curve.time_us.tolist()[1:]) == {7}


def test_rounded_and_requested_sizes_are_not_mixed():
    # mosaic adds both sizes
    segments = [
        segment(1 << 30, 2 * MIB, [block(1 << 30, 1024, 600), block((1 << 30) + 1024, 2 * MIB - 1024, 5, "inactive")])
    ]
    trace = [event("alloc", 1 << 40, 700, 1), event("free_completed", 1 << 40, 700, 2)]
    snapshot = Snapshot.load({"device_traces": [trace], "segments": segments})
    assert snapshot.peak().requested == 1300
    assert snapshot.timeline().end_active == 1024
    assert snapshot.blocks.requested.tolist() == [600, 0]  # the size of a free block is out of date


def test_events_out_of_order_are_sorted_and_noted():
    trace = [event("free_completed", 512, 10, 30), event("alloc", 512, 10, 20), event("alloc", 1024, 5, 40)]
    snapshot = Snapshot.load({"device_traces": [trace]})
    assert snapshot.timeline().trace.out_of_order == 1
    assert snapshot.allocated().bytes.tolist() == [0, 10, 0, 5]
    assert "1 event was out of order and was sorted by time" in snapshot.summary()


def test_events_without_times_keep_their_order():
    trace = [{"action": a, "addr": 512, "size": 10, "stream": 0} for a in ("alloc", "free_requested", "free_completed")]
    snapshot = Snapshot.load({"device_traces": [trace]})
    assert snapshot.allocated().bytes.tolist() == [0, 10, 10, 0]
    assert snapshot.peak().time_us is None


def test_blocks_of_torch_before_2_1():
    old = {"size": 512, "state": "active_allocated", "history": [{"addr": 1, "real_size": 300, "frames": []}]}
    segments = [{"address": 4096, "total_size": 1024, "blocks": [old, {"size": 512, "state": "inactive"}]}]
    snapshot = Snapshot.load(segments)
    assert snapshot.peak().requested == 300
    assert snapshot.blocks.address.tolist() == [4096, 4608]


def test_live_set_at_the_end_matches_the_segments():
    for name in files.NAMES:
        snapshot = files.snapshot(name)
        blocks = snapshot.blocks
        active = blocks.active & (blocks.device == 0)
        expected = dict(zip(blocks.address[active].tolist(), blocks.requested[active].tolist(), strict=True))
        assert live_of(snapshot, 0, len(snapshot.timeline(0).trace) - 1) == expected
