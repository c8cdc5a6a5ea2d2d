"""The page of a profile's memory by category."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from browser.snapshot_page import both_schemes
from fakes.timelines import random_timeline
from ipygpumem.core.units import size
from ipygpumem.features.profile.categories import CATEGORIES
from ipygpumem.features.profile.display import timeline_page

AXE = Path(__file__).parents[2] / "ipygpumem" / "viewer" / "node_modules" / "axe-core" / "axe.min.js"
UNITS = {"GiB": 1 << 30, "MiB": 1 << 20}
CUDA, HOST = random_timeline(3000), random_timeline(40, "cpu", 2, reserved=False)


@pytest.fixture
def opened(page, tmp_path):
    """Open the page of two devices, which must send no network requests and log no errors."""
    file = tmp_path / "my <timeline>.html"
    file.write_text(timeline_page((CUDA, HOST), "my <timeline>.html", ["A <b>note</b>."]), encoding="utf-8")
    requests, messages = [], []
    page.on("request", lambda request: requests.append(request.url))
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(file.as_uri())
    page.wait_for_function("window.ipygpumem")
    yield page
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []
    assert messages == []


def settled(page):
    page.evaluate("() => new Promise((settle) => requestAnimationFrame(() => requestAnimationFrame(settle)))")


def place(page, x, y):
    """Return the page coordinates of the point at these fractions of the plot's width and height."""
    box = page.locator(".pad").bounding_box()
    return box["x"] + box["width"] * x, box["y"] + box["height"] * y


def caption(page):
    settled(page)
    return page.locator("caption").inner_text()


def cells(page, name):
    return page.locator("tbody tr", has=page.locator("th", has_text=name)).locator("td").all_inner_texts()


@both_schemes
def test_initial_view(opened):
    assert opened.locator("h1").inner_text() == "my <timeline>.html"
    assert opened.locator(".note").inner_text() == "A <b>note</b>."
    assert opened.evaluate("document.querySelector('.viewer').dataset.theme") == opened.scheme
    row, level = CUDA.peak
    assert opened.evaluate("ipygpumem.state.device.overallPeak") == {"row": row, "bytes": level}
    assert caption(opened).startswith("At the peak: ")
    assert f"after change {row:,} of {len(CUDA):,}" in caption(opened)
    assert cells(opened, "all categories")[0] == size(level)
    for place_, name in enumerate(CATEGORIES):
        row_cells = cells(opened, name)[0]
        assert float(row_cells.split()[0]) == pytest.approx(
            CUDA.usage[row, place_] / (1 << (30 if "Gi" in row_cells else 20)), abs=0.06
        )
    assert cells(opened, "counted by PyTorch")[0] == size(int(CUDA.allocated[row - 1]))


def test_tooltip(opened):
    opened.mouse.move(*place(opened, 0.5, 0.9))
    settled(opened)
    tip = opened.locator(".tooltip")
    column = opened.evaluate("Math.floor(ipygpumem.drawn.rows.length * 0.5)")
    row = opened.evaluate(f"ipygpumem.drawn.rows[{column}]")
    text = tip.inner_text()
    assert any(name in text for name in CATEGORIES)
    assert f"change {row:,}" in text
    assert f"{size(int(CUDA.total[row]))} in total" in text
    assert "allocated (PyTorch's own count)" in text
    assert caption(opened).startswith("At the pointer: ")
    opened.mouse.move(5, 5)
    settled(opened)
    assert tip.is_hidden()


def test_hidden_categories_are_not_counted(opened):
    opened.locator(".chip", has_text="parameter").click()
    settled(opened)
    visible = CUDA.total - CUDA.usage[:, 0]
    assert opened.evaluate("ipygpumem.state.device.peak.bytes") == visible.max()
    assert opened.evaluate("ipygpumem.state.device.overallPeak.bytes") == CUDA.peak[1], (
        "the table shows the peak of all categories"
    )
    assert opened.locator(".chip", has_text="parameter").get_attribute("aria-pressed") == "false"
    assert opened.evaluate("document.activeElement.innerText").startswith("parameter"), "the focus is kept"
    opened.locator(".chip", has_text="gradient").click(modifiers=["Shift"])
    assert opened.evaluate("ipygpumem.state.device.peak.bytes") == CUDA.usage[:, 5].max()
    opened.locator(".chip", has_text="gradient").click(modifiers=["Shift"])
    assert opened.evaluate("ipygpumem.state.device.peak.bytes") == CUDA.peak[1]


def test_keys(opened):
    opened.locator(".pad").focus()
    opened.keyboard.press("p")
    row = CUDA.peak[0]
    assert opened.evaluate("ipygpumem.state.cursor") == row
    opened.keyboard.press("ArrowLeft")
    assert opened.evaluate("ipygpumem.state.cursor") == row - 1
    assert caption(opened).startswith("At the cursor: ")
    opened.keyboard.press("Home")
    assert "before the first change" in caption(opened)
    opened.keyboard.press("End")
    assert opened.evaluate("ipygpumem.state.cursor") == len(CUDA)
    wide = opened.evaluate("ipygpumem.state.view[1] - ipygpumem.state.view[0]")
    opened.keyboard.press("+")
    assert opened.evaluate("ipygpumem.state.view[1] - ipygpumem.state.view[0]") == pytest.approx(wide / 1.5)
    opened.keyboard.press("PageUp")
    assert opened.evaluate("ipygpumem.state.view[0]") == 0
    opened.keyboard.press("a")
    assert opened.evaluate("ipygpumem.state.axis") == "change"
    opened.keyboard.press("0")
    assert opened.evaluate("ipygpumem.state.view") == [0, len(CUDA) + 1]
    opened.keyboard.press("1")
    assert opened.evaluate("ipygpumem.state.device.shown[0]") is False
    opened.keyboard.press("?")
    assert opened.locator("dialog").is_visible()
    opened.keyboard.press("Escape")
    opened.keyboard.press("Escape")
    assert opened.locator("dialog").is_hidden()


def test_help_without_focus(opened):
    assert opened.evaluate("document.activeElement === document.body")
    opened.keyboard.press("?")
    assert opened.locator("dialog").is_visible()
    assert "Memory that other threads allocate is not included." in opened.locator("dialog").inner_text()


def test_axis_of_a_single_change(page, tmp_path):
    file = tmp_path / "one.html"
    file.write_text(timeline_page((random_timeline(1),), "one.html"), encoding="utf-8")
    page.goto(file.as_uri())
    page.wait_for_function("window.ipygpumem")
    page.evaluate("""() => {
        window.written = []
        const write = CanvasRenderingContext2D.prototype.fillText
        CanvasRenderingContext2D.prototype.fillText = function (text, ...more) {
            window.written.push(text)
            write.call(this, text, ...more)
        }
        window.ipygpumem.state.setAxis("change")
    }""")
    settled(page)
    ticks = [text for text in page.evaluate("window.written") if text.isdecimal()]
    assert "1" in ticks and "2" not in ticks


def test_wheel_zooms_and_drag_pans(opened):
    x, y = place(opened, 0.25, 0.5)
    opened.mouse.move(x, y)
    at = opened.evaluate("ipygpumem.state.device.span") * 0.25
    for _ in range(6):
        opened.mouse.wheel(0, -250)
    settled(opened)
    x0, x1 = opened.evaluate("ipygpumem.state.view")
    assert x1 - x0 < opened.evaluate("ipygpumem.state.device.span") / 3
    assert x0 + (x1 - x0) * 0.25 == pytest.approx(at, rel=0.02)
    opened.mouse.down()
    opened.mouse.move(x + 60, y, steps=4)
    opened.mouse.up()
    settled(opened)
    assert opened.evaluate("ipygpumem.state.view[0]") < x0
    assert opened.evaluate("ipygpumem.state.cursor") is None, "a drag is not a click"
    opened.get_by_role("button", name="All", exact=True).click()
    assert opened.evaluate("ipygpumem.state.view") == [0, opened.evaluate("ipygpumem.state.device.span")]
    opened.mouse.click(*place(opened, 0.5, 0.5))
    assert opened.evaluate("ipygpumem.state.cursor") is not None


def test_each_column_shows_its_highest_state(opened):
    columns = opened.evaluate("ipygpumem.drawn.rows.length")
    rows = np.array(opened.evaluate("[...ipygpumem.drawn.rows]"))
    edges = np.linspace(0, opened.evaluate("ipygpumem.state.device.span"), columns + 1)
    since = CUDA.time - CUDA.start
    for column in range(0, columns, 37):
        changes = np.flatnonzero((since > edges[column]) & (since < edges[column + 1])) + 1
        carried = int((since <= edges[column]).sum())
        assert CUDA.total[rows[column]] == max(CUDA.total[changes].max(initial=0), CUDA.total[carried])


def test_second_device(opened):
    opened.locator("select").first.select_option(label="cpu")
    settled(opened)
    assert opened.evaluate("ipygpumem.state.device.peak.bytes") == HOST.peak[1]
    assert f"of {len(HOST):,}" in caption(opened)
    assert opened.locator(".chip.line").count() == 0, "the host allocator has no counters outside the profile"


def test_exports(opened):
    with opened.expect_download() as download:
        opened.locator("button", has_text="PNG").click()
    assert download.value.suggested_filename == "my_timeline_.png"
    image = Image.open(download.value.path())
    assert image.width == 2 * opened.evaluate("ipygpumem.frame.clientWidth")
    assert len(image.convert("RGB").getcolors(1 << 24)) > len(CATEGORIES)
    with opened.expect_download() as download:
        opened.locator("button", has_text="CSV").click()
    rows = list(csv.reader(io.StringIO(Path(download.value.path()).read_text("utf-8-sig"))))
    assert rows[0] == ["change", "ns", *CATEGORIES, "allocated", "reserved"]
    assert len(rows) == len(CUDA) + 2
    row = CUDA.peak[0]
    assert [int(value) for value in rows[row + 1][:10]] == [row, CUDA.elapsed(row), *CUDA.usage[row].tolist()]
    assert int(rows[row + 1][10]) == CUDA.allocated[row - 1]


@both_schemes
def test_accessibility(opened):
    if not AXE.exists():
        pytest.skip("axe-core is not installed: npm ci in ipygpumem/viewer")
    opened.evaluate(AXE.read_text(encoding="utf-8"))
    result = opened.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert [
        (violation["id"], [node["html"][:120] for node in violation["nodes"]]) for violation in result["violations"]
    ] == []


@pytest.mark.parametrize("width", [360, 700])
def test_narrow_window(opened, width):
    opened.set_viewport_size({"width": width, "height": 700})
    settled(opened)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width


def test_damaged_data(page, tmp_path):
    text = timeline_page((HOST,), "x.html")
    start = text.index('class="ipygpumem-data"')
    file = tmp_path / "x.html"
    file.write_text(text[: start + 200] + "AAAA" + text[start + 204 :], encoding="utf-8")
    page.goto(file.as_uri())
    page.locator("text=The profile cannot be shown").wait_for()


def test_half_a_million_allocations(page, tmp_path):
    large_timeline = random_timeline(500_000)
    file = tmp_path / "many.html"
    file.write_text(timeline_page((large_timeline,), "many.html"), encoding="utf-8")
    page.goto(file.as_uri())
    page.wait_for_function("window.ipygpumem")
    row, level = large_timeline.peak
    assert page.evaluate("ipygpumem.state.device.overallPeak") == {"row": row, "bytes": level}
    assert row in page.evaluate("[...ipygpumem.drawn.rows]")
    page.evaluate("ipygpumem.state.setAxis('change')")
    page.evaluate(f"ipygpumem.state.setView([{row - 3}, {row + 5}])")
    settled(page)
    drawn_rows = page.evaluate("[...new Set(ipygpumem.drawn.rows)]")
    assert drawn_rows == list(range(row - 3, min(row + 5, len(large_timeline) + 1))), (
        "each change is visible when zoomed in"
    )
