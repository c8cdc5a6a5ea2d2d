"""Pinned host memory, as PyTorch 2.14 records it with ``record_pinned_host_memory=True``."""

from __future__ import annotations

import pickle

import pytest

from ipygpumem.snapshot import Snapshot
from snapshot.entries import block, event, frame, group_totals, segment

MIB = 1 << 20
LOADER = [frame("/home/user/train.py", 9, "load")]
ADDRESS = 0x7F20_0000_0000


def host_event(action, address, size, time, frames=LOADER):
    fields = {"compile_context": "", "user_metadata": "", "pool_id": (0, 0)}
    return event(action, address, size, time, frames, **fields)


def raw():
    old, new = ADDRESS, ADDRESS + 4 * MIB
    host = [
        *(host_event(f"free_{step}", old, MIB, 2, []) for step in ("requested", "completed")),
        *(host_event(action, new, 2 * MIB, 3) for action in ("segment_alloc", "alloc")),
    ]
    parts = {"allocated": False, "active": False, "segment_pool_id": (0, 0), "frames": []}
    return {
        "segments": [segment(512, 2 * MIB, [block(512, MIB, MIB)])],
        "device_traces": [[event("alloc", 512, MIB, 1)]],
        "host_segments": [
            {"address": old, "size": MIB, **parts},
            {"address": new, "size": 2 * MIB, **parts, "allocated": True, "active": True, "frames": LOADER},
            {"address": new + 8 * MIB, "size": 8 * MIB, **parts, "active": True},
        ],
        "host_traces": host,
    }


@pytest.mark.parametrize("convert", [lambda value: value, lambda value: pickle.dumps(value, 4)])
def test_timeline_of_pinned_memory(convert):
    snapshot = Snapshot.load(convert(raw()))
    timeline = snapshot.host_timeline
    # a segment that exists before the recording is in use, because a stream still uses it
    assert timeline.requested.bytes.tolist() == [9 * MIB, 9 * MIB, 8 * MIB, 8 * MIB, 10 * MIB]
    assert timeline.reserved.bytes.tolist() == [9 * MIB] * 3 + [11 * MIB] * 2
    assert snapshot.summary().splitlines()[-2] == ("pinned host memory: peak 10.0 MiB, 10.0 MiB at the end; 4 events")
    assert (len(snapshot.timelines), snapshot.timeline().end_reserved) == (1, 2 * MIB)
    assert group_totals(snapshot.live().by("size")) == {"up to 1 MiB": (MIB, 1)}


def test_without_segments():
    snapshot = Snapshot.load({**raw(), "host_segments": None})
    assert snapshot.host_timeline.reserved is None
    assert snapshot.host_timeline.requested.peak()[1] == 2 * MIB


def test_segments_without_events():
    snapshot = Snapshot.load({**raw(), "host_traces": []})
    assert snapshot.host_timeline.end_requested == 10 * MIB
    assert "pinned" not in snapshot.summary()


@pytest.mark.parametrize(
    "value", [5, [5], [{"address": 1}], [{"address": -1, "size": 5}], [{"address": 1, "size": 5, "frames": [7]}]]
)
def test_unknown_format_of_segments_is_ignored(value):
    snapshot = Snapshot.load({**raw(), "host_segments": value})
    assert snapshot.host_timeline.reserved is None
    assert len(snapshot.segments.device) == 1


def test_devices_of_other_segments_are_not_negative():
    with pytest.raises(Exception, match=r"segments\[0\]: device is out of range"):
        Snapshot.load({**raw(), "segments": [segment(512, 512, [], device=-1)]})


def test_no_pinned_memory():
    assert Snapshot.load({"segments": [], "device_traces": []}).host_timeline is None
