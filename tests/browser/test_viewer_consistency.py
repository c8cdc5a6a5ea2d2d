"""Labels, links, tooltips and API calls that agree with the data."""

from __future__ import annotations

import pickle

import pytest

from ipygpumem.snapshot import Snapshot
from ipygpumem.viewer.write import PageData, page
from snapshot.files import path


@pytest.fixture(scope="module")
def small():
    return Snapshot.load(path("gpt_small"))


@pytest.mark.parametrize("span", [5 << 20, 1 << 19, 200])
def test_labels_of_a_zoomed_byte_axis_are_distinct(viewing, small, span):
    view = viewing(small)
    view.call(f"zoom(200, 400, {1893068808 - span}, 1893068808)")
    labels = view.byte_labels()
    assert len(labels) >= 3
    assert len({text for text, _ in labels}) == len(labels), labels
    assert all(width is None or width <= 68 for _, width in labels), "labels fit into the margin"


def test_tooltip_is_updated_below_a_resting_pointer(viewing, small):
    view = viewing(small)
    view.call("zoom(200, 400)")
    box = view.plot.bounding_box()
    spot = (box["x"] + 200, box["y"] + box["height"] - 60)
    tooltip = view.page.locator(".tooltip")
    view.page.mouse.move(*spot)
    tooltip.wait_for(state="visible")

    def agrees():
        facts = view.call(f"pick({spot[0]}, {spot[1]})")
        text = f"event {facts['event']:,}"
        if facts["last"] > facts["first"]:
            text = f"events {facts['first']:,} \N{EN DASH} {facts['last']:,}"
        view.page.locator(".tooltip", has_text=text).wait_for(timeout=60_000)
        return text

    before = agrees()
    view.plot.focus()
    view.press("PageDown")
    after = agrees()
    assert after != before
    before = view.visible()
    view.page.mouse.wheel(0, 1500)
    view.until(lambda: view.visible() != before)
    assert agrees() != after


@pytest.mark.parametrize(
    "link",
    [
        "#x=300000~400000&y=5e9~6e9",
        "#x=1e308~1.1e308",
        "#x=-1e300~1e300",
        "#y=-1e12~-1e11",
        "#a=time&x=1e15~2e15",
        "#x=-1e308~1e308",
    ],
)
def test_link_outside_of_the_data_shows_everything(viewing, small, link):
    view = viewing(small, hash_=link)
    visible_range = view.visible()
    assert view.call("fit()") == visible_range
    assert visible_range["maximum"] == small.peak().requested


def test_link_beyond_the_data_is_limited(viewing, small):
    view = viewing(small, hash_="#x=8000~9000&y=-1e8~4e8")
    entries = len(small.timeline().trace)
    visible_range = view.visible()
    assert (visible_range["x0"], visible_range["x1"]) == (entries - 1000, entries)
    assert (visible_range["y0"], visible_range["y1"]) == (0, 5e8)
    view.page.evaluate("location.hash = '#x=1e9~2e9'")
    view.until(lambda: view.visible()["x0"] == -1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("zoom(NaN, 3)", "first must be an integer, but got NaN"),
        ("zoom(3)", "last must be an integer, but got undefined"),
        ("zoom(5, 3)", "first (5) must not be greater than last (3)"),
        ("zoom(1, 3, 10)", "high must be a number, but got undefined"),
        ("zoom(1, 3, 10, 10)", "low (10) must be less than high (10)"),
        ("select(NaN)", "event must be an integer, but got NaN"),
        ("select(99999)", "There is no event 99999: events range from -1 (before the first event) to 8087"),
        ("state(1.5)", "event must be an integer, but got 1.5"),
        ("search(null)", "search: text must not be empty, but got null"),
        ("search('  ')", 'search: text must not be empty, but got "  "'),
        ("device('x')", 'device must be an integer, but got "x"'),
        ("device(3)", "There is no device 3 in this snapshot"),
        ("pick(1)", "y must be a number, but got undefined"),
    ],
)
def test_invalid_calls(viewing, small, call, message):
    view = viewing(small)
    before = view.visible()
    facts = view.page.evaluate(f"window.ipygpumem.{call}.then(() => 'done', problem => problem.message)")
    assert message in facts
    assert view.visible() == before


def test_event_list_opens_at_the_cursor(viewing, small):
    view = viewing(small)
    view.call("select(5000)")
    view.page.get_by_role("tab", name="Events").click()
    view.page.locator(".rows .marked", has_text="5,000").wait_for(timeout=60_000)
    view.call("select(12)")
    view.page.locator(".rows .marked", has_text="12").wait_for(timeout=60_000)
    view.page.locator(".list").press("End")
    view.page.locator(".rows .event", has_text="8,087").wait_for(timeout=60_000)


def test_cursor_that_follows_the_pointer_returns(viewing, small):
    view = viewing(small)
    view.call("select(3)")
    box = view.plot.bounding_box()
    title = view.page.locator(".live .title")
    view.page.get_by_label("Follow the pointer").check()
    view.page.mouse.move(box["x"] + 300, box["y"] + 60)
    view.page.locator(".live .title", has_text="at event 2,").or_(
        view.page.locator(".live .title", has_text="at event 1,")
    ).or_(view.page.locator(".live .title", has_text="at event 3,")).first.wait_for(timeout=60_000)
    view.page.mouse.move(box["x"] + 300, 2)
    view.page.locator(".live .title", has_text="Live at event 3:").wait_for(timeout=60_000)
    view.page.mouse.move(box["x"] + 200, box["y"] + 60)
    view.page.mouse.click(box["x"] + 200, box["y"] + 60)
    view.call("device()")
    clicked = title.inner_text()
    view.page.mouse.move(box["x"] + 200, 2)
    view.settle()
    assert title.inner_text() == clicked, "the cursor stays at the clicked position"


def test_host_without_blob_addresses(browser, small, tmp_path):
    text = page([PageData("gpt_small", small.encode())])
    context = browser.new_context()
    opened = context.new_page()
    opened.add_init_script("URL.createObjectURL = () => { throw new TypeError('not here'); };")
    (tmp_path / "page.html").write_text(text, encoding="utf-8")
    opened.goto((tmp_path / "page.html").as_uri())
    opened.locator(".facts", has_text="1.8 GiB").wait_for(timeout=60_000)
    context.close()


def test_lower_bounds_are_marked(viewing, small):
    view = viewing(small)
    view.call("select(3)")
    older_row = view.page.locator(".live tbody tr", has_text="older than the recording")
    assert "\N{GREATER-THAN OR EQUAL TO} " in older_row.inner_text(), "alive before the first event: a lower bound"
    freed_row = view.page.locator(".live tbody tr", has_text="train_gpt.py:10 forward")
    assert "\N{GREATER-THAN OR EQUAL TO}" not in freed_row.inner_text()
    assert view.page.locator(".legend").inner_text().startswith("At the peak:")
    box = view.plot.bounding_box()
    for y in range(8, 200, 4):
        facts = view.call(f"pick({box['x'] + 300}, {box['y'] + view.plot_height - y})")
        if facts["kind"] == "allocation" and facts["allocation"]["start"] is None:
            break
    view.page.mouse.move(box["x"] + 300, box["y"] + view.plot_height - y)
    view.page.locator(".tooltip", has_text="\N{GREATER-THAN OR EQUAL TO} ").wait_for(timeout=60_000)
    view.plot.focus()
    view.page.keyboard.press("?")
    assert "paler shade" in view.page.locator("dialog").inner_text()


def test_small_peak_is_not_shown_as_zero(viewing, tmp_path_factory):
    block = {"addr": 512, "size": 512, "stream": 0, "frames": []}
    events = [{"action": "alloc", "time_us": 1, **block}, {"action": "free_completed", "time_us": 2, **block}]
    file = tmp_path_factory.mktemp("few") / "few.pickle"
    file.write_bytes(pickle.dumps({"segments": [], "device_traces": [events]}))
    snapshot = Snapshot.load(file)
    view = viewing(snapshot)
    assert view.page.locator(".facts div", has_text="Peak").locator("dd").inner_text() == "512 B"
