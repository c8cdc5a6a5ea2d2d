"""The summary and its notes on missing or inconsistent data."""

from __future__ import annotations

from ipygpumem.snapshot import Snapshot, sample
from ipygpumem.snapshot.queries.overview import overview
from snapshot.entries import block, event, segment

MIB = 1 << 20


def test_summary(two_runs):
    assert str(two_runs).splitlines() == [
        "GPU 0: peak 6.0 MiB requested, at event 2, 0.0 ms after the first event, in In[1]",
        "     4.0 MiB  67%  user/model.py:3 forward  (1 block)",
        "     2.0 MiB  33%  (older than the recording, without a stack)  (1 block)",
        "     0.0 MiB   0%  In[1]:5 <module>: y = torch.ones(250)  (1 block)",
        "  11 events; at the end 5.0 MiB requested, 5.0 MiB after rounding up; 22.0 MiB reserved (peak 22.0 MiB)",
        "  note: 1 block (2.0 MiB) is older than the first event",
        "  note: 3 allocation events were dropped from the ring buffer",
        "snapshot, torch 2.11.0",
    ]


def test_summary_of_the_sample_fits_a_screen():
    text = Snapshot.load(sample()).summary()
    assert text.startswith("GPU 0: peak 1.8 GiB requested, at event 285, 6.6 ms after the first event\n")
    assert sample().stat().st_size <= 100_000
    assert len(text.splitlines()) <= 24


def test_rounded_bytes_need_segments():
    trace = [event("alloc", 512, 5, 1)]
    assert overview(Snapshot.load({"device_traces": [trace]}), 0)["end"]["rounded"] is None
    assert overview(Snapshot.load({"device_traces": [trace], "segments": []}), 0)["end"]["rounded"] == 0


def overview_of(trace, segments):
    return overview(Snapshot.load({"device_traces": [trace], "segments": segments}), 0)


def test_note_about_events_without_a_time():
    trace = [event("alloc", 512, 10, 1), {"action": "free_completed", "addr": 512, "size": 10}]
    assert overview_of(trace, [])["notes"] == ["1 event has no timestamp, so timestamps are not used"]
    assert overview_of(trace[:1], [segment(0, 1024, [block(512, 512, 10)])])["notes"] == []


def test_notes_about_missing_times_and_segments():
    untimed = [{"action": "alloc", "addr": address, "size": 10} for address in (512, 1024)]
    metrics = overview(Snapshot.load({"device_traces": [untimed]}), 0)
    assert metrics["notes"] == [
        "the events have no timestamps",
        "reserved memory is unknown because the file has no segments",
    ]


def notes_of_repeated_events(count):
    frees = [event("free_completed", 512, 10, 3 + number) for number in range(count)]
    allocations = [event("alloc", 512, 10, 10 + number) for number in range(count + 1)]
    trace = [event("alloc", 512, 10, 1), event("free_completed", 512, 10, 2), *frees, *allocations]
    return overview_of(trace, [])["notes"][:2]


def test_notes_use_singular_and_plural():
    assert notes_of_repeated_events(1) == [
        "1 free without an allocation was ignored",
        "1 block without a recorded free is treated as freed when the address is reused",
    ]
    assert notes_of_repeated_events(2) == [
        "2 frees without an allocation were ignored",
        "2 blocks without a recorded free are treated as freed when the address is reused",
    ]


def test_note_about_segments_that_contradict_the_events():
    metrics = overview_of([event("segment_alloc", 512, 20 * MIB, 1)], [])
    assert metrics["notes"] == ["the segments contradict the events, so only the final reserved memory is known"]
    assert metrics["reserved"] == {"end": 0, "peak": None}


def test_notes_about_blocks():
    first = block(4096, 1024, 1000)
    second = block(4608, 1024, 1000)
    del second["requested_size"]
    metrics = overview_of([], [segment(4096, 2 * MIB, [first, second])])
    assert metrics["notes"][2:] == [
        "the rounded size is used for 1 block without a requested size",
        "1 block in the final allocator state is overlapped by another block; totals include both",
    ]
    assert metrics["end"]["requested"] == 2024
