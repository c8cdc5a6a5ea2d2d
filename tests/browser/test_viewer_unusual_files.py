"""Unusual and damaged snapshots, and browsers that lack features."""

from __future__ import annotations

import base64
import re
from pathlib import Path

import pytest

from browser.snapshot_page import SnapshotPage
from ipygpumem.snapshot import Snapshot
from ipygpumem.viewer.write import PageData, page

HOSTILE = "</script><img src=x onerror='window.broken = 1'>=cmd|'x'!A1\u202e\x00\U0001f600\ud800"
BASE = 0x7F0000000000
START = 1_700_000_000_000_000


def event(action, address, size, number, **fields):
    return {
        "action": action,
        "addr": address,
        "size": size,
        "stream": 0,
        "time_us": START + number,
        "frames": [],
        **fields,
    }


def frame(name, line=1, file="/home/user/train.py"):
    return {"filename": file, "line": line, "name": name}


def segment(address, size, blocks, **fields):
    return {
        "device": 0,
        "address": address,
        "total_size": size,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        "blocks": blocks,
        **fields,
    }


def block(address, size, requested=None, state="active_allocated"):
    return {"address": address, "size": size, "requested_size": requested or size, "state": state, "frames": []}


def content_of(*events, **fields):
    return {"segments": [], "device_traces": [list(events)], **fields}


def deep(count):
    return [frame(f"f{number}", number + 1) for number in range(count)]


def many_stacks(count):
    frames = [[frame(f"function_{number}", number + 1), frame("main", 1)] for number in range(count)]
    return content_of(*(event("alloc", BASE + 512 * n, 512, n, frames=frames[n]) for n in range(count)))


CASES = {
    "an empty trace": content_of(),
    "one event": content_of(event("alloc", BASE, 1 << 20, 0)),
    "one free of nothing": content_of(event("free_completed", BASE, 1 << 20, 0)),
    "only segments": {"segments": [segment(BASE, 4 << 20, [block(BASE, 1 << 20), block(BASE + (1 << 20), 3 << 20)])]},
    "no frames": content_of(
        {"action": "alloc", "addr": BASE, "size": 5 << 20, "stream": 0, "time_us": START},
        {"action": "alloc", "addr": BASE + (8 << 20), "size": 5 << 20, "stream": 0, "time_us": START + 5},
    ),
    "0-byte sizes": content_of(*(event("alloc", BASE + n, 0, n) for n in range(50))),
    "2^53 addresses": content_of(
        *(event("alloc", (1 << 62) + 4096 * n, 4096, n) for n in range(40)),
        *(event("free_completed", (1 << 62) + 4096 * n, 4096, 100 + n) for n in range(20)),
    ),
    "10,000 stacks": many_stacks(10_000),
    "400-deep stacks": content_of(*(event("alloc", BASE + 512 * n, 512, n, frames=deep(400)) for n in range(3))),
    "no times": content_of(
        *({"action": "alloc", "addr": BASE + 512 * n, "size": 512, "stream": 0, "frames": []} for n in range(9))
    ),
    "all at one microsecond": content_of(*(event("alloc", BASE + 512 * n, 512, 0) for n in range(300))),
    "hostile names": content_of(
        event("alloc", BASE, 1 << 20, 0, frames=[frame(HOSTILE, 3, f"/home/{HOSTILE}.py")], user_metadata=HOSTILE),
        event("alloc", BASE + (1 << 20), 1 << 20, 5, frames=[frame("Ω漢字", 3, "/home/пример.py")]),
        external_annotations=[
            {"name": HOSTILE, "stage": "START", "device": 0, "time_us": START},
            {"name": HOSTILE, "stage": "END", "device": 0, "time_us": START + 9},
        ],
        allocator_settings={HOSTILE: HOSTILE},
    ),
}


@pytest.fixture
def viewing(browser, tmp_path):
    opened = []

    def view(*snapshots, **options):
        opened.append(SnapshotPage(browser, tmp_path, *snapshots, **options))
        return opened[-1]

    yield view
    for page_view in opened:
        assert page_view.foreign_requests() == []
        page_view.close()


def look_around(view):
    box = view.plot.bounding_box()
    for tab in ("Allocator state", "Events", "Compare", "File", "Allocations"):
        view.page.get_by_role("tab", name=tab).click()
        view.settle()
    for axis in ("Time", "Events"):
        button = view.page.get_by_role("radio", name=axis)
        if button.is_enabled():
            button.click()
        view.call("fit()")
        view.call(f"pick({box['x'] + box['width'] / 2}, {box['y'] + box['height'] - 40})")
    view.page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] - 40)
    for key in ("ArrowRight", "ArrowUp", "+", "]", "p", "End", "Home", "r", "Escape", "0"):
        view.page.keyboard.press(key)
    view.call("search('0x7f0000000000')")
    view.call("search('f')")
    view.call("state(0)")


@pytest.mark.parametrize("name", CASES)
def test_unusual_files(viewing, name):
    snapshot = Snapshot.load(CASES[name])
    view = viewing(snapshot).drawn()
    facts = view.call("device()")
    timeline = snapshot.timeline()
    assert facts["peak"]["bytes"] == timeline.requested.peak()[1]
    assert facts["events"] == len(timeline.trace)
    look_around(view)
    assert view.messages == []
    assert view.page.evaluate("window.broken") is None
    assert view.page.locator("img").count() == 0


def test_large_addresses_are_exact(viewing):
    snapshot = Snapshot.load(CASES["2^53 addresses"])
    view = viewing(snapshot).drawn()
    answer = view.call("select(7)")["allocation"]
    assert answer["address"] == hex((1 << 62) + 4096 * 7)
    assert answer["name"] == f"b{(1 << 62) + 4096 * 7:x}_0"
    assert view.call(f"search('{answer['name']}')")["allocations"] == 1


def test_deep_stacks_are_shown_in_parts(viewing):
    view = viewing(Snapshot.load(CASES["400-deep stacks"])).drawn()
    view.call("select(1)")
    stack = view.page.locator(".details .stack")
    assert stack.locator("li").count() == 41
    assert stack.bounding_box()["height"] <= 420
    assert view.page.locator("*").count() < 1500
    view.page.get_by_role("button", name="360 more").click()
    assert stack.locator("li").count() == 81
    assert view.page.get_by_role("button", name="320 more").count() == 1


def test_repeated_calls_are_folded(viewing):
    frames = [frame("leaf", 9), *[frame("even", 3), frame("odd", 5)] * 30, frame("main", 1)]
    view = viewing(Snapshot.load(content_of(event("alloc", BASE, 512, 0, frames=frames)))).drawn()
    view.call("select(0)")
    lines = view.page.locator(".details .stack > li").all_inner_texts()
    assert [line.split("\n")[0] for line in lines] == ["leaf", "even", "odd", "↑ 2 frames, 29 more times", "main"]


def test_long_file_names_take_few_lines(viewing):
    frames = [frame("f", 3, f"/home/{'long_' * 1000}.py")]
    view = viewing(Snapshot.load(content_of(event("alloc", BASE, 1 << 20, 0, frames=frames)))).drawn()
    view.call("select(0)")
    for place in (".finding", ".live tbody th", ".details .where", ".details .stack li"):
        assert view.page.locator(place).first.bounding_box()["height"] < 130, place


def test_names_that_cannot_be_broken_do_not_widen_the_page(viewing):
    frames = [frame("\u0e49" * 400, 3)]
    view = viewing(Snapshot.load(content_of(event("alloc", BASE, 1 << 20, 0, frames=frames)))).drawn()
    view.call("select(0)")
    width = "[document.documentElement.scrollWidth, innerWidth]"
    for tab in ("Allocator state", "Events", "File", "Allocations"):
        view.page.get_by_role("tab", name=tab).click()
        view.settle()
        content, window = view.page.evaluate(width)
        assert content <= window, tab


def test_markup_in_names_is_escaped(viewing):
    view = viewing(Snapshot.load(CASES["hostile names"])).drawn()
    label = view.page.locator(".live tbody th").first.inner_text()
    assert "</script><img src=x onerror=" in label
    assert "\u202e" not in label
    answer = view.call("select(0)")["allocation"]
    assert "onerror" in answer["line"] and "onerror" in answer["metadata"]
    view.page.locator(".menu summary").click()
    with view.page.expect_download() as download_info:
        view.page.get_by_role("button", name="Image as SVG").click()
    assert "<img" not in Path(download_info.value.path()).read_text(encoding="utf-8")
    assert view.page.evaluate("window.broken") is None
    assert view.messages == []


def test_markup_in_a_file_name_is_escaped(viewing):
    snapshot = Snapshot.load(CASES["one event"])
    view = viewing(text=page([PageData(HOSTILE, snapshot.encode())])).drawn()
    assert "onerror" in view.page.title()
    assert view.page.evaluate("window.broken") is None
    assert view.messages == []


def test_file_without_devices(viewing):
    view = viewing(Snapshot.load({"segments": []}))
    view.page.get_by_text("contains no data for any device").wait_for()
    assert view.messages == []


@pytest.mark.parametrize("damage", ["cut", "turned", "foreign"])
def test_damaged_data(viewing, damage):
    data = Snapshot.load(CASES["10,000 stacks"]).encode()
    broken = {
        "cut": data[: len(data) // 2],
        "turned": data[:-2000] + bytes(byte ^ 0x55 for byte in data[-2000:]),
        "foreign": b"PK" + data,
    }[damage]
    view = viewing(text=page([PageData("x", broken)]))
    view.page.get_by_role("alert").wait_for()
    text = view.page.get_by_role("alert").inner_text()
    assert re.search("damaged|not in the format of ipygpumem", text), text
    assert view.messages == []


def replaced(script):
    text = page([PageData("made", Snapshot.load(CASES["hostile names"]).encode())])
    # the policy names the page's script by its hash: a different script needs a different policy
    return re.sub('content="default-src[^"]*"', 'content=""', text).replace(
        "<style>", f"<script>{script}</script><style>", 1
    )


def page_without(name):
    return replaced(f"delete window.{name};")


def test_browser_without_decompression(viewing):
    view = viewing(text=page_without("DecompressionStream; delete window.Worker"))
    view.page.get_by_text("This browser cannot decompress the data").wait_for()


def test_browser_without_workers(viewing):
    view = viewing(text=page_without("Worker")).drawn()
    assert view.page.workers == []
    look_around(view)
    assert view.call("device()")["events"] == 2
    assert view.messages == []


def test_browser_without_scripts(browser, tmp_path):
    context = browser.new_context(java_script_enabled=False)
    opened = context.new_page()
    path = tmp_path / "page.html"
    path.write_text(page([PageData("x", Snapshot.load(CASES["one event"]).encode())]), encoding="utf-8")
    opened.goto(path.as_uri())
    assert "JavaScript is disabled" in opened.locator("noscript").inner_text()
    context.close()


def test_policy_forbids_connections(viewing):
    view = viewing(Snapshot.load(CASES["one event"])).drawn()
    blocked = view.page.evaluate(
        """async () => {
            const tries = [fetch("https://example.org/"), fetch("data:text/plain,x"),
                new Promise((_, fail) => {
                    const image = new Image();
                    image.onerror = fail;
                    image.src = "https://example.org/x.png";
                })];
            return (await Promise.allSettled(tries)).map(result => result.status);
        }"""
    )
    assert blocked == ["rejected"] * 3
    # the browser reports only the refused requests
    assert all(
        any(text in message for text in ("Content Security Policy", "Refused", "Failed to fetch"))
        for message in view.messages
    )
    view.requests.clear()


def test_data_are_base64(tmp_path):
    data = Snapshot.load(CASES["hostile names"]).encode()
    text = page([PageData("a", data)])
    (encoded,) = re.findall(r'class="ipygpumem-data"[^>]*>([^<]*)<', text)
    assert base64.b64decode(encoded, validate=True) == data


def test_worker_that_never_starts(viewing):
    view = viewing(text=replaced("window.Worker = class { postMessage() {} terminate() { window.ended = true; } };"))
    view.drawn()
    assert view.page.evaluate("window.ended") is True
    assert view.call("device()")["events"] == 2
    assert view.messages == []


def test_browser_without_canvas(viewing):
    view = viewing(text=replaced("HTMLCanvasElement.prototype.getContext = () => null;"))
    view.page.get_by_text("needs a 2D canvas").wait_for()
    assert view.messages == []
