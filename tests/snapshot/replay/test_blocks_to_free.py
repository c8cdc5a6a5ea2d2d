"""The smallest set of blocks to free, compared with a search over all sets of a few blocks."""

import copy
import itertools
import random

import pytest

from ipygpumem.core.units import MIB
from ipygpumem.snapshot.replay.allocator import SimulatedOutOfMemoryError
from ipygpumem.snapshot.replay.blockers import pages_to_unmap
from ipygpumem.snapshot.replay.settings_comparison import compare_settings
from snapshot.replay.test_expandable_pools import Program

_LIMIT = 160 * MIB


def _failing(seed, *, by_fraction):
    numbers, program = random.Random(seed), Program()
    program.allocator.limit, program.allocator._by_fraction = _LIMIT, by_fraction
    live = []
    while True:
        size = numbers.choice([numbers.randint(1, 2047) * 512, numbers.randint(2, 140) * MIB // 2])
        known = len(program.allocator.events)
        try:
            live.append(program.allocate(0, size))
        except SimulatedOutOfMemoryError:
            program._segment_events(known)
            break
        if numbers.random() < 0.4:
            program.free(live.pop(numbers.randrange(len(live))))
    return program, size, _snapshot(program, size, by_fraction=by_fraction)


def _snapshot(program, size, *, by_fraction=False):
    limit = program.allocator.limit
    free = (1 << 36) if by_fraction else limit - program.allocator.reserved
    event = {"action": "oom", "size": size, "stream": 0, "time_us": len(program.trace), "device_free": free}
    program.trace.append(event | {"frames": []})
    return program.snapshot(devices=[{"index": 0, "total": 1 << 34, "limit": limit if by_fraction else None}])


def _served_without(program, addresses, size):
    allocator = copy.deepcopy(program.allocator)
    allocator._choose_address = lambda _: 1 << 45
    for address in addresses:
        number, whole = program.live[address]
        allocator.free(number, address, whole)
    try:
        allocator.allocate(int(size <= MIB), size, 0)
    except SimulatedOutOfMemoryError:
        return False
    return True


@pytest.mark.parametrize("by_fraction", [False, True])
def test_smallest_set_in_expandable_segments(by_fraction):
    counts = []
    for seed in range(24):
        program, size, snapshot = _failing(seed, by_fraction=by_fraction)
        found = compare_settings(snapshot, settings=["max_split_size_mb:512"]).blockers.smallest
        sizes = {address: whole for address, (_, whole) in program.live.items()}
        addresses = [int(snapshot.timeline().allocations.address[row]) for row in found.rows]
        assert _served_without(program, addresses, size)
        assert found.bytes == sum(sizes[address] for address in addresses)
        sets = (chosen for count in (1, 2) for chosen in itertools.combinations(sizes, count))
        smaller = (chosen for chosen in sets if sum(sizes[address] for address in chosen) < found.bytes)
        assert not any(_served_without(program, chosen, size) for chosen in smaller)
        counts.append(len(addresses))
    assert max(counts) > 2


@pytest.mark.parametrize("limit", ["_MAX_PAGES", "_MAX_ENTRIES", "STEPS_PER_SECOND"])
def test_long_searches_are_left_out(monkeypatch, limit):
    _, _, snapshot = _failing(3, by_fraction=False)
    assert not compare_settings(snapshot, settings=["max_split_size_mb:512"]).blockers.smallest.contiguous
    monkeypatch.setattr(pages_to_unmap, limit, 1)
    found = compare_settings(snapshot, settings=["max_split_size_mb:512"]).blockers.smallest
    assert found is None or found.contiguous
