"""The segment that contained an address, compared with a linear search."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

from ipygpumem.snapshot.model.segment_history import SEGMENT, find_range, find_segment


def linear_search(segments, address, event):
    for number, (begin, size, start, end) in enumerate(segments):
        if begin <= address < begin + size and start <= event < end:
            return number
    return -1


@pytest.mark.parametrize("seed", range(20))
def test_agrees_with_linear_search(seed):
    rng = random.Random(seed)
    segments, live = [], {}
    for event in range(-1, 120):
        for begin in [address for address in live if rng.random() < 0.2]:
            size, start = live.pop(begin)
            segments.append((begin, size, start, event))
        begin, size = rng.randrange(0, 60, 2), rng.choice([2, 4, 20])
        if all(begin + size <= at or at + other_size <= begin for at, (other_size, _) in live.items()):
            live[begin] = (size, event)
    segments += [(begin, size, start, 120) for begin, (size, start) in live.items()]
    rng.shuffle(segments)
    queries = [(rng.randrange(-2, 90), rng.randrange(-1, 120)) for _ in range(500)]
    columns = tuple(np.asarray(column, np.int64) for column in zip(*segments, strict=True))
    address, event = (np.asarray(column, np.int64) for column in zip(*queries, strict=True))
    assert find_segment(columns, address, event).tolist() == [linear_search(segments, *query) for query in queries]


def test_no_segments_and_no_addresses():
    empty = np.zeros(0, np.int64)
    assert find_segment((empty, empty, empty, empty), np.asarray([5]), np.asarray([1])).tolist() == [-1]
    single = np.asarray([1])
    assert find_segment((single, single, single, single), empty, empty).tolist() == []


def test_find_range():
    ranges = np.zeros(2, SEGMENT)
    ranges["address"], ranges["size"] = [10, 20], [5, 10]
    addresses = np.asarray([0, 9, 10, 14, 15, 20, 29, 30])
    assert find_range(ranges, addresses).tolist() == [-1, -1, 0, 0, -1, 1, 1, -1]
    assert find_range(ranges[:0], addresses).tolist() == [-1] * len(addresses)


def test_long_freed_segment():
    count = 5000
    address = np.arange(count, dtype=np.int64) * 10
    size, start, end = np.full(count, 5), np.full(count, 1), np.full(count, 9)
    size[0], end[0] = 1 << 40, 0
    start[0] = -1
    columns = (address, size, start, end)
    assert find_segment(columns, address[1:] + 4, np.full(count - 1, 5)).tolist() == list(range(1, count))
    assert find_segment(columns, address[1:] + 7, np.full(count - 1, 5)).tolist() == [-1] * (count - 1)


def test_segments_at_many_lower_addresses_take_little_time():
    count = 2000
    address = np.arange(count, dtype=np.int64) * 10
    size, start, end = np.full(count, 5), np.full(count, 1), np.full(count, 9)
    size[0], start[0], end[0] = 1 << 40, -1, 0
    queries = np.full(40_000, 50_000)
    began = time.process_time()
    assert (find_segment((address, size, start, end), queries, np.full(len(queries), 5)) == -1).all()
    assert time.process_time() - began < 0.5
