"""Several snapshots in one viewer, such as those of several ranks."""

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


def test_timelines_have_one_scale(ranks, snapshots):
    assert ranks.page.locator(".plot").count() == len(NAMES)
    labels = [text for text, _ in ranks.byte_labels()]
    count = len(labels) // len(NAMES)
    assert count >= 2
    assert labels == labels[:count] * len(NAMES), "all timelines have one scale"
    assert ranks.page.locator("h1").inner_text() == "gpt_small.pickle.xz, gpt_cpp.pickle.xz and 3 more"
    peaks = [snapshot.peak().requested for snapshot in snapshots]
    assert ranks.page.locator(".facts dd").all_inner_texts() == [size(peak) for peak in peaks]
    assert ranks.messages == []


def test_panels_show_the_current_file(ranks):
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
    assert ranks.messages == []


def test_search_continues_in_the_next_file(ranks):
    page = ranks.page
    field = page.get_by_role("searchbox").first
    field.fill("resnet")
    field.press("Enter")
    ranks.until(lambda: current(ranks).index(True) == 2)
    assert ranks.messages == []


def on_device(folder, name, device, count=3):
    snapshot = raw(name)
    (trace,) = [trace for trace in snapshot["device_traces"] if trace]
    snapshot["device_traces"] = [trace if index == device else [] for index in range(count)]
    for segment in snapshot["segments"]:
        segment["device"] = device
    return save_copy(folder, f"rank_{device}", snapshot)


def save_copy(folder, name, snapshot):
    file = folder / f"{name}.pickle"
    file.write_bytes(pickle.dumps(snapshot))
    return Snapshot.load(file)


def test_each_rank_has_its_own_device(viewing, tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    view = viewing(*[on_device(folder, "gpt_small", device) for device in range(3)], hash_="#f=2")
    heads = view.page.locator(".file-timeline .file").all_inner_texts()
    assert [head.split(" · ")[1] for head in heads] == [f"rank_{n}.pickle device {n}" for n in range(3)]
    assert view.page.locator(".facts dd").all_inner_texts() == ["1.8 GiB"] * 3
    assert current(view) == [False, False, True]
    field = view.page.get_by_label("Device")
    assert field.locator("option").all_inner_texts()[0] == "the device with the highest peak in each file"
    field.select_option("1")
    view.call("device()")
    assert view.page.locator(".facts dd").all_inner_texts() == ["1.8 GiB"] * 3
    assert "no data on device 1" in view.page.locator(".file-timeline .file").first.inner_text()
    assert view.messages == []


def test_file_without_devices_does_not_affect_others(viewing, snapshots, tmp_path_factory):
    bare = save_copy(tmp_path_factory.mktemp("bare"), "bare", {**raw("gpt_small"), "device_traces": [], "segments": []})
    view = viewing(snapshots[0], bare, snapshots[2])
    assert view.page.locator(".plot").count() == 2
    assert view.page.locator(".failed").inner_text() == (
        "Not shown, because nothing was recorded on any device: bare.pickle"
    )
    assert view.messages == []


def test_files_with_equal_names_are_numbered(viewing, snapshots):
    view = viewing(snapshots[0], snapshots[0])
    assert [head.split()[0] for head in view.page.locator(".file-timeline .file").all_inner_texts()] == ["1", "2"]
