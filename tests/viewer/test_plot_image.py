"""Ticks at round values and text inside the plot."""

from __future__ import annotations

import pytest

from ipygpumem.core.units import GIB, KIB, MIB
from ipygpumem.viewer.plot_image import PlotLayout, byte_ticks, event_ticks, style, time_ticks


def labels(ticks):
    return [label for _, label in ticks]


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        (2 * GIB, ["0", "0.5 GiB", "1 GiB", "1.5 GiB", "2 GiB"]),
        (700 * MIB, ["0", "128 MiB", "256 MiB", "384 MiB", "512 MiB", "640 MiB"]),
        (5.5 * KIB, ["0", "1 KiB", "2 KiB", "3 KiB", "4 KiB", "5 KiB"]),
        (5, ["0", "1 B", "2 B", "3 B", "4 B", "5 B"]),
        (1.2, ["0", "1 B"]),
        (140 * GIB, ["0", "32 GiB", "64 GiB", "96 GiB", "128 GiB"]),
    ],
)
def test_byte_ticks(limit, expected):
    assert labels(byte_ticks(limit)) == expected


@pytest.mark.parametrize("limit", [2.0**power * factor for power in range(0, 63, 3) for factor in (1, 1.3, 1.99)])
def test_byte_ticks_are_few_and_within_the_limit(limit):
    ticks = byte_ticks(limit)
    assert ticks[0] == (0, "0")
    assert ticks[-1][0] <= limit
    assert len({*labels(ticks)}) == len(ticks) <= 7


@pytest.mark.parametrize(
    ("count", "expected"),
    [
        (0, []),
        (1, ["0"]),
        (5, ["0", "1", "2", "3", "4"]),
        (8088, ["0", "1,000", "2,000", "3,000", "4,000", "5,000", "6,000", "7,000", "8,000"]),
        (10001, ["0", "2,000", "4,000", "6,000", "8,000", "10,000"]),
        (2_500_000, ["0", "500,000", "1,000,000", "1,500,000", "2,000,000"]),
    ],
)
def test_event_ticks(count, expected):
    assert labels(event_ticks(count)) == expected


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 0.00005, ["0", "0.01 ms", "0.02 ms", "0.03 ms", "0.04 ms", "0.05 ms"]),
        (0, 5, ["0", "1 s", "2 s", "3 s", "4 s", "5 s"]),
        (-1, 3, ["-1 s", "-0.5 s", "0", "0.5 s", "1 s", "1.5 s", "2 s", "2.5 s", "3 s"]),
        (0, 599, ["0", "2 min", "4 min", "6 min", "8 min"]),
        (0, 86_400, ["0", "5 h", "10 h", "15 h", "20 h"]),
    ],
)
def test_time_ticks(first, last, expected):
    assert labels(time_ticks(first, last)) == expected


def test_texts_and_last_tick_label_stay_on_the_page():
    with style():
        sheet = PlotLayout(200, 2.0)
        sheet.title(10, 20, "name", "a long list of facts " * 50)
        axes = sheet.plot(50, 100, (0, 10_000_000), 1.0)
        sheet.label_x(axes, [(0, "0"), (10_000_000, "10,000,000")])
        sheet.pixels()
        name, facts = (text.get_window_extent() for text in sheet.figure.texts)
        assert 0 < name.x1 < facts.x0 < 2.0 * 700 < facts.x1 <= 2.0 * 880
        first, last = (label.get_window_extent() for label in axes.xaxis.get_ticklabels())
        assert last.x1 <= 2.0 * 880
        assert first.x0 + first.x1 == pytest.approx(2 * 2.0 * 70, abs=2), "other labels are centered at their ticks"
