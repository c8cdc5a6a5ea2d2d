"""Totals of allocation records by owner: chronological order, owners of addresses, and intervals."""

from __future__ import annotations

import tracemalloc

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fakes.cupti import CUBLAS, CUPY, NCCL, TORCH
from ipygpumem.features.outside.allocation_totals import (
    COLUMNS,
    AllocationOwner,
    AllocationTotals,
    LiveAllocations,
    RecordingInterval,
)
from ipygpumem.features.outside.model import BEFORE_RECORDING


def owner(path=NCCL, device=0, memory="device", *, pooled=False):
    return AllocationOwner.from_path(device, memory, path, pooled=pooled)


def table(live, *rows):
    """Return a table for rows of (time, size, address, path); the size of a free is negative."""
    numbers = live.owner_numbers
    records = [(time, size > 0, address, abs(size), numbers[owner(path)]) for time, size, address, path in rows]
    return np.array(records, dtype=np.int64).reshape(-1, COLUMNS)


def figures(totals):
    return totals.change, totals.peak, totals.allocated, totals.freed, totals.allocations


def test_level_and_peak_by_owner():
    live, interval = LiveAllocations(), RecordingInterval(0)
    rows = table(
        live, (1, 100, 0xA, NCCL), (2, 50, 0xB, CUPY), (3, -100, 0xA, ""), (4, 30, 0xC, NCCL), (5, -50, 0xB, "")
    )
    live.apply(rows, [interval])
    assert figures(interval.owners[owner()]) == (30, 100, 130, 100, 2)
    assert figures(interval.owners[owner(CUPY)]) == (0, 50, 50, 50, 1)
    assert figures(interval.devices[0]) == (30, 150, 180, 150, 3)


def test_pytorch_segments_are_not_outside():
    live, interval = LiveAllocations(), RecordingInterval(0)
    live.apply(table(live, (1, 100, 0xA, TORCH), (2, 7, 0xB, NCCL)), [interval])
    assert interval.owners[AllocationOwner.allocator(0)].change == 100
    assert figures(interval.devices[0]) == (7, 7, 7, 0, 1)


def test_host_and_managed_memory_is_not_in_totals():
    live, interval = LiveAllocations(), RecordingInterval(0)
    rows = [(1, 1, 0xA, 8, live.owner_numbers[owner(memory=memory)]) for memory in ("pinned", "managed", "static")]
    live.apply(np.array(rows, dtype=np.int64), [interval])
    assert interval.devices == {}
    assert len(interval.owners) == 3


def test_interval_contains_only_later_records():
    live, early, late = LiveAllocations(), RecordingInterval(0), RecordingInterval(3)
    live.apply(table(live, (1, 100, 0xA, NCCL), (3, 50, 0xB, NCCL), (4, -100, 0xA, "")), [early, late])
    assert figures(early.owners[owner()]) == (50, 150, 150, 100, 2)
    assert figures(late.owners[owner()]) == (-50, 50, 50, 100, 1)


def test_free_without_recorded_allocation():
    live, interval = LiveAllocations(), RecordingInterval(0)
    live.apply(table(live, (1, -100, 0xA, "")), [interval])
    assert interval.owners[owner("")].change == -100
    assert owner("").library == BEFORE_RECORDING


def test_segment_from_before_recording_belongs_to_pytorch():
    live, interval = LiveAllocations(), RecordingInterval(0)
    live.add_segment(0, 0xA, 100)
    live.apply(table(live, (1, -100, 0xA, "")), [interval])
    assert interval.owners[AllocationOwner.allocator(0)].change == -100
    assert interval.devices == {}


def test_address_reused_before_record_of_its_free():
    live, interval = LiveAllocations(), RecordingInterval(0)
    rows = table(
        live, (1, 100, 0xA, NCCL), (2, 40, 0xA, CUPY), (3, -100, 0xA, ""), (4, -40, 0xA, ""), (5, 1, 0xA, CUBLAS)
    )
    live.apply(rows, [interval])
    assert figures(interval.owners[owner()]) == (0, 100, 100, 100, 1)
    assert figures(interval.owners[owner(CUPY)]) == (0, 40, 40, 40, 1)
    assert interval.owners[owner(CUBLAS)].change == 1
    assert owner("") not in interval.owners


def test_allocation_record_arriving_after_free_record():
    live, interval, later_interval = LiveAllocations(), RecordingInterval(0), RecordingInterval(6)
    live.apply(table(live, (2, 7, 0xB, NCCL), (3, -100, 0xA, "")), [interval])
    live.apply(table(live, (1, 100, 0xA, NCCL), (4, 40, 0xA, CUPY), (5, -40, 0xA, "")), [interval])
    live.apply(table(live, (6, 1, 0xA, CUBLAS)), [interval, later_interval])
    assert figures(interval.owners[owner()])[::2] == (7, 107, 2)
    assert figures(interval.owners[owner(CUPY)]) == (0, 40, 40, 40, 1)
    assert figures(interval.owners[owner("")])[::2] == (0, 0, 0)
    assert interval.owners[owner(CUBLAS)].change == 1
    assert (interval.devices[0].change, interval.devices[0].freed) == (8, 140)
    assert owner() not in later_interval.owners
    assert live.by_owner() == {owner(): 7, owner(CUBLAS): 1}


def test_listed_segments_are_moved_to_pytorch():
    live, interval, later_interval = LiveAllocations(), RecordingInterval(0), RecordingInterval(10)
    live.apply(table(live, (1, 100, 0xA, NCCL), (2, 30, 0xB, NCCL)), [interval])
    for _ in range(2):
        live.move_to_pytorch(0, 0xA, [interval, later_interval])
    live.move_to_pytorch(0, 0xDEAD, [interval])
    assert figures(interval.owners[owner()]) == (30, 30, 30, 0, 1)
    assert figures(interval.owners[AllocationOwner.allocator(0)])[:1] == (100,)
    assert figures(interval.devices[0]) == (30, 30, 30, 0, 1)
    assert later_interval.owners == {}
    live.apply(table(live, (11, -100, 0xA, "")), [interval, later_interval])
    assert interval.owners[owner()].change == 30
    assert later_interval.owners[AllocationOwner.allocator(0)].change == -100


def test_several_devices():
    live, interval = LiveAllocations(), RecordingInterval(0)
    rows = [(1, 1, 0xA, 8, live.owner_numbers[owner(device=0)]), (2, 1, 0xB, 9, live.owner_numbers[owner(device=1)])]
    live.apply(np.array(rows, dtype=np.int64), [interval])
    assert {device: total.change for device, total in interval.devices.items()} == {0: 8, 1: 9}


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 100), st.sampled_from([NCCL, CUPY, CUBLAS])), max_size=60))
def test_random_allocations_and_frees(steps):
    live, interval = LiveAllocations(), RecordingInterval(0)
    allocations, rows, levels, peaks = {}, [], {}, {}
    for time, (address, nbytes, path) in enumerate(steps):
        if address in allocations:
            path, nbytes = allocations.pop(address)  # noqa: PLW2901
            rows.append((time, -nbytes, address, ""))
            levels[path] -= nbytes
        else:
            allocations[address] = path, nbytes
            rows.append((time, nbytes, address, path))
            levels[path] = levels.get(path, 0) + nbytes
            peaks[path] = max(peaks.get(path, 0), levels[path])
    for half in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
        live.apply(table(live, *half), [interval])
    assert {key.library: (totals.change, totals.peak) for key, totals in interval.owners.items()} == {
        owner(path).library: (levels[path], peaks[path]) for path in levels
    }


def test_memory_is_independent_of_number_of_records():
    live, interval = LiveAllocations(), RecordingInterval(0)
    number = live.owner_numbers[owner()]
    count = 10_000
    batch = np.empty((2 * count, COLUMNS), dtype=np.int64)
    batch[:, 0] = np.arange(2 * count)
    batch[:, 1] = np.arange(2 * count) % 2 == 0
    batch[:, 2] = np.arange(2 * count) // 2 * 512
    batch[:, 3], batch[:, 4] = 512, number
    live.apply(batch, [interval])
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for i in range(1, 5):
        batch[:, 0] = np.arange(2 * count) + i * 2 * count
        live.apply(batch, [interval])
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert figures(interval.owners[owner()]) == (0, 512, 5 * count * 512, 5 * count * 512, 5 * count)
    assert grown < 100_000
    assert not live._live
    assert not live._replaced


def test_peak_of_totals_with_only_frees_is_zero():
    totals = AllocationTotals()
    totals.add(np.array([-5, -6, 3]))
    assert figures(totals) == (-8, 0, 3, 11, 1)
