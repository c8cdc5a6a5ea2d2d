"""Differences between two snapshots."""

# ruff: noqa: S108 (names of cells in kernels, not of files)
from __future__ import annotations

import time

import pytest

from ipygpumem.snapshot import KEYS, Snapshot, diff
from snapshot import files
from snapshot.entries import event, frame

MIB = 1 << 20
CELL = "/tmp/ipykernel_7/99.py"
OTHER_CELL = "/tmp/ipykernel_7/55.py"


def test_snapshots_stand_for_their_peaks(two_runs):
    other_snapshot = Snapshot.load({"device_traces": [[event("alloc", 512, 5, 1)]]})
    for key in ("line", "stack"):
        assert diff(two_runs, other_snapshot, key) == diff(two_runs.live(), other_snapshot.live(), key)
    assert (diff(two_runs, other_snapshot).before, diff(two_runs, other_snapshot).after) == (6 * MIB + 1000, 5)


def test_diff_of_one_file(two_runs):
    difference = diff(two_runs.live(2), two_runs.live(len(two_runs.timeline().trace) - 1))
    assert (difference.before, difference.after) == (6 * MIB + 1000, 5 * MIB + 1100)
    assert [(change.label, change.bytes, change.count) for change in difference.changes] == [
        ("user/model.py:3 forward", -MIB, 0),
        ("(no Python frames on the thread, as in a backward pass)", 100, 1),
    ]


def test_cells_of_different_kernels_are_matched():
    def allocation(kernel, size):
        frames = [frame(f"/tmp/ipykernel_{kernel}/99.py", 1, "<module>")]
        return Snapshot.load({"device_traces": [[event("alloc", 512, size, 1, frames)]]})

    for key in ("line", "stack"):
        (change,) = diff(allocation(1, 10).live(), allocation(2, 25).live(), key).changes
        assert (change.before, change.after, change.bytes, change.count) == (10, 25, 15, 0)


@pytest.mark.parametrize("key", KEYS)
def test_diff_of_real_files_adds_up(key):
    before, after = (files.snapshot(name).live() for name in ("gpt_small", "gpt_cpp"))
    difference = diff(before, after, key)
    growth = after.bytes - before.bytes
    assert sum(change.bytes for change in difference.changes) == difference.after - difference.before == growth
    assert sum(change.count for change in difference.changes) == len(after) - len(before)


def test_deep_stacks_of_a_file_with_a_long_name():
    frames = [frame("ipykernel_" * 30_000, 1, "f")] * 20_000
    snapshot = Snapshot.load({"device_traces": [[event("alloc", 512, 5, 1, frames)]]})
    start = time.process_time()
    assert diff(snapshot.live(-1), snapshot.live(), "stack").changes[0].bytes == 5
    assert time.process_time() - start < 2
