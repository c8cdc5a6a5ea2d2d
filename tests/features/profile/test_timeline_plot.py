"""The static plot of a profile shows the timeline's data."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from fakes.timelines import random_timeline
from ipygpumem.features.profile import display as module
from ipygpumem.features.profile.categories import CATEGORIES
from ipygpumem.features.profile.display import profile_plot
from ipygpumem.features.profile.timeline import CategoryTimeline
from ipygpumem.viewer.plot_image import LEFT, MAX_BYTES, WIDTH, PlotLayout, style
from ipygpumem.viewer.write import script


def test_colors_match_the_page():
    text = script("categories.js").lower()
    assert all(color in text for color in module._COLORS)


def test_each_column_shows_its_highest_state():
    timeline = random_timeline(3000)
    rows = module._highest_rows(timeline, 200)
    time = timeline.time - timeline.start
    edges = np.linspace(0, timeline.end - timeline.start, 201)
    for column in range(200):
        changes = np.flatnonzero((time > edges[column]) & (time < edges[column + 1])) + 1
        before = int((time <= edges[column]).sum())
        assert timeline.total[rows[column]] == max(timeline.total[changes].max(initial=0), timeline.total[before])
    assert timeline.peak[0] in rows


def test_each_layer_has_the_height_of_its_bytes():
    timeline, scale = random_timeline(300, reserved=False), 4
    with style():
        layout = PlotLayout(400, scale)
        module._draw_panel(layout, timeline, 50)
        plot = layout.pixels()[50 * scale : (50 + module._PLOT_HEIGHT) * scale, :, :3]
    rows = module._highest_rows(timeline, layout.columns)
    unit = float(timeline.total.max()) * module._HEADROOM / len(plot)
    for column in (1500, 2000, 2500, layout.columns - 20):
        pixels = plot[:, LEFT * scale + column]
        for category, color in enumerate(module._COLORS):
            height = (pixels == [int(color[at : at + 2], 16) for at in (1, 3, 5)]).all(axis=1).sum() * unit
            # the axis covers one pixel of the lowest layer
            assert height == pytest.approx(timeline.usage[rows[column], category], abs=scale * unit)


def test_plot():
    plot = profile_plot((random_timeline(5000), random_timeline(20, "cpu", 2, reserved=False)), "my $name$.html")
    assert len(plot.png) <= MAX_BYTES
    image = Image.open(io.BytesIO(plot.png))
    assert plot.width == WIDTH
    assert image.width / plot.width == image.height / plot.height
    assert plot.text.startswith("cuda:0: peak ")
    assert "; cpu: peak " in plot.text


def test_many_devices(monkeypatch):
    monkeypatch.setattr(PlotLayout, "png", lambda _: b"")  # only the number of plots matters
    timelines = tuple(random_timeline(50, f"cuda:{number}", number) for number in range(6))
    assert len(profile_plot(timelines, "x").text.split("; ")) == 4


def test_single_change():
    base = np.zeros(len(CATEGORIES), np.int64)
    timeline = CategoryTimeline(
        "cpu", base, np.array([7]), np.array([-1], np.int8), np.array([7], np.int8), np.array([3]), start=7, end=7
    )
    assert profile_plot((timeline,), "x").text == "cpu: peak 0.0 MiB after 0.0 ms"
