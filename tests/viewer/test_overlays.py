"""What lies over the still picture: all cells, samples on the axis, labels that can be read."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from ipygpumem import Snapshot
from ipygpumem.viewer.axes import Paper
from ipygpumem.viewer.detail import columns
from ipygpumem.viewer.line_colors import parts
from ipygpumem.viewer.overlays import Level, highest, levels
from ipygpumem.viewer.picture import WIDTH, picture

MIB = 1 << 20
START = 1_700_000_000_000_000


def event(number, action="alloc", size=MIB, **more):
    frames = [{"filename": "/x/a.py", "line": 1, "name": "f"}]
    place = {"addr": 4096 + MIB * number, "size": size, "stream": 0, "time_us": START + number}
    return {"action": action, **place, "frames": frames, **more}


def loaded(events, own=None, segments=None):
    return Snapshot.load({"segments": segments or [], "device_traces": [events], **({"ipygpumem": own} if own else {})})


@pytest.fixture
def written(monkeypatch):
    """Every text that is written, with its place."""
    found = []
    write = Paper.text

    def text(self, x, y, text, *rest, **more):
        found.append((x, y, text))
        return write(self, x, y, text, *rest, **more)

    monkeypatch.setattr(Paper, "text", text)
    return found


def pixels(snapshot):
    image = Image.open(io.BytesIO(picture(snapshot).png)).convert("RGB")
    return np.asarray(image).astype(int)


def cell(number, start, end, filename=""):
    return {"number": number, "filename": filename, "start_us": START + start, "end_us": START + end}


def test_every_cell_is_drawn_to_the_last():
    cells = [cell(number + 1, number, number + 1) for number in range(300)]
    found = pixels(loaded([event(number) for number in range(300)], {"cells": cells}))
    scale = found.shape[1] / WIDTH
    band = found[round(68 * scale), round(72 * scale) : round(862 * scale)]
    # the first event has the moment before the recording to its left
    assert (band[12:].sum(axis=1) < 3 * 250).all(), "the band reaches to the end"


def test_a_cell_without_a_number_has_its_files_name(written):
    own = {"cells": [cell(None, 0, 90, "/home/somebody/with/a/long/path/run.py")]}
    picture(loaded([event(number) for number in range(100)], own))
    assert "run.py" in [text for _, _, text in written]


def test_the_last_tick_stands_at_its_tick(written):
    picture(loaded([event(number) for number in range(90)]))
    ticks = {text: x for x, _, text in written if text.isdigit()}
    step = ticks["20"] - ticks["10"]
    assert ticks["80"] - ticks["70"] == pytest.approx(step, abs=1)


def test_one_byte_is_not_nothing(written):
    picture(loaded([event(0, size=1)]))
    words = [text for _, _, text in written]
    assert "peak 1 B at event 0" in words
    assert "requested, at the end 1 B" in words
    assert not any("0.0 MiB" in text for text in words)


def test_lines_that_are_gone_at_the_peak_are_in_the_legend():
    other = [{"filename": "/x/b.py", "line": 9, "name": "g"}]
    events = [event(0, frames=other), event(0, "free_completed"), event(1, size=5 * MIB)]
    snapshot = loaded(events)
    entries = parts(snapshot, snapshot.timeline()).entries
    assert [(one.label, one.bytes) for one in entries] == [("x/a.py:1 f", 5 * MIB), ("1 line not alive at the peak", 0)]


def test_what_was_sampled_is_drawn_and_named(written):
    curve = {"device": 0, "time_us": [START, START + 50, START + 99], "bytes": [80 * MIB, 90 * MIB, 85 * MIB]}
    outside = {**curve, "bytes": [30 * MIB] * 3}
    own = {"curves": {"device used": curve, "outside PyTorch": outside}}
    events = [event(number) for number in range(100)]
    found = pixels(loaded(events, own))
    violet = (np.abs(found - [107, 74, 160]).sum(axis=2) < 60).sum()
    assert violet > 500
    words = [text for _, _, text in written]
    assert "device used, at most 90.0 MiB (sampled)" in words
    assert "outside PyTorch, at most 30.0 MiB (sampled)" in words
    far = {"curves": {"device used": {**curve, "bytes": [900 * MIB] * 3}}}
    written.clear()
    picture(loaded(events, far))
    assert "device used, at most 900.0 MiB (sampled), above the picture" in [text for _, _, text in written]


@pytest.mark.parametrize(
    "curve",
    [
        None,
        7,
        {},
        {"device": 0, "time_us": [1], "bytes": []},
        {"device": 0, "time_us": ["x"], "bytes": [1]},
        {"device": 1, "time_us": [1], "bytes": [1]},
        {"device": 0, "time_us": [1 << 70], "bytes": [1]},
    ],
)
def test_what_is_no_curve_is_left_out(curve):
    snapshot = loaded([event(0)], {"curves": {"device used": curve}})
    assert levels(snapshot, snapshot.timeline()) == []


def test_a_card_full_of_others_does_not_flatten_the_picture():
    level = Level("device used", np.array([0]), np.array([50 * MIB]))
    assert highest([level], 20 * MIB) == 50 * MIB
    assert highest([level], 10 * MIB) == 10 * MIB


def test_reserved_bytes_below_nothing_are_not_drawn():
    events = [event(0, "segment_alloc", size=20 * MIB), event(1)]
    assert columns(loaded(events).timeline(), 50).reserved is None


def test_the_peaks_words_lie_on_a_veil(monkeypatch):
    veils = []
    write = Paper.text

    def text(self, x, y, text, *rest, **more):
        veils.append((text, more.get("veil", False)))
        return write(self, x, y, text, *rest, **more)

    monkeypatch.setattr(Paper, "text", text)
    picture(loaded([event(0), *(event(n, "oom") for n in range(1, 40))]))
    assert [veil for text, veil in veils if text.startswith("peak ")] == [True]


def test_a_length_is_written_as_in_the_viewer(written):
    picture(loaded([event(0), event(326_000)]))
    assert any("2 events in 326 ms" in text for _, _, text in written)
