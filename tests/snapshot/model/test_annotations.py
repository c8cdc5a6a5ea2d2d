"""START and END entries are matched, and the regions between them are nested."""

from __future__ import annotations

import time

from ipygpumem.snapshot import Snapshot

MIB = 1 << 20


def test_annotations_are_paired_and_nested(two_runs):
    assert [(a.name, a.start_us, a.end_us, a.depth, a.ambiguous) for a in two_runs.annotations()] == [
        ("step", 100, 150, 0, False),
        ("inner", 101, 102, 1, False),
        ("step", 200, 210, 0, False),
    ]


def test_overlapping_and_open_regions_are_marked():
    steps = [("a", "START", 1), ("b", "START", 2), ("a", "END", 3), ("b", "END", 4), ("c", "END", 5), ("d", "START", 6)]
    entries = [{"name": n, "stage": s, "device": 0, "time_us": t} for n, s, t in steps]
    regions = Snapshot.load({"device_traces": [], "external_annotations": entries}).annotations()
    assert [(a.name, a.start_us, a.end_us, a.ambiguous) for a in regions] == [
        ("c", None, 5, False),
        ("a", 1, 3, True),
        ("b", 2, 4, True),
        ("d", 6, None, False),
    ]


def test_regions_of_one_device(two_runs):
    assert len(two_runs.annotations()) == len(two_runs.annotations(0)) == 3
    assert two_runs.annotations(1) == ()


def seconds(work):
    start = time.process_time()
    work()
    return time.process_time() - start


def test_many_open_regions_take_linear_time():
    def nested(count, *, crossed):
        names = [str(number) for number in range(count)]
        ends = names if crossed else names[::-1]
        entries = [("START", name) for name in names] + [("END", name) for name in ends]
        marks = [
            {"stage": stage, "name": name, "device": 0, "time_us": number}
            for number, (stage, name) in enumerate(entries)
        ]
        return lambda: Snapshot.load({"segments": [], "external_annotations": marks})

    short_time, long_time = (min(seconds(nested(count, crossed=False)) for _ in range(3)) for count in (3000, 30000))
    assert long_time < 40 * max(short_time, 0.01)
    assert len(nested(50, crossed=True)().annotations()) == 50
