"""Segments and blocks after any event."""

from __future__ import annotations

import time

import numpy as np

from ipygpumem.snapshot import Snapshot
from snapshot import malicious_files
from snapshot.entries import event, segment

MIB = 1 << 20


def test_state_at(two_runs):
    state = two_runs.state_at(3)
    assert state.requested == 6 * MIB + 1000
    assert state.reserved == 22 * MIB
    assert [(b["address"], b["pending"], b["rounded"]) for b in state.to_dict()["blocks"]] == [
        (0x10000, True, -1),
        (0x10000 + 4 * MIB, False, 1024),
        (0x9000000, False, 2 * MIB),
    ]
    assert two_runs.timeline().allocations.name(state.blocks["row"][0]) == "b10000_0"
    assert two_runs.stacks.stack(int(state.segments["stack"][0]))[0].name == "linear"


def test_mapped_ranges_at_every_event():
    random = np.random.default_rng(0)
    pages: dict[int, set[int]] = {0: set(), 7: set()}
    trace, truth = [], []
    for time_us in range(1, 200):
        stream = int(random.choice([0, 7]))
        page = int(random.integers(0, 30)) + 100 * stream
        mapped = page in pages[stream]
        (pages[stream].remove if mapped else pages[stream].add)(page)
        trace.append(
            {**event("segment_unmap" if mapped else "segment_map", page * 2 * MIB, 2 * MIB, time_us), "stream": stream}
        )
        truth.append({stream: set(pages_found) for stream, pages_found in pages.items()})
    ends = [
        {**segment(page * 2 * MIB, 2 * MIB, [], is_expandable=True), "stream": stream}
        for stream, pages_found in pages.items()
        for page in sorted(pages_found)
    ]
    snapshot = Snapshot.load({"device_traces": [trace], "segments": ends})
    for number, pages_then in enumerate(truth):
        state = snapshot.state_at(number)
        pages_found: dict[int, set[int]] = {0: set(), 7: set()}
        for row in state.segments:
            first = int(row["address"]) // (2 * MIB)
            pages_found[int(row["stream"])] |= set(range(first, first + int(row["size"]) // (2 * MIB)))
        assert pages_found == pages_then
        assert len(state.segments) == sum(
            page - 1 not in stream_pages for stream_pages in pages_then.values() for page in stream_pages
        )


def test_addresses_that_are_slow_keys_of_a_dict():
    addresses, slow = malicious_files.slow_integers(15)
    trace = [event("segment_alloc", address, 1, 1) for address in addresses]
    trace += [event("segment_free", slow, 0, 2) for _ in range(30_000)]
    snapshot = Snapshot.load({"device_traces": [trace], "segments": []})
    start = time.process_time()
    assert len(snapshot.state_at(len(trace) - 1).segments) == len(addresses)
    assert time.process_time() - start < 1  # took several seconds with addresses as keys of a dict
