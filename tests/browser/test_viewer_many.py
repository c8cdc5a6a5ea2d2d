"""Several ranks side by side: one scale, one legend, and the panels speak of the one that is looked at."""

from __future__ import annotations

import pytest

from ipygpumem.snapshot import Snapshot
from ipygpumem.units import size
from snapshot.files import path

NAMES = ("gpt_small", "gpt_cpp", "resnet50", "gpt_small", "gpt_small")


@pytest.fixture(scope="module")
def snapshots():
    return [Snapshot.load(path(name)) for name in NAMES]


@pytest.fixture
def ranks(viewing, snapshots):
    return viewing(*snapshots)


def current(view):
    return view.page.locator(".one").evaluate_all(
        "rows => rows.map(row => row.querySelector('.file').classList.contains('current'))"
    )


def test_each_has_its_timeline_on_one_scale(ranks, snapshots):
    assert ranks.page.locator(".plot").count() == len(NAMES)
    scales = ranks.page.evaluate(
        "[...document.querySelector('#ipygpumem').shadowRoot.querySelectorAll('.axes')]"
        ".map(axes => [...axes.querySelectorAll('.left text')].map(text => text.textContent).join())"
    )
    assert len(set(scales)) == 1
    assert ranks.page.locator("h1").inner_text() == "gpt_small.pickle.xz, gpt_cpp.pickle.xz and 3 more"
    peaks = [one.peak().requested for one in snapshots]
    assert ranks.page.locator(".facts dd").all_inner_texts() == [size(peak) for peak in peaks]
    assert ranks.problems == []


def test_the_panels_speak_of_the_one_that_is_looked_at(ranks):
    page = ranks.page
    assert current(ranks) == [True, False, False, False, False]
    assert page.locator(".findings h3").all_inner_texts() == ["gpt_small.pickle.xz"]
    box = page.locator(".plot").nth(2).bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.1, box["y"] + box["height"] * 0.7)
    ranks.call("device()")
    assert current(ranks) == [False, False, True, False, False]
    assert page.locator(".findings h3").all_inner_texts() == ["resnet50.pickle.xz"]
    assert "resnet50.pickle.xz" in page.locator(".live .title, .live h2").first.inner_text()
    page.get_by_role("tab", name="Compare").click()
    page.locator(".compare tbody tr").first.wait_for()
    title = page.locator(".compare .title").inner_text()
    assert title.startswith("gpt_small.pickle.xz, peak → resnet50.pickle.xz")
    assert ranks.problems == []


def test_a_search_goes_on_in_the_next_file(ranks):
    page = ranks.page
    field = page.get_by_role("searchbox").first
    field.fill("resnet")
    field.press("Enter")
    ranks.call("device()")
    page.wait_for_timeout(300)
    assert current(ranks).index(True) == 2
    assert ranks.problems == []
