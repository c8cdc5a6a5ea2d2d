"""The stand-alone page of real snapshots, operated with pointer and keyboard."""

from __future__ import annotations

import csv
import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

from browser.snapshot_page import SnapshotPage
from ipygpumem.core.units import size
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.queries.live_set import LiveSet
from snapshot.files import NAMES, path, raw

AXE = Path(__file__).parents[2] / "ipygpumem" / "viewer" / "node_modules" / "axe-core" / "axe.min.js"
PICKS = 120
COLORS = {"light": [11, 122, 91], "dark": [95, 211, 168]}
"""Colors of reserved memory with other settings."""


class Snapshots(dict):
    """Real files by name, read on first use. Tests with large files are skipped if the files are not available."""

    def __missing__(self, name):
        self[name] = Snapshot.load(path(name))
        return self[name]


@pytest.fixture(scope="module")
def snapshots():
    return Snapshots()


@pytest.mark.parametrize("name", [*NAMES, "gpt_100k", "gpt_500k"])
def test_each_file_shows_its_peak(viewing, snapshots, name):
    snapshot = snapshots[name]
    timeline = snapshot.timeline()
    view = viewing(snapshot)
    event, requested = timeline.requested.peak()
    facts = view.call("device()")
    assert (facts["index"], facts["peak"]["event"], facts["peak"]["bytes"]) == (timeline.device, event, requested)
    peak_fact = view.page.locator(".facts div", has_text="Peak").locator("dd")
    assert peak_fact.inner_text() == size(requested)
    assert f"{requested:,} bytes" in peak_fact.get_attribute("title")
    assert view.call("fit()")["maximum"] == requested
    answer = view.call("peak()")
    assert answer["bytes"] == requested
    assert [(group["label"], group["bytes"]) for group in answer["groups"]] == [
        (group.label, group.bytes) for group in snapshot.live(event, timeline.device).by("line")
    ]
    assert len(view.page.workers) == 1, "the model runs in its own thread"
    pixels = view.page.locator("canvas.picture").evaluate(
        "canvas => new Set(new Uint32Array(canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)"
        ".data.buffer)).size"
    )
    assert pixels > 5, "the plot has colors"


def expected(timeline, order, answer, height):
    """Return the row that each pixel of a column shows from bottom to top (None for a band or no row), and all rows."""
    allocations, event, scale = timeline.allocations, answer["event"], answer["scale"]
    rows = order[(allocations.start[order] <= event) & (allocations.end[order] > event)]
    sizes = allocations.size[rows]
    ends = np.cumsum(sizes) - answer["bottom"]
    low, high = (np.floor(np.clip(edge * scale + 0.5, 0, height)).astype(int) for edge in (ends - sizes, ends))
    pixels = [None] * height
    for row, begin, end, number in zip(rows.tolist(), low.tolist(), high.tolist(), sizes.tolist(), strict=True):
        if number * scale >= 1:
            pixels[begin:end] = [row] * (end - begin)
    return pixels, rows


@pytest.mark.parametrize("name", NAMES)
def test_pick_returns_the_item_at_a_point(viewing, snapshots, name):
    snapshot = snapshots[name]
    timeline = snapshot.timeline()
    allocations, curve = timeline.allocations, timeline.requested.bytes
    order = np.argsort(allocations.start, kind="stable")
    view = viewing(snapshot)
    view.page.get_by_role("tab", name="File").click()  # the other panels would be updated by each zoom
    box = view.plot.bounding_box()
    last = len(timeline.trace) - 1
    rng = random.Random(name)
    kinds = dict.fromkeys(("allocation", "thin", "nothing", "brief"), 0)
    for turn in range(PICKS // 4):
        if turn:
            first = rng.randrange(last)
            until = min(last, first + 1 + int((last - first) * rng.random() ** 4))
            low = int(rng.random() * curve.max() * 0.7) if turn % 2 else 0
            view.call(f"zoom({first}, {until}, {low}, {low + curve.max() * (0.05 + rng.random() ** 2)})")
        for _ in range(4):
            x = box["x"] + rng.random() * (box["width"] - 1)
            y = box["y"] + (1 - rng.random() ** 1.5) * (box["height"] - 1)
            answer = view.call(f"pick({x}, {y})")
            kinds[answer["kind"]] += 1
            event = answer["event"]
            inside = curve[answer["first"] + 1 : answer["last"] + 2]
            assert answer["total"] == inside.max() == curve[event + 1], "the column shows its maximum"
            if answer["kind"] == "brief":
                continue
            pixels, rows = expected(timeline, order, answer, view.plot_height)
            row = pixels[answer["pixel"]]
            sizes = allocations.size[rows]
            if answer["kind"] == "allocation":
                assert answer["allocation"]["name"] == allocations.name(row)
                assert answer["allocation"]["size"] == allocations.size[row]
                (line,) = LiveSet(snapshot, timeline, event, np.asarray([row])).by("line")
                assert answer["allocation"]["line"] == line.label
            elif answer["kind"] == "thin":
                assert row is None and answer["low"] < sizes.sum()
                assert answer["thin"]["count"] == int((sizes * answer["scale"] < 1).sum())
                assert 0 < answer["thinHere"]["count"] <= answer["thin"]["count"]
            else:
                assert row is None and answer["high"] > sizes.sum()
    assert kinds["allocation"] >= PICKS // 8, kinds


def test_wheel_zooms_and_drag_pans(viewing, snapshots):
    view = viewing(snapshots["gpt_small"])
    box = view.plot.bounding_box()
    at = box["x"] + box["width"] * 0.25
    full_range = view.call("fit()")
    under = full_range["x0"] + 0.25 * (full_range["x1"] - full_range["x0"])
    view.page.mouse.move(at, box["y"] + 100)
    view.page.mouse.wheel(0, -400)
    view.until(lambda: view.visible() != full_range)
    zoomed_range = view.visible()
    assert zoomed_range["x1"] - zoomed_range["x0"] < 0.7 * (full_range["x1"] - full_range["x0"])
    assert zoomed_range["x0"] + 0.25 * (zoomed_range["x1"] - zoomed_range["x0"]) == pytest.approx(under, abs=30)
    view.page.mouse.down()
    view.page.mouse.move(at + 100, box["y"] + 100, steps=5)
    view.page.mouse.up()
    view.settle()
    moved = view.visible()
    assert moved["x1"] - moved["x0"] == pytest.approx(zoomed_range["x1"] - zoomed_range["x0"])
    by = 100 / box["width"] * (zoomed_range["x1"] - zoomed_range["x0"])
    assert moved["x0"] == pytest.approx(zoomed_range["x0"] - by, abs=0.02 * by + 1)
    view.page.mouse.dblclick(at, box["y"] + 100)
    view.settle()
    assert view.visible()["x1"] == full_range["x1"]


def test_keyboard(viewing, snapshots):
    snapshot = snapshots["gpt_small"]
    timeline = snapshot.timeline()
    view = viewing(snapshot)
    view.call("select(1000)")
    view.plot.focus()
    press = view.page.keyboard.press

    def wait():
        view.settle()
        view.settle()

    press("ArrowRight")
    wait()
    assert "event 1,001" in view.page.locator(".moment").inner_text()
    press("ArrowLeft")
    wait()
    press("ArrowLeft")
    wait()
    assert "event 999" in view.page.locator(".moment").inner_text()
    press("p")
    wait()
    assert f"event {timeline.requested.peak()[0]:,}" in view.page.locator(".moment").inner_text()
    press("ArrowUp")
    wait()
    press("ArrowUp")
    wait()
    order = np.argsort(timeline.allocations.start, kind="stable")
    live = [
        row for row in order.tolist() if row in set(timeline.allocations.live(timeline.requested.peak()[0]).tolist())
    ]
    names = {timeline.allocations.name(row) for row in live}
    assert view.page.locator(".details dd code").last.inner_text() in names
    press("+")
    wait()
    visible_range = view.visible()
    assert visible_range["x1"] - visible_range["x0"] < len(timeline.trace)
    press("0")
    wait()
    assert view.visible()["x0"] == -1
    press("/")
    assert view.page.evaluate("document.querySelector('#ipygpumem').shadowRoot.activeElement.type") == "search"
    press("Escape")
    view.plot.focus()
    press("?")
    assert view.page.locator("dialog").is_visible()
    press("Escape")
    assert not view.page.locator("dialog").is_visible()


def test_click_shows_all_facts_about_an_allocation(viewing, snapshots):
    snapshot = snapshots["gpt_small"]
    timeline = snapshot.timeline()
    view = viewing(snapshot)
    view.call("zoom(280, 330)")
    box = view.plot.bounding_box()
    spot = next(
        (x, y)
        for x in range(int(box["x"]) + 20, int(box["x"] + box["width"]), 60)
        for y in range(int(box["y"]) + 20, int(box["y"] + box["height"]) - 60, 12)
        if (answer := view.call(f"pick({x}, {y})"))["kind"] == "allocation" and answer["allocation"]["stack"]
    )
    answer = view.call(f"pick({spot[0]}, {spot[1]})")["allocation"]
    view.page.mouse.move(*spot)
    tooltip = view.page.locator(".tooltip")
    tooltip.wait_for(state="visible")
    assert answer["line"] in tooltip.inner_text()
    view.page.mouse.click(*spot)
    view.page.locator(".details .size").wait_for()
    text = view.page.locator(".details").inner_text()
    rows = [row for row in range(len(timeline.allocations)) if timeline.allocations.name(row) == answer["name"]]
    assert answer["size"] == timeline.allocations.size[rows[0]]
    for part in (answer["line"], answer["name"], answer["address"], f"{answer['size']:,} bytes", "default stream"):
        assert part in text
    own = [
        frame.name
        for frame in snapshot.stacks.stack(int(timeline.allocations.stack[rows[0]]))
        if "project" in frame.file
    ]
    assert view.page.locator(".details .stack .own .name").all_inner_texts() == own
    view.page.get_by_role("button", name="Mark all from this line").click()
    view.page.get_by_role("button", name="Clear marks").wait_for()
    view.call("device()")
    assert view.page.locator(".live tr.marked").count() == 1
    view.page.get_by_role("button", name="Clear marks").click()
    view.call("device()")
    assert view.page.locator(".live tr.marked").count() == 0


def test_search(viewing, snapshots):
    snapshot = snapshots["gpt_small"]
    timeline = snapshot.timeline()
    view = viewing(snapshot)
    row = len(timeline.allocations) // 2
    name = timeline.allocations.name(row)
    field = view.page.get_by_role("searchbox").first
    field.fill(name)
    field.press("Enter")
    view.page.locator(".details dd code", has_text=name).wait_for()
    assert "1 allocation" in view.page.locator(".result").inner_text()
    assert view.call("search('>10 MiB')")["events"] == int((timeline.trace.size > 10 << 20).sum())
    assert view.call("search('no such thing')")["events"] == 0
    assert view.page.locator(".result").inner_text() == "no matches"


def test_allocator_state(viewing, snapshots):
    snapshot = snapshots["oom_fragmented"]
    view = viewing(snapshot)
    event = snapshot.ooms()[0].event
    answer = view.call(f"state({event})")
    state = snapshot.state_at(event)
    assert answer["reserved"] == state.reserved
    assert len(answer["segments"]) == len(state.segments)
    fragments = snapshot.fragmentation(event)
    words = view.page.locator(".state .sentences").inner_text()
    assert size(fragments.largest) in words
    field = view.page.locator(".segments")
    field.hover(position={"x": 30, "y": 34})
    view.page.locator(".state .about", has_text="Segment of").wait_for()
    field.click(position={"x": 30, "y": 34})
    view.page.locator(".details .size").wait_for()
    field.press("ArrowLeft")
    view.page.locator(".state .title", has_text=f"after event {event - 1:,}").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_replay_with_other_settings(browser, tmp_path, snapshots, scheme):
    snapshot, settings = snapshots["oom_fragmented"], "expandable_segments:True"
    path = snapshot.to_html(tmp_path / "replay.html", settings=settings, theme=scheme)
    replay, event = snapshot.replay(settings), 5000
    view = SnapshotPage(browser, tmp_path, text=path.read_text(encoding="utf-8"), scheme=scheme).drawn()
    entries = view.page.locator(".legend .curve").all_inner_texts()
    assert [" ".join(text.split()) for text in entries] == [
        "reserved 1.68 GiB",
        f"reserved with {settings} 1.66 GiB",
    ]
    # the dashed curve has its own color in the plot
    green = f"""() => {{
        const canvas = document.getElementById("ipygpumem").shadowRoot.querySelector("canvas.overlay");
        const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
        let count = 0;
        for (let i = 0; i < data.length; i += 4)
            if (data[i + 3] > 200 && Math.hypot(...{COLORS[scheme]}.map((v, k) => v - data[i + k])) < 20) count++;
        return count;
    }}"""
    assert view.page.evaluate(green) > 100
    recorded = view.call(f"state({event})")
    assert recorded["reserved"] == snapshot.state_at(event).reserved
    view.page.get_by_role("radio", name="Other settings").click()
    view.settle()
    replayed = view.call(f"state({event})")
    assert replayed["reserved"] == replay.reserved.bytes[event + 1] != recorded["reserved"]
    assert f"Replayed with {settings}." in view.page.locator(".state .sentences").inner_text()
    assert view.page.locator(".state .title").inner_text().startswith("2 segments after event 5,000")
    assert "s=replayed" in view.until(lambda: "replayed" in view.page.url and view.page.url)
    assert f"{size(replayed['reserved'])} reserved with {settings}" in view.page.locator(".moment").inner_text()
    svg = view.export("Image as SVG")[0].read_text(encoding="utf-8")
    assert f"reserved with {settings}  1.66 GiB" in svg
    assert view.messages == []
    assert view.foreign_requests() == []
    view.close()


def test_page_without_replay_has_no_choice(viewing, snapshots):
    view = viewing(snapshots["oom_fragmented"])
    view.call("state(5000)")
    assert view.page.get_by_role("radio", name="Other settings").count() == 0
    assert view.page.locator(".legend .curve").count() == 0


def test_event_list_contains_only_visible_rows(viewing, snapshots):
    snapshot = snapshots["gpt_small"]
    view = viewing(snapshot)
    view.page.get_by_role("tab", name="Events").click()
    rows = view.page.locator(".rows .event")
    rows.first.wait_for()
    assert rows.count() < 40
    assert "8,088 events" in view.page.locator(".events .head").first.inner_text()
    view.page.locator(".list").press("End")
    view.page.locator(".rows .event", has_text="8,087").wait_for()
    view.page.get_by_label("Filter").fill("oom")
    view.page.get_by_text("No event matches this filter.").wait_for()
    view.page.get_by_label("Filter").fill("layer_norm >1MiB")
    count = view.call("search('layer_norm >1MiB')")["events"]
    view.page.get_by_text(f"{count:,} of 8,088 events").wait_for()
    rows.nth(2).click()
    view.page.locator(".rows .marked").wait_for()


def test_range_sums_up_allocations(viewing, snapshots):
    snapshot = snapshots["gpt_small"]
    view = viewing(snapshot)
    box = view.plot.bounding_box()
    view.page.get_by_role("radio", name="Range").click()
    view.page.mouse.move(box["x"] + 200, box["y"] + 50)
    view.page.mouse.down()
    view.page.mouse.move(box["x"] + 400, box["y"] + 90, steps=4)
    view.page.mouse.up()
    title = view.page.locator(".live .title", has_text="Events")
    title.wait_for()
    first, last = (
        int(part.replace(",", ""))
        for part in title.inner_text().split(":")[0].removeprefix("Events ").split(" \N{EN DASH} ")
    )
    allocations = snapshot.timeline().allocations
    lived = (allocations.start <= last) & (allocations.end > first)
    assert f"{int(lived.sum()):,} allocations" in title.inner_text()
    assert size(int(allocations.size[lived].sum())) in title.inner_text()
    view.page.get_by_role("button", name="Back to a single event").click()
    view.page.locator(".live .title", has_text="Live at the peak").wait_for()


def test_ruler_and_box(viewing, snapshots):
    view = viewing(snapshots["gpt_small"])
    box = view.plot.bounding_box()

    def drag(tool):
        view.page.get_by_role("radio", name=tool).click()
        view.page.mouse.move(box["x"] + 100, box["y"] + 200)
        view.page.mouse.down()
        view.page.mouse.move(box["x"] + 300, box["y"] + 100, steps=4)
        view.page.mouse.up()
        view.settle()

    full_range = view.call("fit()")
    drag("Ruler")
    events = round(200 / box["width"] * (full_range["x1"] - full_range["x0"]))
    announcement = view.page.locator(".off[aria-live]", has_text=f"{events:,} events")
    announcement.wait_for(state="attached")  # the page announces the steps of the movement, too
    assert "+" in announcement.inner_text() and "MiB" in announcement.inner_text()
    drag("Box")
    zoomed_range = view.visible()
    assert zoomed_range["x1"] - zoomed_range["x0"] == pytest.approx(
        200 / box["width"] * (full_range["x1"] - full_range["x0"]), rel=0.02
    )
    assert zoomed_range["y0"] > 0 and zoomed_range["y1"] < full_range["y1"]


def test_ruler_and_box_by_keyboard(viewing, snapshots):
    view = viewing(snapshots["gpt_small"])
    totals = snapshots["gpt_small"].timeline().requested
    keyboard, announcement = view.page.keyboard, view.page.locator(".off[aria-live]")
    view.plot.focus()
    keyboard.press("Home")
    view.call("device()")
    keyboard.press("m")
    view.page.locator(".off[aria-live]", has_text="The ruler starts at the cursor").wait_for(state="attached")
    keyboard.press("End")
    view.page.locator(".off[aria-live]", has_text=" · ").wait_for(state="attached")
    assert int(totals.bytes[1]) - int(totals.bytes[-1]) == 20 * 1024
    assert announcement.inner_text() == "8,087 events · 63.2 ms · \N{MINUS SIGN}20.0 KiB"
    keyboard.press("p")
    view.page.locator(".off[aria-live]", has_text="285 events").wait_for(state="attached")
    keyboard.press("b")
    view.call("device()")
    zoomed_range = view.visible()
    assert (zoomed_range["x0"], zoomed_range["x1"]) == (0, 285)
    assert zoomed_range["y1"] == pytest.approx(totals.peak()[1])


def test_two_files_side_by_side(viewing, snapshots):
    first, second = snapshots["gpt_small"], snapshots["gpt_cpp"]
    view = viewing(first, second)
    assert view.page.locator(".plot").count() == 2
    labels = [text for text, _ in view.byte_labels()]
    half = len(labels) // 2
    assert half >= 2
    assert labels[:half] == labels[half:], "both timelines use the first scale"
    view.page.get_by_role("tab", name="Compare").click()
    rows = view.page.locator(".compare tbody tr")
    rows.first.wait_for()
    title = view.page.locator(".compare .title").inner_text()
    assert size(first.peak().requested) in title
    assert size(second.peak().requested) in title


def test_groups_by_stack_show_their_callers(viewing, snapshots):
    view = viewing(snapshots["gpt_small"], hash_="#g=stack")
    rows = [text.rsplit("\n")[0:2] for text in view.page.locator(".live tbody th").all_inner_texts()]
    same = [row for row in rows if row[0] == "project/train_gpt.py:11 forward"]
    assert len(same) > 2
    assert len({row[1] for row in same}) == len(same)
    view.page.locator(".menu summary").click()
    with view.page.expect_download() as download_info:
        view.page.get_by_role("button", name="Table as CSV").click()
    with Path(download_info.value.path()).open(encoding="utf-8-sig", newline="") as file:
        stacks = [row["stack"] for row in csv.DictReader(file) if "train_gpt.py:11" in row["group"]]
    assert len(set(stacks)) == len(stacks) == len(same)


def test_two_files_share_a_legend(viewing, snapshots):
    first, second = snapshots["gpt_small"], snapshots["oom_fragmented"]
    view = viewing(first, second)
    page = view.page
    page.locator(".findings h3").nth(1).wait_for()
    assert page.locator(".findings h3").all_inner_texts() == [first.name, second.name]
    assert page.locator(".facts dt").all_inner_texts() == ["Peak 1", "Reserved 1", "Peak 2", "Reserved 2"]
    answer = page.locator(".file").all_inner_texts()
    assert ["8,088 events" in answer[0], "6,207 events" in answer[1]] == [True, True]
    page.locator(".legend").get_by_role("button", name="more").click()
    chips = page.locator(".legend .chip").all_inner_texts()
    assert any("train_gpt.py:11" in chip and chip.endswith("· 0 B") for chip in chips)
    assert any("experiment.py:18" in chip and "0 B ·" in chip for chip in chips)
    page.locator(".finding.oom").click()
    page.locator(".moment", has_text="event 5,998").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_color_scheme(viewing, snapshots, scheme):
    view = viewing(snapshots["resnet50"], scheme=scheme, fresh=True)
    background = view.page.locator(".viewer").evaluate("element => getComputedStyle(element).backgroundColor")
    shade = sum(int(part) for part in background[4:-1].split(",")[:3]) / 3
    assert (shade < 60) == (scheme == "dark")
    view.page.emulate_media(color_scheme="dark" if scheme == "light" else "light")
    view.settle()
    after = view.page.locator(".viewer").evaluate("element => getComputedStyle(element).backgroundColor")
    assert after != background


def test_link_restores_the_view(viewing, snapshots):
    first = viewing(snapshots["gpt_small"])
    first.call("zoom(1000, 2000)")
    first.call("select(1500)")
    first.page.get_by_role("tab", name="Events").click()
    first.until(lambda: "t=events" in first.page.evaluate("location.hash"))
    link = first.page.evaluate("location.hash")
    assert "e=1500" in link
    second = viewing(snapshots["gpt_small"], hash_=link)
    restored_view = second.visible()
    assert (restored_view["x0"], restored_view["x1"]) == pytest.approx((1000, 2001))
    assert "event 1,500" in second.page.locator(".moment").inner_text()
    assert second.page.get_by_role("tab", name="Events").get_attribute("aria-selected") == "true"


def test_exports(viewing, snapshots):
    snapshot = snapshots["gpt_small"]
    view = viewing(snapshot)

    def export(kind):
        path, name = view.export(kind)
        return path.read_bytes(), name

    png, name = export("Image as PNG")
    assert png.startswith(b"\x89PNG") and len(png) > 10_000 and name == "gpt_small.png"
    svg, _ = export("Image as SVG")
    assert b"<image" in svg and b"peak 1.8 GiB" in svg and b"<script" not in svg
    csv, _ = export("Table as CSV")
    lines = csv.decode("utf-8-sig").splitlines()
    groups = snapshot.by_line()
    assert len(lines) == 1 + len(groups)
    assert str(groups[0].bytes) in lines[1]
    view.page.locator(".menu summary").click()
    view.page.get_by_role("button", name="Copy link").click()


def test_legend_hides_and_shows_classes(viewing, snapshots):
    view = viewing(snapshots["gpt_small"])
    chip = view.page.locator(".legend .chip").first
    assert chip.get_attribute("aria-pressed") == "true"

    def colors():
        return view.page.locator("canvas.picture").evaluate("canvas => canvas.toDataURL()")

    before = colors()
    chip.click()
    view.page.get_by_role("button", name="Show all").wait_for()
    view.call("device()")
    assert view.page.locator(".legend .chip").first.get_attribute("aria-pressed") == "false"
    assert view.page.locator(".legend .chip:focus").inner_text() == chip.inner_text(), "the focus is kept"
    assert colors() != before
    view.page.get_by_role("button", name="Show all").click()
    view.settle()
    assert colors() == before


@pytest.mark.parametrize("width", [320, 480, 1000, 1400])
def test_layout_fits_the_window(viewing, snapshots, width):
    view = viewing(snapshots["oom_fragmented"], size=(width, 900))
    page = view.page
    assert page.evaluate("document.documentElement.scrollWidth") == width
    legend = page.locator(".legend")
    assert legend.bounding_box()["height"] < 60
    more = legend.get_by_role("button", name="more", exact=False).last
    visible = legend.locator(".chip:visible").count()
    assert more.inner_text() == f"{8 - visible} more"
    more.click()
    assert legend.locator(".chip:visible").count() == 8
    legend.get_by_role("button", name="fewer").click()
    assert legend.locator(".chip:visible").count() == visible
    if width == 1400:
        row = page.locator(".live tbody tr").nth(4).bounding_box()
        assert row["y"] + row["height"] < 900


@pytest.mark.parametrize("place", [0.2, 0.5, 0.8])
def test_labels_on_a_narrow_timeline_are_complete(viewing, snapshots, place):
    view = viewing(snapshots["oom_fragmented"], size=(320, 900))
    event = snapshots["oom_fragmented"].ooms()[0].event
    view.call(f"zoom({event - 100 * place}, {event + 100 * (1 - place)})")
    view.page.locator(".menu summary").click()
    with view.page.expect_download() as download_info:
        view.page.get_by_role("button", name="Image as SVG").click()
    picture = view.context.new_page()
    picture.set_content(Path(download_info.value.path()).read_text(encoding="utf-8"))
    words = picture.evaluate("""() => [...document.querySelectorAll("[clip-path] text")].map(label => {
        const room = document.querySelector("clipPath path").getBBox(), own = label.getBBox();
        return [label.textContent, own.x >= room.x && own.x + own.width <= room.x + room.width];
    })""")
    assert any("out of memory" in text for text, _ in words)
    assert [text for text, whole in words if not whole] == []


def test_first_picture_is_requested_first(viewing, snapshots):
    view = viewing(snapshots["gpt_small"], fresh=True)
    view.context.add_init_script("""
        const post = Worker.prototype.postMessage;
        window.requests = [];
        Worker.prototype.postMessage = function (message, ...more) {
            window.requests.push(message.name);
            return post.call(this, message, ...more);
        };
    """)
    view.page.reload()
    view.drawn()
    view.page.locator(".live tbody tr").first.wait_for()
    requests = view.page.evaluate("window.requests")
    assert requests[: requests.index("frame")] == ["hello", "open", "classes", "curves"]
    assert "live" in requests


def test_finding_moves_the_cursor(viewing, snapshots):
    view = viewing(snapshots["oom_fragmented"])
    view.page.locator(".finding.oom").click()
    event = snapshots["oom_fragmented"].ooms()[0].event
    view.page.locator(".moment", has_text=f"event {event:,}").wait_for()


@pytest.mark.parametrize("tab", ["Allocations", "Allocator state", "Events", "Compare", "File"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(viewing, snapshots, tab, scheme):
    if not AXE.is_file():
        if os.environ.get("CI") == "true":
            pytest.fail("axe-core is not installed, and tests are not skipped in CI")
        pytest.skip("axe-core is not installed: npm ci in ipygpumem/viewer")
    view = viewing(snapshots["oom_fragmented"], scheme=scheme)
    view.call("select(5998)")
    view.page.get_by_role("tab", name=tab).click()
    view.settle()
    session = view.context.new_cdp_session(view.page)
    script = "window.axe ? 0 : 1"
    if session.send("Runtime.evaluate", {"expression": script})["result"]["value"]:
        session.send("Runtime.evaluate", {"expression": AXE.read_text(encoding="utf-8")})
    session.send("Runtime.evaluate", {"expression": "window.axeDone = axe.run(document)"})
    answer = session.send(
        "Runtime.evaluate",
        {
            "expression": "axeDone.then(result => JSON.stringify(result.violations))",
            "awaitPromise": True,
            "returnByValue": True,
        },
    )
    violations = json.loads(answer["result"]["value"])
    assert [
        (violation["id"], violation["impact"], violation["nodes"][0]["html"][:200]) for violation in violations
    ] == []


def measured_snapshot():
    """Return gpt_small as if a measured cell had recorded it, with cells, device properties and sampled memory."""
    content = raw("gpt_small")
    times = [event["time_us"] for event in content["device_traces"][0]]
    samples = [times[0] + (times[-1] - times[0]) * number // 20 for number in range(21)]
    content["ipygpumem"] = {
        "schema": 1,
        "cells": [
            {"number": 3, "filename": "a.py", "start_us": times[0], "end_us": times[4000], "success": True},
            {"number": 4, "filename": "b.py", "start_us": times[4001], "end_us": times[-1], "success": True},
        ],
        "devices": [{"index": 0, "name": "NVIDIA H200", "total": 8 << 30}],
        "curves": {
            "device used": {"device": 0, "time_us": samples, "bytes": [(3 << 30) + n * (1 << 20) for n in range(21)]}
        },
    }
    return Snapshot.load(content)


def test_measured_cell_shows_device_and_cells(viewing):
    view = viewing(measured_snapshot())
    facts = view.call("device()")
    assert (facts["name"], facts["total"], facts["cells"]) == ("NVIDIA H200", 8 << 30, 2)
    (level,) = facts["levels"]
    assert (level["label"], level["bytes"][0]) == ("device used", 3 << 30)
    assert view.page.locator(".facts div", has_text="Capacity").locator("dd").inner_text() == "8.0 GiB"
    box = view.plot.bounding_box()
    view.page.mouse.move(box["x"] + 300, box["y"] + box["height"] - 60)
    outside = view.page.locator(".tooltip", has_text="outside PyTorch")
    outside.wait_for()
    assert "3.0 GiB device used · 1.1 GiB outside PyTorch" in outside.inner_text()
    view.page.mouse.move(box["x"] + 300, box["y"] - 30)
    view.page.locator(".tooltip", has_text="In[3]").wait_for()
    assert view.page.evaluate("window.ipygpumem.view()")["y1"] > 3 << 30, "the axis holds the device's memory"


def test_selected_block_is_outlined_in_the_timeline(viewing, snapshots):
    view = viewing(snapshots["gpt_small"])
    event = snapshots["gpt_small"].peak().event
    view.call(f"zoom({event - 100}, {event + 100})")

    def overlay():
        return view.page.locator("canvas.overlay").evaluate("canvas => canvas.toDataURL()")

    view.call(f"state({event})")
    before = overlay()
    view.page.locator(".segments").click(position={"x": 60, "y": 34})
    view.page.locator(".details .size").wait_for()
    view.settle()
    assert overlay() != before, "a block that was clicked is outlined in the timeline"
