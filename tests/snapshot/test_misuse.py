"""Words that mean nothing get one line; what comes often does not take for ever."""

from __future__ import annotations

import io
import json
import math
import time

import numpy as np
import pytest

from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot import Snapshot, diff, to_frame
from ipygpumem.snapshot.export.event_table import write_csv
from ipygpumem.snapshot.model import mapped_ranges
from ipygpumem.snapshot.model.stacks import is_user_file
from snapshot.entries import block, event, segment

MIB = 1 << 20


@pytest.fixture
def small():
    trace = [
        event("segment_alloc", 512, 20 * MIB, 1),
        event("alloc", 512, 1000, 2),
        event("alloc", 4096, 2000, 3),
        event("free_requested", 4096, 2000, 4),
        event("free_completed", 4096, 2000, 5),
    ]
    return Snapshot.load({"device_traces": [trace], "segments": [segment(512, 20 * MIB, [block(512, 1024, 1000)])]})


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda s: s.timeline("0"), "'0' is not a device: expected its index, an integer"),
        (lambda s: s.annotations("0"), "'0' is not a device: expected its index, an integer"),
        (lambda s: s.live(device=True), "True is not a device: expected its index, an integer"),
        (lambda s: s.live().by(["line"]), "cannot group by ['line']: choose from"),
        (lambda s: s.fragmentation(need="much"), "'much' is no size"),
        (lambda s: s.fragmentation(need=-5), "the size of an allocation must be at least one byte, not -5"),
        (lambda s: s.allocated("0"), "'0' is not a time: expected microseconds since 1970"),
        (lambda s: s.allocated(math.nan), "nan is not a time: expected microseconds since 1970"),
        (lambda s: diff(s, "b"), "cannot compare 'str': expected a snapshot"),
        (lambda s: to_frame(s.state_at(1)), "a state has two tables"),
    ],
)
def test_one_line(small, ask, message):
    with pytest.raises(OptionError) as caught:
        ask(small)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_sizes_may_be_texts_and_events_numpy_s(small):
    assert small.fragmentation(need="1 KiB").fit.requested == 1024
    place = small.allocated().event[2]
    assert isinstance(place, np.int64)
    for answer in (small.fragmentation(place), small.state_at(place), small.live(place)):
        json.dumps(answer.to_dict())


def test_a_table_is_no_formula_and_moves_no_cursor():
    trace = [
        event("alloc", 512, 8, 1, [{"filename": "=cmd|'x'!A1", "line": 1, "name": "\x1b[2Jf"}], user_metadata="-1")
    ]
    file = io.StringIO()
    write_csv(Snapshot.load({"device_traces": [trace]}), file)
    assert file.getvalue().splitlines()[1].split(",")[-5:] == ["'=cmd|'x'!A1", "1", " [2Jf", "", "'-1"]


def test_libraries_of_other_pythons_are_not_the_user_s_code():
    for file in (
        "/opt/py/lib/python3.13t/copy.py",
        r"C:\Python312\Lib\copy.py",
        r"C:\Users\me\miniconda3\envs\ml\Lib\copy.py",
        r"C:\Users\me\.pyenv\pyenv-win\versions\3.12.1\Lib\copy.py",
        "/home/me/pytorch/torch/functional.py",
        "<lambdifygenerated-1>",
    ):
        assert not is_user_file(file), file
    for file in ("/home/me/torch/train.py", r"D:\me\Lib\train.py", "/home/me/lib/copy.py", "<stdin>"):
        assert is_user_file(file), file


def seconds(work):
    began = time.process_time()
    work()
    return time.process_time() - began


def test_regions_closed_in_the_order_of_their_beginning_take_no_longer():
    def nested(count, *, crossed):
        names = [str(number) for number in range(count)]
        ends = names if crossed else names[::-1]
        entries = [("START", name) for name in names] + [("END", name) for name in ends]
        marks = [
            {"stage": stage, "name": name, "device": 0, "time_us": number}
            for number, (stage, name) in enumerate(entries)
        ]
        return lambda: Snapshot.load({"segments": [], "external_annotations": marks})

    few, many = (seconds(nested(count, crossed=False)) for count in (3000, 30000))
    assert many < 40 * max(few, 0.01)
    assert len(nested(50, crossed=True)().annotations()) == 50


def test_ooms_are_the_last_hundred():
    trace = [{"action": "oom", "size": number, "device_free": 1, "time_us": number} for number in range(1, 301)]
    snapshot = Snapshot.load({"device_traces": [trace]})
    assert [oom.asked for oom in snapshot.ooms()] == list(range(201, 301))
    assert len(snapshot.ooms(last=None)) == 300


@pytest.mark.parametrize("every", [1, 3, 8192])
def test_mapped_ranges_at_every_event(monkeypatch, every):
    monkeypatch.setattr(mapped_ranges, "_MIN_STEP", every)
    random = np.random.default_rng(0)
    pages: dict[int, set[int]] = {0: set(), 7: set()}
    trace, truth = [], []
    for time_us in range(1, 200):
        stream = int(random.choice([0, 7]))
        page = int(random.integers(0, 30)) + 100 * stream
        inside = page in pages[stream]
        (pages[stream].remove if inside else pages[stream].add)(page)
        trace.append(
            {**event("segment_unmap" if inside else "segment_map", page * 2 * MIB, 2 * MIB, time_us), "stream": stream}
        )
        truth.append({stream: set(found) for stream, found in pages.items()})
    ends = [
        {**segment(page * 2 * MIB, 2 * MIB, [], is_expandable=True), "stream": stream}
        for stream, found in pages.items()
        for page in sorted(found)
    ]
    snapshot = Snapshot.load({"device_traces": [trace], "segments": ends})
    for number, pages_then in enumerate(truth):
        state = snapshot.state_at(number)
        found: dict[int, set[int]] = {0: set(), 7: set()}
        for row in state.segments:
            first = int(row["address"]) // (2 * MIB)
            found[int(row["stream"])] |= set(range(first, first + int(row["size"]) // (2 * MIB)))
        assert found == pages_then
        assert len(state.segments) == sum(page - 1 not in mine for mine in pages_then.values() for page in mine)
