"""Long names, many groups, exports, the keyboard and contrast themes in the viewer."""

from __future__ import annotations

import csv
import itertools
import re

import pytest

from browser.test_viewer_unusual_files import BASE, START, content_of, event, frame, segment
from ipygpumem.snapshot import Snapshot
from snapshot.files import path

MIB = 1 << 20
LONG = "x" * 20_000


def table(view):
    with view.export("Table as CSV")[0].open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def lines(count, file="/home/user/train.py", size=MIB):
    return [event("alloc", BASE + size * n, size, n, frames=[frame(f"f{n}", n + 1, file)]) for n in range(count)]


@pytest.mark.parametrize("width", [1000, 1280])
def test_long_names_do_not_break_the_layout(viewing, width):
    names = [frame(LONG, 3, f"/home/{LONG}.py"), frame(LONG, 4, f"/home/{LONG}.py")]
    snapshot = Snapshot.load(
        content_of(
            event("segment_alloc", BASE, 4 * MIB, 0, frames=names),
            event("alloc", BASE, MIB, 1, frames=names, user_metadata=LONG, compile_context=LONG),
            external_annotations=[
                {"name": LONG, "stage": "START", "device": 0, "time_us": START},
                {"name": LONG, "stage": "END", "device": 0, "time_us": START + 9},
            ],
            allocator_settings={LONG: LONG},
        )
        | {"segments": [segment(BASE, 4 * MIB, [], frames=names)]}
    )
    snapshot.name = f"{LONG}.pickle"
    view = viewing(snapshot, size=(width, 900))
    view.call("select(1)")
    for tab in ("Allocations", "Allocator state", "Events", "Compare", "File"):
        view.page.get_by_role("tab", name=tab).click()
        view.call("device()")
        if tab == "Allocator state":
            box = view.page.locator(".segments").bounding_box()
            view.page.mouse.move(box["x"] + 30, box["y"] + 32)
            view.settle()
        wide, high = view.page.evaluate(
            "[document.scrollingElement.scrollWidth, document.scrollingElement.scrollHeight]"
        )
        assert wide <= width, tab
        assert high < 2600, (tab, high)
        widths = view.page.locator(".viewer").evaluate("element => [element.scrollWidth, element.clientWidth]")
        assert widths[0] <= widths[1], tab
    assert len(view.page.locator("h1").get_attribute("title")) == 2000
    view.page.mouse.move(width / 3, view.plot.bounding_box()["y"] + view.plot.bounding_box()["height"] - 60)
    view.page.locator(".tooltip").wait_for()
    assert view.page.locator(".tooltip").bounding_box()["height"] < 500


def test_csv_contains_all_groups(viewing):
    view = viewing(Snapshot.load(content_of(*lines(1000))))
    rows = table(view)
    assert len(rows) == 1000
    assert {row["kept_bytes"] for row in rows} == {""}
    view.page.locator(".plot").first.focus()
    view.page.keyboard.press("r")
    view.page.get_by_text("Back to a single event").wait_for()
    view.call("device()")
    assert {row["kept_bytes"] for row in table(view)} == {str(MIB)}


def test_csv_contains_all_changes(viewing):
    view = viewing(Snapshot.load(content_of(*lines(1000))), Snapshot.load(content_of(*lines(3, "/home/user/other.py"))))
    view.page.get_by_role("tab", name="Compare").click()
    view.call("device()")
    assert len(table(view)) == 1003


def test_search_in_two_files(viewing):
    first, second = Snapshot.load(content_of(*lines(5))), Snapshot.load(content_of(*lines(7, "/home/user/other.py")))
    first.name, second.name = "first.pickle", "second.pickle"
    view = viewing(first, second)
    field = view.page.locator(".search input")
    field.fill("other.py")
    view.page.locator(".result", has_text="first: 0 · second: 7").wait_for()
    field.press("Enter")
    view.page.locator(".moment", has_text="event 0").wait_for()
    assert view.page.locator(".live .title", has_text="second.pickle").count() == 1
    field.fill("py")
    view.page.locator(".result", has_text="first: 5 · second: 7").wait_for()
    expected = {("f", n) for n in range(5)} | {("s", n) for n in range(7)}
    matches = set()
    for _ in range(50):  # on a busy machine, the page may be drawn later than `settle` expects
        field.press("Enter")
        view.settle()
        view.settle()
        title = view.page.locator(".live .title").inner_text()
        matches.add((title.rsplit(" · ", 1)[1][0], int(re.search(r"event (\d+)", title)[1])))
        if matches == expected:
            break
    assert matches == expected


def test_two_files_with_equal_sizes_share_a_legend(viewing):
    first, second = Snapshot.load(content_of(*lines(2))), Snapshot.load(content_of(*lines(2, "/home/user/other.py")))
    view = viewing(first, second)
    chips = view.page.locator(".legend .chip").all_inner_texts()
    assert chips == [
        "user/other.py:1 f0\n0 B · 1.0 MiB",
        "user/other.py:2 f1\n0 B · 1.0 MiB",
        "user/train.py:1 f0\n1.0 MiB · 0 B",
        "user/train.py:2 f1\n1.0 MiB · 0 B",
    ]


def test_tooltip_disappears_when_the_pointer_leaves_a_band(viewing):
    snapshot = Snapshot.load(
        content_of(
            *lines(20),
            external_annotations=[
                {"name": "epoch", "stage": "START", "device": 0, "time_us": START},
                {"name": "epoch", "stage": "END", "device": 0, "time_us": START + 19},
            ],
        )
    )
    view = viewing(snapshot)
    box = view.plot.bounding_box()
    view.page.mouse.move(box["x"] + 300, box["y"] - 12)
    view.page.locator(".tooltip", has_text="epoch").wait_for()
    view.page.mouse.move(box["x"] + 300, box["y"] - 200)
    view.settle()
    assert not view.page.locator(".tooltip").is_visible()


FOCUSED = """() => {
    const element = document.getElementById("ipygpumem").shadowRoot.activeElement;
    return element ? element.textContent : "";
}"""


def test_focus_is_kept(viewing):
    view = viewing(Snapshot.load(path("gpt_small")))
    row = view.page.locator(".live tbody button").nth(1)
    row.focus()
    text = row.inner_text().split("\n")[0]
    view.page.keyboard.press("Enter")
    view.page.locator("tr.marked").wait_for()
    view.call("device()")
    assert view.page.evaluate(FOCUSED).startswith(text)
    box = view.page.locator(".boxes button").nth(2)
    box.focus()
    label = box.inner_text()
    view.page.keyboard.press("Enter")
    view.page.locator(".boxes .root", has_text=label).wait_for()
    assert view.page.evaluate(FOCUSED) == label
    assert view.page.locator(".boxes button[tabindex='0']").count() == 1
    view.call("select(125)")
    link = view.page.locator(".details .link").first
    link.focus()
    text = link.inner_text()
    view.press("Enter")
    assert view.page.evaluate(FOCUSED) == text


def test_contrast_themes(viewing):
    view = viewing(Snapshot.load(path("gpt_small")), fresh=True)
    view.page.emulate_media(forced_colors="active")
    color = "element => getComputedStyle(element).backgroundColor"
    chips = view.page.locator(".chip i").evaluate_all(
        "chips => chips.map(chip => getComputedStyle(chip).backgroundColor)"
    )
    assert len(set(chips)) >= 3
    on = view.page.get_by_role("radio", name="Events", exact=True).evaluate(color)
    off = view.page.get_by_role("radio", name="Time", exact=True).evaluate(color)
    assert on != off
    tabs = view.page.get_by_role("tab")
    assert tabs.nth(0).evaluate(color) != tabs.nth(1).evaluate(color)
    edge = view.page.locator(".boxes button").nth(1).evaluate("element => getComputedStyle(element).borderTopWidth")
    assert edge == "1px"


def sampled(count=9):
    """Return a snapshot of a device whose memory was sampled, with an allocation and a region."""
    names = {"device used": 80, "outside PyTorch + other processes": 30}
    curves = {
        name: {
            "device": 0,
            "time_us": [START + 19 * n // count for n in range(count)],
            "bytes": [(max_lines + n % 3) * MIB for n in range(count)],
        }
        for name, max_lines in names.items()
    }
    metadata = {"curves": curves, "devices": [{"index": 0, "name": "a card", "total": 100 * MIB}]}
    ooms = [event("oom", 0, 500 * MIB, 30 + n, device_free=MIB) for n in range(300)]
    return Snapshot.load(
        content_of(
            event("segment_alloc", BASE, 40 * MIB, 0),
            *lines(20),
            *ooms,
            external_annotations=[
                {"name": "epoch", "stage": "START", "device": 0, "time_us": START},
                {"name": "epoch", "stage": "END", "device": 0, "time_us": START + 400},
            ],
            ipygpumem=metadata,
        )
        | {"segments": [segment(BASE, 40 * MIB, [])]}
    )


def test_exported_picture_is_complete(viewing):
    view = viewing(sampled())
    view.call("select(7)")
    text = view.export("Image as SVG")[0].read_text(encoding="utf-8")
    words = re.findall(r"<text[^>]*>([^<]*)</text>", text)
    for label in (
        "epoch",
        "capacity 100.0 MiB ↑",
        "device used (sampled)",
        "outside PyTorch + other processes (sampled)",
        "reserved",
        "brief",
        "event",
        "at the peak:",
    ):
        assert label in words, (label, words)
    assert any(word.startswith("peak 20.0 MiB") for word in words)
    assert any(word.startswith("out of memory 300 times") for word in words)
    assert any(word.startswith("user/train.py:1 f0") for word in words)
    assert text.count("#b3261e") > 200, "each column of pixels has a line"
    assert "#1f6fb5" in text, "the cursor"
    height = int.from_bytes(view.export("Image as PNG")[0].read_bytes()[20:24], "big")
    assert height == 2 * int(re.search(r'height="(\d+)"', text)[1])


def test_band_labels_do_not_overlap(viewing):
    names = [f"region {depth}" for depth in range(9)]
    nested = [{"name": name, "stage": "START", "device": 0, "time_us": START + n} for n, name in enumerate(names)]
    nested += [{"name": name, "stage": "END", "device": 0, "time_us": START + 90} for name in reversed(names)]
    cells = [
        {"number": 100 + n, "filename": "", "start_us": START + 3 * n, "end_us": START + 3 * n + 2} for n in range(30)
    ]
    view = viewing(
        Snapshot.load(content_of(*lines(100), external_annotations=nested, ipygpumem={"cells": cells})),
        size=(1000, 900),
    )
    text = view.export("Image as SVG")[0].read_text(encoding="utf-8")
    labels = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"[^>]*>([^<]*)</text>', text)
    words = [(float(y), float(x), word) for x, y, word in labels if float(y) < 100 and not word.startswith("snapshot")]
    assert {"region 0", "region 1", "region 8"} <= {word for _, _, word in words}, words
    for (y, x, word), (below, after, _) in itertools.pairwise(sorted(words)):
        assert y != below or x + 5 * len(word) < after, words
    assert not [word for *_, word in words if word.endswith("…") and len(word) < 9]
    box = view.plot.bounding_box()
    view.page.mouse.move(box["x"] + 400, box["y"] - 14)
    view.page.locator(".tooltip", has_text="region 8").wait_for()


def test_samples_of_device_memory(viewing):
    view = viewing(sampled(200_000), size=(1280, 900))
    levels = view.call("device().then(({ levels }) => levels.map(({ label, low, top }) => [label, low, top]))")
    assert [(label, low // MIB, top // MIB) for label, low, top in levels] == [
        ("device used", 80, 82),
        ("outside PyTorch + other processes", 30, 32),
    ]
    assert view.visible()["y1"] >= 82 * MIB
    box = view.plot.bounding_box()
    view.page.mouse.move(box["x"] + 30, box["y"] + box["height"] - 40)
    view.page.locator(".tooltip", has_text="device used").wait_for()
    facts = view.page.locator(".tooltip").inner_text()
    assert re.search(r"8[012]\.0 MiB device used\n3[012]\.0 MiB outside PyTorch \+ other processes\n", facts), facts


def test_ruler_on_the_event_axis_shows_the_time(viewing):
    snapshot = Snapshot.load(content_of(*(event("alloc", BASE + 512 * n, 512, 1000 * n) for n in range(100))))
    view = viewing(snapshot)
    view.call("view()")
    box = view.plot.bounding_box()
    view.page.keyboard.down("Alt")
    view.page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 60)
    view.page.mouse.down()
    view.page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 60, steps=4)
    view.page.mouse.up()
    view.page.keyboard.up("Alt")
    announcement = view.page.locator(".off[aria-live]", has_text="events ·")
    announcement.wait_for(state="attached")
    count, ms = re.match(r"(\d+) events · ([\d.]+) ms · ", announcement.inner_text()).groups()
    assert abs(int(count) - float(ms)) <= 1
    assert int(count) > 40


def test_escape_closes_the_menu(viewing):
    view = viewing(Snapshot.load(content_of(*lines(3))))
    view.page.locator(".menu summary").click()
    view.page.get_by_role("button", name="Table as CSV").focus()
    view.page.keyboard.press("Escape")
    assert view.page.locator(".menu[open]").count() == 0
    view.page.locator(".menu summary").click()
    buttons = view.page.locator(".sheet button")
    assert {round(button.bounding_box()["height"]) for button in buttons.all()} == {27}


def test_device_without_data_is_labeled(viewing):
    second_device = Snapshot.load({"segments": [], "device_traces": [[], lines(4)]})
    first_device = Snapshot.load(content_of(*lines(3)))
    facts = viewing(second_device, first_device).page.locator(".file").all_inner_texts()
    assert [text.split(" · ")[1].split(" ", 1)[1] for text in facts] == ["device 1", "device 0"]
    facts = viewing(second_device, first_device, hash_="#d=1").page.locator(".file").all_inner_texts()
    assert "nothing" not in facts[0]
    assert "device 0 · no data on device 1" in facts[1]


def test_pinned_memory_and_texts_attached_to_an_allocation(viewing):
    pinned = [event(action, BASE + 9 * MIB, 3 * MIB, 2) for action in ("segment_alloc", "alloc")]
    snapshot = Snapshot.load(
        content_of(
            event("alloc", BASE, MIB, 0, user_metadata="In[3]"),
            event("annotate", BASE, MIB, 1, user_metadata="saved for backward", frames=lines(1)[0]["frames"]),
            host_traces=pinned,
        )
    )
    view = viewing(snapshot).drawn()
    assert view.call("device()")["name"] is None, "a device is shown first, although more memory is pinned"
    assert view.call("select(0)")["allocation"]["annotations"] == [{"event": 1, "text": "saved for backward"}]
    details = view.page.locator(".details").inner_text()
    assert "In[3]" in details
    assert re.search(r"annotation\s+event 1 saved for backward", details)
    view.page.get_by_role("tab", name="Events").click()
    view.page.locator(".events .rows", has_text="saved for backward · user/train.py:1 f0").wait_for()
    menu = view.page.get_by_label("Device")
    assert menu.locator("option").all_inner_texts() == ["0", "pinned host memory"]
    menu.select_option(label="pinned host memory")
    view.page.locator("header", has_text="pinned host memory").wait_for()
    facts = view.call("device()")
    assert (facts["index"], facts["peak"]["bytes"]) == (-1, 3 * MIB)
    assert view.messages == []
