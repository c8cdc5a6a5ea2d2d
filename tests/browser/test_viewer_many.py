"""Several ranks side by side: one scale, one legend, and the panels speak of the one that is looked at."""

from __future__ import annotations

import pickle

import pytest

from ipygpumem.core.units import size
from ipygpumem.snapshot import Snapshot
from snapshot.files import path, raw

NAMES = ("gpt_small", "gpt_cpp", "resnet50", "gpt_small", "gpt_small")


@pytest.fixture(scope="module")
def snapshots():
    return [Snapshot.load(path(name)) for name in NAMES]


@pytest.fixture
def ranks(viewing, snapshots):
    return viewing(*snapshots)


def current(view):
    return view.page.locator(".file-timeline").evaluate_all(
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
    assert page.locator(".findings h3").all_inner_texts() == ["1 · gpt_small.pickle.xz"]
    box = page.locator(".plot").nth(2).bounding_box()
    page.mouse.click(box["x"] + box["width"] * 0.1, box["y"] + box["height"] * 0.7)
    ranks.call("device()")
    assert current(ranks) == [False, False, True, False, False]
    assert page.locator(".findings h3").all_inner_texts() == ["3 · resnet50.pickle.xz"]
    assert "resnet50.pickle.xz" in page.locator(".live .title, .live h2").first.inner_text()
    page.get_by_role("tab", name="Compare").click()
    page.locator(".compare tbody tr").first.wait_for()
    title = page.locator(".compare .title").inner_text()
    assert title.startswith("1 · gpt_small.pickle.xz, peak → 3 · resnet50.pickle.xz")
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


def on_device(folder, name, device, count=3):
    """A recording as a rank makes it that has a card of its own and sees them all."""
    snapshot = raw(name)
    (trace,) = [trace for trace in snapshot["device_traces"] if trace]
    snapshot["device_traces"] = [trace if index == device else [] for index in range(count)]
    for segment in snapshot["segments"]:
        segment["device"] = device
    return saved(folder, f"rank_{device}", snapshot)


def saved(folder, name, snapshot):
    file = folder / f"{name}.pickle"
    file.write_bytes(pickle.dumps(snapshot))
    return Snapshot.load(file)


def test_each_rank_has_a_card_of_its_own(viewing, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    view = viewing(*[on_device(folder, "gpt_small", device) for device in range(3)], hash_="#f=2")
    heads = view.page.locator(".file-timeline .file").all_inner_texts()
    assert [head.split(" · ")[1] for head in heads] == [f"rank_{n}.pickle device {n}" for n in range(3)]
    assert view.page.locator(".facts dd").all_inner_texts() == ["1.8 GiB"] * 3
    assert current(view) == [False, False, True]
    field = view.page.get_by_label("Device")
    assert field.locator("option").all_inner_texts()[0] == "the busiest of each file"
    field.select_option("1")
    view.call("device()")
    assert view.page.locator(".facts dd").all_inner_texts() == ["1.8 GiB"] * 3
    assert "no data on device 1" in view.page.locator(".file-timeline .file").first.inner_text()
    assert view.problems == []


def test_one_without_a_device_costs_no_other(viewing, snapshots, tmp_path_factory):
    bare = saved(tmp_path_factory.mktemp("bare"), "bare", {**raw("gpt_small"), "device_traces": [], "segments": []})
    view = viewing(snapshots[0], bare, snapshots[2])
    assert view.page.locator(".plot").count() == 2
    assert view.page.locator(".failed").inner_text() == (
        "Not shown, because nothing was recorded on any device: bare.pickle"
    )
    assert view.problems == []


def test_files_of_one_name_are_told_apart(viewing, snapshots):
    view = viewing(snapshots[0], snapshots[0])
    assert [head.split()[0] for head in view.page.locator(".file-timeline .file").all_inner_texts()] == ["1", "2"]
