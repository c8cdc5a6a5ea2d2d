"""Queries on a range of events."""

from __future__ import annotations

import time

import pytest

from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot import Snapshot
from snapshot.entries import event, segment

MIB = 1 << 20


def test_leaks(two_runs):
    last = len(two_runs.timeline().trace) - 1
    assert two_runs.leaks().bytes == 3 * MIB + 1100
    assert two_runs.leaks(5, last).bytes == 3 * MIB + 100
    assert two_runs.leaks(0, 3).bytes == 4 * MIB + 1000
    assert two_runs.leaks(0, 4).bytes == 1000
    assert two_runs.leaks(last, last).bytes == 0


def test_churn(two_runs):
    churn = {group.label: group for group in two_runs.churn()}
    model = churn["user/model.py:3 forward"]
    assert (model.count, model.bytes, model.median_us) == (2, 7 * MIB, 3)
    assert model.byte_seconds == pytest.approx((4 * MIB * 3 + 3 * MIB * 3) / 1e6)
    assert sum(group.bytes for group in two_runs.churn(key="allocation")) == sum(
        group.bytes for group in two_runs.churn()
    )


def test_median_lifetime_in_churn_is_that_of_freed_allocations():
    trace = [
        event("alloc", 512, MIB, 1),
        event("alloc", 4 * MIB, MIB, 2),
        event("free_completed", 512, MIB, 11),
    ]
    (group,) = Snapshot.load({"device_traces": [trace]}).churn()
    assert (group.count, group.median_us) == (2, 10)


def test_short_lived_large_allocations(two_runs):
    (row,) = two_runs.short_lived(at_least=MIB, at_most_us=3)
    assert (row["size"], row["start"], row["end"], row["microseconds"]) == (4 * MIB, 1, 4, 3)
    assert not len(two_runs.short_lived(at_least=MIB, at_most_us=2))


def test_short_lived_needs_times():
    trace = [{"action": action, "addr": 512, "size": 9 * MIB} for action in ("alloc", "free_completed")]
    with pytest.raises(OptionError, match="no times"):
        Snapshot.load({"device_traces": [trace]}).short_lived()


def test_growth_of_each_step(two_runs):
    steps = two_runs.growth("step")
    assert [(step.repetition, step.before, step.after, step.peak, step.growth) for step in steps] == [
        (0, 2 * MIB, 2 * MIB + 1000, 6 * MIB + 1000, 1000),
        (1, 2 * MIB + 1000, 5 * MIB + 1100, 5 * MIB + 1500, 3 * MIB + 100),
    ]


def test_device_calls_and_retries():
    trace = [
        event("segment_alloc", 512, 20 * MIB, 1),
        event("segment_free", 512, 20 * MIB, 2),
        event("segment_alloc", 1024, 30 * MIB, 3),
        event("segment_map", 1 << 40, 2 * MIB, 4),
        event("segment_unmap", 1 << 40, 2 * MIB, 5),
        {"action": "oom", "size": 5, "device_free": 1, "time_us": 6},
    ]
    calls = Snapshot.load({"device_traces": [trace], "segments": [segment(1024, 30 * MIB, [])]}).device_calls()
    assert calls.to_dict() == {
        "mallocs": 2,
        "malloc_bytes": 50 * MIB,
        "frees": 1,
        "free_bytes": 20 * MIB,
        "maps": 1,
        "map_bytes": 2 * MIB,
        "unmaps": 1,
        "unmap_bytes": 2 * MIB,
        "retries": 2,
        "ooms": 1,
    }


def test_window_of_times(two_runs):
    assert two_runs.window(101, 103) == (0, 3)
    assert two_runs.leaks(*two_runs.window(200, 210)).bytes == 3 * MIB + 100


def test_invalid_windows_and_names(two_runs):
    for query in (two_runs.leaks, two_runs.churn, two_runs.short_lived, two_runs.device_calls):
        with pytest.raises(OptionError, match="ends before it starts: event 5 to event 2"):
            query(5, 2)
    with pytest.raises(OptionError, match="ends before it starts"):
        two_runs.window(9, 8)
    with pytest.raises(OptionError, match="no annotated region 'nope' on device 0: choose from 'inner', 'step'"):
        two_runs.growth("nope")
    with pytest.raises(OptionError, match="cannot group by 'zzz'"):
        two_runs.churn(3, 3, key="zzz")


def test_growth_of_long_nested_regions():
    count = 30_000
    events = [event("alloc", 512 * number, 512, number + 5) for number in range(count)]
    events += [event("free_completed", 512 * (count - 1), 512, count + 5)]
    entries = [("START", 0)] * count + [("END", count + 9)] * count
    annotations = [{"name": "step", "device": 0, "stage": stage, "time_us": time_us} for stage, time_us in entries]
    snapshot = Snapshot.load({"device_traces": [events], "segments": [], "external_annotations": annotations})
    start = time.process_time()
    regions = snapshot.growth("step")
    assert time.process_time() - start < 0.3
    assert {(region.before, region.after, region.peak) for region in regions} == {(0, 512 * (count - 1), 512 * count)}
