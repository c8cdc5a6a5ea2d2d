"""Groups of the allocations alive at an event."""

# ruff: noqa: S108 (names of cells in kernels, not of files)
from __future__ import annotations

import json
import math

import numpy as np
import pytest

from ipygpumem.core.errors import DeviceError, OptionError, SnapshotError
from ipygpumem.snapshot import KEYS, Snapshot, diff, to_frame
from snapshot import files
from snapshot.entries import block, event, group_totals, segment

MIB = 1 << 20
CELL = "/tmp/ipykernel_7/99.py"
OTHER_CELL = "/tmp/ipykernel_7/55.py"


def test_peak_and_its_lines(two_runs):
    peak = two_runs.peak()
    assert peak.to_dict() == {"requested": 6 * MIB + 1000, "event": 2, "time_us": 102}
    assert two_runs.by_line() == peak.live.by("line")
    assert [(g.file, g.line, g.name, g.bytes, g.count, g.source) for g in two_runs.by_line()] == [
        ("/home/user/model.py", 3, "forward", 4 * MIB, 1, None),
        (None, None, None, 2 * MIB, 1, None),
        (CELL, 5, "<module>", 1000, 1, "y = torch.ones(250)"),
    ]


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("function", {"user/model.py forward": (3 * MIB, 1), "In[1] <module>": (1000, 1)}),
        ("cell", {"In[2]": (3 * MIB + 100, 2), "In[1]": (1000, 1), "(no cell)": (2 * MIB, 1)}),
        ("pool", {"private pool (0, 1)": (3 * MIB, 1), "(unknown)": (2 * MIB + 1100, 3)}),
        ("stream", {"default stream": (5 * MIB + 100, 3), "stream 0x7": (1000, 1)}),
        ("annotation", {"step": (3 * MIB + 100, 2), "inner": (1000, 1), "(outside all regions)": (2 * MIB, 1)}),
        ("context", {"(none)": (5 * MIB + 1100, 4)}),
        (
            "size",
            {
                "up to 4 MiB": (3 * MIB, 1),
                "up to 2 MiB": (2 * MIB, 1),
                "up to 1 KiB": (1000, 1),
                "up to 128 B": (100, 1),
            },
        ),
        (
            "allocation",
            {"b10000_1": (3 * MIB, 1), "b9000000_0": (2 * MIB, 1), "b410000_0": (1000, 1), "b910000_0": (100, 1)},
        ),
    ],
)
def test_groups_at_the_end(two_runs, key, expected):
    last = len(two_runs.timeline().trace) - 1
    totals = group_totals(two_runs.live(last).by(key))
    assert expected.items() <= totals.items()
    assert sum(total for total, _ in totals.values()) == 5 * MIB + 1100


def test_groups_by_context_and_metadata(two_runs):
    live = two_runs.live(1)
    assert group_totals(live.by("context"))["Torch-Compiled Region: 0/0"] == (4 * MIB, 1)
    assert group_totals(live.by("metadata"))["acts"] == (4 * MIB, 1)


def test_labels_of_blocks_without_a_stack(two_runs):
    totals = group_totals(two_runs.live(len(two_runs.timeline().trace) - 1).by("line"))
    assert totals["(older than the recording, without a stack)"] == (2 * MIB, 1)
    assert totals["(no Python frames on the thread, as in a backward pass)"] == (100, 1)
    stacks = two_runs.live(len(two_runs.timeline().trace) - 1).by("stack")
    assert group_totals(stacks)["(older than the recording, without a stack)"] == (2 * MIB, 1)
    assert [frame.name for frame in stacks[0].frames] == ["linear", "forward", "<module>"]


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("name", files.NAMES)
def test_groups_of_real_files_add_up(name, key):
    live = files.snapshot(name).live()
    groups = live.by(key)
    assert sum(group.bytes for group in groups) == live.bytes
    assert sum(group.count for group in groups) == len(live)
    assert [group.bytes for group in groups] == sorted((group.bytes for group in groups), reverse=True)


def test_region_from_before_the_recording_does_not_contain_unknown_times():
    ends = [{"name": "old", "stage": "END", "device": 0, "time_us": 9}]
    segments = [segment(1 << 30, 4096, [block(1 << 30, 512, 5)])]
    trace = [event("alloc", 512, 1, 5)]
    snapshot = Snapshot.load({"device_traces": [trace], "segments": segments, "external_annotations": ends})
    assert group_totals(snapshot.live().by("annotation")) == {"old": (1, 1), "(outside all regions)": (5, 1)}


@pytest.mark.parametrize("moment", [1.5, 1.0, True, float("nan"), "1", [1]])
def test_events_must_be_integers(two_runs, moment):
    for query in (two_runs.live, two_runs.state_at, two_runs.fragmentation, two_runs.leaks):
        with pytest.raises(OptionError, match="is not an event"):
            query(moment)
    assert two_runs.live(two_runs.timeline().trace.action.argmax()).bytes


def test_invalid_arguments(two_runs):
    with pytest.raises(DeviceError, match="no device 3: it has 1 device"):
        two_runs.peak(3)
    with pytest.raises(OptionError, match="no event 99: it has 11 events"):
        two_runs.live(99)
    with pytest.raises(OptionError, match="cannot group by 'color': choose from 'line', "):
        two_runs.live().by("color")
    with pytest.raises(DeviceError, match="contains no data for any device"):
        Snapshot.load({"device_traces": []}).peak()
    with pytest.raises(SnapshotError, match="neither 'segments' nor 'device_traces'"):
        Snapshot.load({})


@pytest.fixture
def small():
    trace = [
        event("segment_alloc", 512, 20 * MIB, 1),
        event("alloc", 512, 1000, 2),
        event("alloc", 4096, 2000, 3),
        event("free_requested", 4096, 2000, 4),
        event("free_completed", 4096, 2000, 5),
    ]
    return Snapshot.load({"device_traces": [trace], "segments": [segment(512, 20 * MIB, [block(512, 1024, 1000)])]})


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (lambda s: s.timeline("0"), "'0' is not a device index: expected an integer"),
        (lambda s: s.annotations("0"), "'0' is not a device index: expected an integer"),
        (lambda s: s.live(device=True), "True is not a device index: expected an integer"),
        (lambda s: s.live().by(["line"]), "cannot group by ['line']: choose from"),
        (lambda s: s.fragmentation(need="much"), "'much' is not a size"),
        (lambda s: s.fragmentation(need=-5), "-5 is not a size"),
        (lambda s: s.allocated("0"), "'0' is not a timestamp: expected microseconds since the Unix epoch"),
        (lambda s: s.allocated(math.nan), "nan is not a timestamp: expected microseconds since the Unix epoch"),
        (lambda s: diff(s, "b"), "expected a Snapshot or a LiveSet, but got str"),
        (lambda s: to_frame(s.state_at(1)), "an allocator state has two tables"),
    ],
)
def test_messages_have_one_line(small, query, message):
    with pytest.raises(OptionError) as exc_info:
        query(small)
    assert str(exc_info.value).startswith(message)
    assert "\n" not in str(exc_info.value)


def test_sizes_as_text_and_events_as_numpy_integers(small):
    assert small.fragmentation(need="1 KiB").fit.requested == 1024
    event_number = small.allocated().event[2]
    assert isinstance(event_number, np.int64)
    for result in (small.fragmentation(event_number), small.state_at(event_number), small.live(event_number)):
        json.dumps(result.to_dict())
