"""Texts that ``torch.cuda.memory._annotate_tensor`` attaches to allocations, in PyTorch's format."""

from __future__ import annotations

import random

import numpy as np

from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.annotations import annotate_events
from snapshot.entries import block, event, free_events, group_totals, segment


def annotate(address, text, time, size=512):
    fields = {"compile_context": "N/A", "user_metadata": text, "pool_id": (0, 0)}
    return event("annotate", address, size, time, [], **fields)


def load(*trace, segments=()):
    return Snapshot.load({"segments": list(segments), "device_traces": [list(trace)]})


def labels(snapshot, moment):
    return {label: count for label, (_, count) in group_totals(snapshot.live(moment).by("metadata")).items()}


def test_texts_are_attached_to_the_allocation_that_is_alive():
    snapshot = load(
        event("alloc", 0x1000, 10, 1, user_metadata="forward"),
        annotate(0x1000, "saved for backward", 2),
        annotate(0x1000, "layer 3", 3),
        annotate(0x1000, "layer 3", 4),
        *free_events(0x1000, 10, 5),
        annotate(0x1000, "freed", 7),
        event("alloc", 0x1000, 20, 8, user_metadata=""),
        event("alloc", 0x2000, 30, 9, user_metadata="forward"),
        annotate(0x1000, "second", 10),
        annotate(0x2000, "", 11),
    )
    assert labels(snapshot, 3) == {"forward; saved for backward; layer 3": 1}
    assert labels(snapshot, 10) == {"second": 1, "forward": 1}


def test_allocation_that_is_older_than_the_recording():
    segments = [segment(0x1000, 4096, [block(0x1000, 512, 500), block(0x1200, 512, 500)])]
    snapshot = load(annotate(0x1200, "weight", 1), annotate(0x9000, "unknown", 2), segments=segments)
    assert labels(snapshot, 1) == {"weight": 1, "(none)": 1}


def test_without_annotations_or_allocations():
    assert labels(load(event("alloc", 512, 1, 1, user_metadata="a")), 0) == {"a": 1}
    assert [*map(len, annotate_events(load(annotate(512, "a", 1)).timeline()))] == [0, 0]


def test_random_events():
    generator = random.Random(5)
    alive, trace, expected = {}, [], {}
    for time in range(400):
        address = 512 * generator.randrange(1, 9)
        if generator.random() < 0.5:
            trace.append(annotate(address, f"text {time}", time))
            if address in alive:
                expected.setdefault(alive[address], []).append(len(trace) - 1)
        elif address in alive:
            trace += free_events(address, 8, time)
            del alive[address]
        else:
            alive[address] = len(trace)
            trace.append(event("alloc", address, 8, time))
    timeline = load(*trace).timeline()
    starts = timeline.allocations.start.tolist()
    pairs = [(starts[row], event) for row, event in np.transpose(annotate_events(timeline)).tolist()]
    assert sorted(pairs) == sorted((start, event) for start, events in expected.items() for event in events)


def test_long_and_many_texts_are_shortened():
    texts = [f"{number}" * 1000 for number in range(1, 9)]
    snapshot = load(event("alloc", 512, 8, 1), *(annotate(512, text, 2) for text in texts))
    assert labels(snapshot, 8) == {"; ".join(str(number) * 200 for number in range(1, 6)): 1}
