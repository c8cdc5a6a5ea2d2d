"""What a file does not tell, and what in it does not fit together, is said."""

from __future__ import annotations

import pytest

from ipygpumem.core.errors import SnapshotError
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.export.encode import decode
from ipygpumem.snapshot.export.sharing import shareable
from ipygpumem.snapshot.export.text import fragmentation_lines
from ipygpumem.snapshot.queries.overview import overview
from snapshot.entries import block, event, segment

MIB = 1 << 20


def told(trace, segments):
    return overview(Snapshot.load({"device_traces": [trace], "segments": segments}), 0)


def test_one_event_without_a_time_costs_the_others_theirs_and_that_is_told():
    trace = [event("alloc", 512, 10, 1), {"action": "free_completed", "addr": 512, "size": 10}]
    assert told(trace, []).notes == ("1 event has no time: the times of the others are not used",)
    assert told(trace[:1], [segment(0, 1024, [block(512, 512, 10)])]).notes == ()


def test_segments_that_do_not_fit_the_events_are_told():
    facts = told([event("segment_alloc", 512, 20 * MIB, 1)], [])
    assert facts.notes == ("the segments at the end contradict the events: reserved bytes are only known at the end",)
    assert (facts.reserved_end, facts.reserved_peak) == (0, None)


def test_blocks_that_overlap_or_have_no_requested_size_are_told():
    one = block(4096, 1024, 1000)
    two = block(4608, 1024, 1000)
    del two["requested_size"]
    facts = told([], [segment(4096, 2 * MIB, [one, two])])
    assert facts.notes[2:] == (
        "1 block at the end has no requested size: the rounded size is used instead",
        "1 block at the end is inside another: sums count both",
    )
    assert facts.end_requested == 2024


def test_free_memory_of_a_private_pool_is_not_said_to_be_returnable():
    other = {**segment(40 * MIB, 2 * MIB, [block(40 * MIB, 2 * MIB, 0, "inactive")]), "segment_pool_id": (0, 1)}
    mine = {**segment(80 * MIB, 4 * MIB, [block(80 * MIB, 4 * MIB, 0, "inactive")]), "segment_pool_id": (0, 0)}
    snapshot = Snapshot.load({"segments": [other, mine]})
    memory = snapshot.fragmentation()
    assert (memory.free, memory.empty, memory.partly, memory.private) == (6 * MIB, 4 * MIB, 0, 2 * MIB)
    text = "\n".join(fragmentation_lines(memory))
    assert "   2.0 MiB  in private pools: only their CUDA graphs can use these" in text
    assert "private" not in "\n".join(fragmentation_lines(Snapshot.load({"segments": [mine]}).fragmentation()))


def test_a_cell_that_ran_before_the_recording_has_its_number():
    frames = [{"filename": "/tmp/ipykernel_7/55.py", "line": 3, "name": "step"}]  # noqa: S108 (a name, not a file)
    own = {"schema": 1, "cells": [], "numbers": {"/tmp/ipykernel_7/55.py": 4}}  # noqa: S108 (as above)
    raw = {"device_traces": [[event("alloc", 512, 10, 1, frames)]], "ipygpumem": own}
    snapshot = Snapshot.load(raw)
    assert [group.label for group in snapshot.by_line()] == ["In[4]:3 step"]
    given = shareable(snapshot, paths=False)
    assert [group.label for group in given.by_line()] == ["In[4]:3 step"]
    assert decode(snapshot.encode())[0]["numbers"] == {"/tmp/ipykernel_7/55.py": 4}  # noqa: S108 (as above)
    own["numbers"] = {"x.py": "four"}
    with pytest.raises(SnapshotError, match="ipygpumem: numbers is a str, not an integer"):
        Snapshot.load(raw)


def test_a_request_that_no_machine_could_serve_is_read():
    trace = [{"action": "oom", "size": 1 << 62, "device_free": 1, "time_us": 1}]
    (oom,) = Snapshot.load({"device_traces": [trace]}).ooms()
    assert (oom.asked, oom.reason[0]) == (1 << 62, "4294967296.0 GiB were requested.")
    with pytest.raises(SnapshotError, match="size is more than"):
        Snapshot.load({"device_traces": [[event("alloc", 512, 1 << 50, 1)]]})
