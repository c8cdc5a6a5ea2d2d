"""Plots of a session: the heights of the bars correspond to the values in the reports."""

from __future__ import annotations

import dataclasses
import functools
import io
import sys

import numpy as np
import pytest
from PIL import Image

from fakes.reports import before, report
from fakes.sessions import MIB, cell, session
from ipygpumem.core.errors import OptionError
from ipygpumem.features.history import plot as module
from ipygpumem.features.history.model import changed_rows
from ipygpumem.features.history.plot import history_plot
from ipygpumem.viewer.plot_image import INK, LEFT, MAX_BYTES, PLOT_WIDTH, RIGHT, WIDTH, PlotLayout, style

SCALE = 2
HEIGHT = module._PLOT_HEIGHT * SCALE


def render(reports):
    return history_plot(changed_rows(reports), "this session")


class Plot:
    """Plot of one device: pixels of shape (height, columns, 3) and the center column of each bar."""

    def __init__(self, reports):
        rows = changed_rows(reports)
        self.panel = module._DevicePanel(rows[0].device, rows)
        with style():
            sheet = PlotLayout(400, SCALE)
            module._draw_panel(sheet, self.panel, 100)
            pixels = sheet.pixels()
        self.pixels = pixels[100 * SCALE : 100 * SCALE + HEIGHT, LEFT * SCALE : (WIDTH - RIGHT) * SCALE, :3]
        bars = max(len(rows), PLOT_WIDTH / module._MAX_BAR)
        self.centers = ((np.arange(len(rows)) + 0.5) * PLOT_WIDTH * SCALE / bars).astype(int)

    def mask(self, color):
        return (self.pixels == [int(color[at : at + 2], 16) for at in (1, 3, 5)]).all(axis=2)

    def mib(self, color, column):
        """Return the height of a color in a column of pixels, converted to MiB."""
        return float(self.mask(color)[:, column].sum()) * self.panel.limit / HEIGHT / MIB


def test_each_bar_has_the_height_of_its_values():
    plot = Plot([cell(1, held=500, peak=2000), cell(2, held=100, level=600, outside=300, peak=1900)])
    tolerance = 2 * plot.panel.limit / HEIGHT
    for row, column in zip(plot.panel.rows, plot.centers, strict=True):
        for name, (color, _) in plot.panel.colors.items():
            level = getattr(row, name) / MIB
            # the line at the peak is two pixels thick
            assert level - 2.5 * SCALE * tolerance / MIB < plot.mib(color, column) < level + tolerance / MIB, name
        (line,) = np.nonzero(plot.mask(INK)[:, column])
        peak = (HEIGHT - line[line < HEIGHT - SCALE].mean() - 0.5) / HEIGHT * plot.panel.limit
        assert peak == pytest.approx(row.peak_level + row.outside_level + row.others_level, abs=tolerance)


def test_bars_narrower_than_a_pixel_show_the_highest():
    spikes = [734, 1345, 2321]
    plot = Plot([cell(number, held=2500 if number in spikes else 0) for number in range(2500)])
    (columns,) = np.nonzero(plot.mask(plot.panel.colors["allocated"][0]).sum(axis=0) > HEIGHT / 3)
    assert columns.tolist() == pytest.approx(plot.centers[spikes].tolist(), abs=2)


@pytest.mark.parametrize("count", [1, 2, 30, 200, 760])
def test_every_bar_is_visible_while_there_is_space(count):
    plot = Plot([cell(number, success=number % 2 == 1) for number in range(count)])
    assert plot.mask(module._FAILED)[0, plot.centers].tolist() == [number % 2 == 0 for number in range(count)]


def test_failed_cells_are_marked():
    plot = Plot([cell(1), cell(2, success=False), cell(3, end={"ooms": 1})])
    assert plot.mask(module._FAILED)[0, plot.centers].tolist() == [False, True, True]


def test_capacity_is_visible_if_usage_is_near():
    low_usage, high_usage = (Plot([report]).panel for report in (cell(1), cell(1, held=60_000, peak=60_000)))
    assert low_usage.limit < low_usage.capacity
    assert high_usage.limit > high_usage.capacity


@pytest.mark.parametrize("count", [0, 1, 300, 2500])
def test_file_is_small_for_any_session(count):
    image = render(session(count))
    assert len(image.png) <= MAX_BYTES
    assert image.width == WIDTH
    assert Image.open(io.BytesIO(image.png)).size[0] >= WIDTH
    assert ("cuda:0: highest usage" in image.text) is bool(count)


def test_each_device_and_the_host_have_a_plot(monkeypatch):
    monkeypatch.setattr(
        module.plot_image, "render", functools.partial(module.plot_image.render, scales=[1.0])
    )  # the fastest
    host = dataclasses.replace(cell(3), devices={})
    one_device, two_devices = render([cell(1)]), render([cell(1), cell(2, name="cuda:1")])
    assert two_devices.height > one_device.height
    assert two_devices.text.count("highest usage") == 2
    assert render([host]).text.startswith("host: highest usage 200.0 MiB")


def test_unknown_values_are_not_drawn():
    plot = Plot([report(before(), before(process=None, others=None, mode="torch-only"), peak=None)])
    (column,) = plot.centers
    levels = {name: plot.mib(color, column) for name, (color, _) in plot.panel.colors.items()}
    assert levels["outside_level"] == levels["others_level"] == 0
    assert levels["allocated"] > 0
    assert not plot.mask(INK).any(), "the peak is unknown"


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OptionError, match="pip install matplotlib"):
        render([cell(1)])
