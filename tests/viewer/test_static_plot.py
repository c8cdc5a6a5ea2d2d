"""The static image of a snapshot is exact, small, and independent of the user's matplotlib settings."""

from __future__ import annotations

import importlib.util
import io
import sys
import time

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.text import Text
from PIL import Image

from ipygpumem import Snapshot
from ipygpumem.core.errors import DeviceError, OptionError
from ipygpumem.viewer.plot_image import MAX_BYTES, SCALES, WIDTH, PlotLayout
from ipygpumem.viewer.stacked_allocations import line_colors, pixel_columns
from ipygpumem.viewer.static_plot import sampled_curves, static_image  # _curves
from snapshot import files

FRAME = {"filename": "/x/a.py", "line": 1, "name": "f"}


def event(action="alloc", addr=4096, size=1 << 20, **fields):
    return {"action": action, "addr": addr, "size": size, "stream": 0, "time_us": 5, "frames": [FRAME], **fields}


def opened(still):
    image = Image.open(io.BytesIO(still.png))
    image.load()
    return image


@pytest.fixture
def low_resolution(monkeypatch):
    """Draw images at the lowest scale, which takes a third of the time."""
    monkeypatch.setattr("ipygpumem.viewer.static_plot.SCALES", SCALES[-1:])


@pytest.mark.parametrize("name", ["oom_fragmented", "gpt_100k"])
def test_file_is_small_with_high_resolution(name):
    snapshot = Snapshot.load(files.path(name))
    still = static_image(snapshot)
    image = opened(still)
    assert len(still.png) <= MAX_BYTES
    assert still.width == WIDTH
    assert image.size[0] >= 1.5 * WIDTH
    assert image.size[0] / image.size[1] == pytest.approx(still.width / still.height, rel=0.01)
    assert still.text == snapshot.summary()


@pytest.mark.usefixtures("low_resolution")
def test_peak_is_at_its_event():
    """The color of one allocation among thousands covers exactly the pixels of this allocation."""
    low = [event(addr=1 << 30, size=1), event("free_completed", addr=1 << 30, size=1)]
    trace = [event(addr=8192, size=100 << 20), *low * 30, event("free_completed", 8192, 100 << 20), *low * 2000]
    still = static_image(Snapshot.load({"segments": [], "device_traces": [trace]}))
    pixels = np.asarray(opened(still).convert("RGB")).astype(int)
    scale = pixels.shape[1] / WIDTH
    # the plot: 100 of 116 MiB
    plot = pixels[round(62 * scale) : round(362 * scale), round(70 * scale) : round(864 * scale)]
    blue = (np.abs(plot - [119, 170, 221]).sum(axis=2) < 130) & (plot[:, :, 2] - plot[:, :, 0] > 60)
    rows, columns = np.nonzero(blue)
    assert columns.max() == pytest.approx(794 * scale * 63 / 4063, abs=3)
    assert columns.min() < 3
    assert rows.max() == pytest.approx(300 * scale, abs=3)
    assert rows.min() == pytest.approx(300 * scale * (1 - 1 / 1.16), abs=3)


@pytest.mark.usefixtures("low_resolution")
def test_user_settings_are_neither_used_nor_changed():
    snapshot = load_events([numbered(number) for number in range(9)])
    expected = static_image(snapshot).png
    changes = {"font.size": 31.0, "axes.facecolor": "black", "text.color": "red", "lines.linewidth": 9.0}
    with mpl.rc_context(changes):
        mpl.rcParams["path.sketch"] = (9, 9, 9)
        before = dict(mpl.rcParams)
        assert static_image(snapshot).png == expected
        assert dict(mpl.rcParams) == before


@pytest.mark.usefixtures("low_resolution")
def test_pyplot_is_not_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    for name in ("plot_image", "static_plot"):  # also when these modules are imported
        spec = importlib.util.find_spec(f"ipygpumem.viewer.{name}")
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    static_image(load_events([event()]))


def test_many_live_blocks_have_a_coarser_picture(monkeypatch):
    monkeypatch.setattr("ipygpumem.viewer.static_plot._MANY_LIVE", 500)
    trace = [event(addr=512 * number, size=512, time_us=number) for number in range(1200)]
    still = static_image(Snapshot.load({"segments": [], "device_traces": [trace]}))
    assert opened(still).size[0] == WIDTH


HOSTILE = "</script><img onerror=alert(1)>$\\frac{$ %s \x1b[31m \u202e \ud800 日本語 🔥 _^{"


@pytest.mark.parametrize(
    ("snapshot", "text"),
    [
        ({"segments": [], "device_traces": []}, "no device used memory"),
        ({"segments": [], "device_traces": [[]]}, "no device used memory"),
        ({"segments": [], "device_traces": [[event()]]}, "peak 1.0 MiB"),
        ({"segments": [], "device_traces": [[event(size=0)]]}, "peak 0.0 MiB"),
        ({"segments": [], "device_traces": [[event(addr=(1 << 53) + 4096, size=1 << 48)]]}, "peak 262144.0 GiB"),
        ({"segments": [], "device_traces": [[event(), event("oom", size=1 << 40)]]}, "out of memory once"),
        ({"segments": [], "device_traces": [[event(frames=[{**FRAME, "name": HOSTILE, "filename": HOSTILE}])]]}, "MiB"),
        ({"device_traces": [[event()]]}, "peak 1.0 MiB"),
        (
            {
                "segments": [
                    {
                        "device": 0,
                        "address": 4096,
                        "total_size": 2 << 20,
                        "stream": 0,
                        "segment_type": "small",
                        "blocks": [{"address": 4096, "size": 512, "requested_size": 400, "state": "active_allocated"}],
                    }
                ],
                "device_traces": [[]],
            },
            "no events were recorded",
        ),
    ],
)
@pytest.mark.usefixtures("low_resolution")
def test_unusual_files_have_a_picture(snapshot, text):
    still = static_image(Snapshot.load(snapshot))
    assert text in still.text
    assert len(still.png) <= MAX_BYTES
    assert opened(still).size[0] >= WIDTH


def test_unknown_device():
    with pytest.raises(DeviceError, match="no device 7"):
        static_image(files.snapshot("gpt_small"), 7)


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OptionError, match="matplotlib is required for images: pip install matplotlib"):
        static_image(files.snapshot("gpt_small"))


MIB = 1 << 20
START = 1_700_000_000_000_000


def numbered(number, action="alloc", size=MIB, **fields):
    return event(action, 4096 + MIB * number, size, **{"time_us": START + number, **fields})


def load_events(events, metadata=None):
    return Snapshot.load({"segments": [], "device_traces": [events], **({"ipygpumem": metadata} if metadata else {})})


def cell(number, start, end, filename=""):
    return {"number": number, "filename": filename, "start_us": START + start, "end_us": START + end}


@pytest.fixture
def texts(monkeypatch, low_resolution):
    """Return every text of a plot, with its center in CSS pixels."""
    positions = {}
    pixels = PlotLayout.pixels

    def record_texts(sheet):
        image = pixels(sheet)
        positions.clear()
        for text in sheet.figure.findobj(Text):
            if text.get_text() and text.get_visible():
                extent = text.get_window_extent()
                positions[text.get_text()] = (extent.x0 + extent.x1) / 2 / sheet.scale
        return image

    monkeypatch.setattr(PlotLayout, "pixels", record_texts)

    def texts_of(snapshot):
        static_image(snapshot)
        return positions

    return texts_of


@pytest.mark.usefixtures("low_resolution")
def test_every_cell_has_a_band():
    cells = [cell(number + 1, number, number + 1) for number in range(300)]
    still = static_image(load_events([numbered(number) for number in range(300)], {"cells": cells}))
    pixels = np.asarray(opened(still).convert("RGB")).astype(int)
    scale = pixels.shape[1] / WIDTH
    band = pixels[round(70 * scale), round(72 * scale) : round(862 * scale)]
    # the state before the recording is to the left of the first event
    assert (band[12:].sum(axis=1) < 3 * 250).all()


def test_cell_without_number_has_the_name_of_its_file(texts):
    metadata = {"cells": [cell(None, 0, 90, "/home/user/with/a/long/path/run.py")]}
    assert "run.py" in texts(load_events([numbered(number) for number in range(100)], metadata))


def test_tick_labels_are_at_their_events(texts):
    ticks = {
        text: x for text, x in texts(load_events([numbered(number) for number in range(90)])).items() if text.isdigit()
    }
    step = ticks["20"] - ticks["10"]
    assert step == pytest.approx(794 / 91 * 10, abs=1)
    assert ticks["80"] - ticks["70"] == pytest.approx(step, abs=1)


def test_single_byte_is_not_rounded_to_zero(texts):
    positions = texts(load_events([numbered(0, size=1)]))
    assert "peak 1 B at event 0" in positions
    assert "requested (1 B at the end)" in positions
    assert not any("0.0 MiB" in text for text in positions)


def test_legend_mentions_lines_freed_before_peak():
    other_frames = [{"filename": "/x/b.py", "line": 9, "name": "g"}]
    events = [numbered(0, frames=other_frames), numbered(0, "free_completed"), numbered(1, size=5 * MIB)]
    snapshot = load_events(events)
    legend = [(entry.label, entry.bytes) for entry in line_colors(snapshot, snapshot.timeline()).legend]
    assert legend == [("x/a.py:1 f", 5 * MIB), ("1 line with no memory in use at the peak", 0)]


def test_sampled_curves_are_drawn_and_named(texts):
    curve = {"device": 0, "time_us": [START, START + 50, START + 99], "bytes": [80 * MIB, 90 * MIB, 85 * MIB]}
    constant_curve = {**curve, "bytes": [30 * MIB] * 3}
    events = [numbered(number) for number in range(100)]
    snapshot = load_events(events, {"curves": {"device used": curve, "outside PyTorch": constant_curve}})
    pixels = np.asarray(opened(static_image(snapshot)).convert("RGB")).astype(int)
    assert (np.abs(pixels - [107, 74, 160]).sum(axis=2) < 60).sum() > 500
    assert {"device used, peak 90.0 MiB (sampled)", "outside PyTorch, peak 30.0 MiB (sampled)"} <= {*texts(snapshot)}
    other_processes = {"curves": {"device used": {**curve, "bytes": [900 * MIB] * 3}}}
    assert "device used, peak 900.0 MiB (sampled), above the plot" in texts(load_events(events, other_processes))


def test_negative_reserved_bytes_are_not_drawn():
    events = [numbered(0, "segment_alloc", size=20 * MIB), numbered(1)]
    assert pixel_columns(load_events(events).timeline(), 50).reserved is None


def test_peak_label_is_readable_over_other_lines():
    """The label's background hides the lines of out-of-memory events."""
    still = static_image(load_events([numbered(0), *(numbered(number, "oom") for number in range(1, 40))]))
    pixels = np.asarray(opened(still).convert("RGB")).astype(int)
    scale = pixels.shape[1] / WIDTH
    red = (pixels[:, :, 0] > 150) & (pixels[:, :, 1] < 90)

    def red_pixels(top):
        return red[round(top * scale) : round((top + 10) * scale), round(110 * scale) : round(220 * scale)].sum()

    assert red_pixels(90) > 100
    assert red_pixels(69) < red_pixels(90) / 10


def test_duration_is_formatted_as_in_the_viewer(texts):
    assert any("2 events in 326 ms" in text for text in texts(load_events([numbered(0), numbered(326_000)])))


@pytest.mark.parametrize(("size", "reaches_above"), [(20, ""), (10, ", above the plot")])
def test_device_full_of_other_processes_does_not_flatten_the_picture(texts, size, reaches_above):
    curve = {"device": 0, "time_us": [START], "bytes": [50 * MIB]}
    snapshot = load_events([numbered(0, size=size * MIB)], {"curves": {"device used": curve}})
    assert f"device used, peak 50.0 MiB (sampled){reaches_above}" in texts(snapshot)


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
def test_malformed_curves_are_ignored(curve):
    metadata = {"curves": {"device used": curve, "outside PyTorch": {"device": 0, "time_us": [4, 6], "bytes": [1, 2]}}}
    snapshot = load_events([event()], metadata)
    (sampled,) = sampled_curves(snapshot, snapshot.timeline())
    assert (sampled.name, sampled.event.tolist(), sampled.bytes.tolist()) == ("outside PyTorch", [-1, 0], [1, 2])


@pytest.mark.usefixtures("low_resolution")
def test_many_cells_are_drawn_in_limited_time():
    """A matplotlib patch for each of 20,000 cells took 25 s."""
    events = [event(time_us=number, addr=512 * number) for number in range(100)]
    cells = [{"number": number, "filename": "c", "start_us": number % 90, "end_us": 100} for number in range(20_000)]
    snapshot = Snapshot.load({"segments": [], "device_traces": [events], "ipygpumem": {"cells": cells}})
    start = time.thread_time()
    static_image(snapshot)
    assert time.thread_time() - start < 6
