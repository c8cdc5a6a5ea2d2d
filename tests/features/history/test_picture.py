"""The picture of a session: its pixels are the figures."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest
from PIL import Image

from fakes.facts import before, report
from fakes.sessions import MIB, cell, session
from ipygpumem.core.errors import OptionError
from ipygpumem.features.history import picture as module
from ipygpumem.features.history.model import changed_rows
from ipygpumem.features.history.picture import history_picture
from ipygpumem.viewer.picture import MOST_BYTES, WIDTH


def drawn(reports):
    return history_picture(changed_rows(reports), "this session")


def pixels(reports):
    """The picture of the plot alone, before it becomes a PNG: height 190, a column for each pixel."""
    (panel,) = module._panels(changed_rows(reports))
    chosen, _ = module._columns(panel.rows, 760, 34)
    return panel, chosen, module._pixels(panel, chosen, 1900, 2)


def heights(panel, image, column):
    """Bytes of each colour in one column of pixels."""
    unit = panel.top / len(image)
    return {
        name: float((image[:, column] == (*module._rgb(colour), 255)).all(axis=1).sum()) * unit / MIB
        for name, (colour, _) in panel.parts.items()
    }


def test_each_bar_has_the_heights_of_its_figures():
    reports = [cell(1, held=500, peak=1500), cell(2, held=100, level=600, outside=300, peak=100)]
    panel, chosen, image = pixels(reports)
    for number, row in enumerate(panel.rows):
        column = int(np.flatnonzero(chosen == number)[5])
        found = heights(panel, image, column)
        for name in panel.parts:
            assert found[name] == pytest.approx(getattr(row, name) / MIB, abs=3 * panel.top / MIB / 1900), name
        dark = np.flatnonzero((image[:, column] == (*module._rgb(module._INK), 255)).all(axis=1))
        peak = (1900 - dark.mean() - 0.5) / 1900 * panel.top
        expected = row.peak_level + row.outside_level + row.others_level
        assert peak == pytest.approx(expected, abs=3 * panel.top / 1900)


def test_where_bars_are_narrower_than_a_pixel_the_highest_is_shown():
    panel, chosen, _ = pixels([cell(number, outside=number * 37 % 101) for number in range(5000)])
    highest = module._highest(panel.rows)
    assert (chosen >= 0).all()
    assert highest[chosen].max() == highest.max()
    ends = np.linspace(0, 5000, 761).astype(int)
    for column in range(0, 760, 50):
        assert highest[chosen[column]] == highest[ends[column] : ends[column + 1]].max()


def test_every_bar_is_there_while_there_is_room():
    for count in (1, 2, 30, 200, 760):
        _, chosen, _ = pixels(session(count))
        assert set(chosen.tolist()) - {-1} == set(range(count))


def test_what_failed_is_marked():
    panel, chosen, image = pixels([cell(1), cell(2, success=False), cell(3, end={"ooms": 1})])
    marked = (image[0] == (*module._rgb(module._BAD), 255)).all(axis=1)
    assert {panel.rows[number].cell for number in chosen[marked]} == {2, 3}


def test_the_capacity_is_in_the_picture_where_it_is_near(monkeypatch):
    far, near = (
        module._panels(changed_rows([cell(1)])),
        module._panels(changed_rows([cell(1, held=60_000, peak=60_000)])),
    )
    assert far[0].top < far[0].capacity
    assert near[0].top > near[0].capacity


@pytest.mark.parametrize("count", [0, 1, 7, 300, 10_000])
def test_the_file_is_small_whatever_the_session(count):
    still = drawn(session(count))
    assert len(still.png) <= MOST_BYTES
    image = Image.open(io.BytesIO(still.png))
    assert still.width == WIDTH
    assert image.size[0] >= WIDTH
    assert ("cuda:0: highest level" in still.text) is bool(count)


def test_devices_and_the_host_have_a_plot_each():
    import dataclasses

    host = dataclasses.replace(cell(3), devices={})
    one, two = drawn([cell(1)]), drawn([cell(1), cell(2, name="cuda:1")])
    assert two.height > one.height
    assert two.text.count("highest level") == 2
    assert drawn([host]).text.startswith("host: highest level 200.0 MiB")


def test_what_is_unknown_takes_no_place_and_is_told():
    unknown = report(before(), before(process=None, others=None, mode="torch-only"), peak=None)
    panel, chosen, image = pixels([unknown])
    found = heights(panel, image, int(np.flatnonzero(chosen == 0)[5]))
    assert found["outside_level"] == found["others_level"] == 0
    assert found["allocated"] > 0
    assert not (image == (*module._rgb(module._INK), 255)).all(axis=2).any(), "no peak is drawn that nobody knows"


def test_without_matplotlib(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(OptionError, match="pip install matplotlib"):
        drawn([cell(1)])
