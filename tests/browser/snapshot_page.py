"""A snapshot's page in Chromium, with everything that it logged and requested."""

from __future__ import annotations

import re
import time
from functools import cache
from pathlib import Path

import pytest

from ipygpumem.viewer.write import PageData, page

both_schemes = pytest.mark.parametrize("page", ["light", "dark"], indirect=True)

DRAWN = "performance.getEntriesByName('ipygpumem:drawn').length"
SETTLED = """async () => {
    const frame = () => new Promise(resolve => requestAnimationFrame(resolve));
    await frame();
    await frame();
    await window.ipygpumem.device();
}"""
RESET = """async () => {
    const root = document.getElementById("ipygpumem").shadowRoot;
    for (const field of root.querySelectorAll("input[type=search]")) {
        if (!field.value) continue;
        field.value = "";
        field.dispatchEvent(new Event("input"));
    }
    root.activeElement?.blur();
    do {  // again if the page has just replaced the address by its earlier state
        history.replaceState(null, "", "#t=about");
        const changed = new Promise(resolve => addEventListener("hashchange", resolve, { once: true }));
        location.hash = "";
        await changed;
    } while (location.hash);
}"""
BYTE_AXIS_X = 70
"""Horizontal position at which the labels of the byte axis end in an exported image, in CSS pixels."""


@cache
def encoded(snapshot):
    return PageData(snapshot.name, snapshot.encode())


class SnapshotPage:
    def __init__(self, browser, folder, *snapshots, scheme="light", size=(1280, 900), hash_="", text=None):
        self.context = browser.new_context(
            color_scheme=scheme, viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce"
        )
        self.page = self.context.new_page()
        self.page.set_default_timeout(60_000)
        self.messages = []
        self.requests = []
        self.page.on("console", lambda message: self.messages.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.path = folder / f"viewer{len(list(folder.iterdir()))}.html"
        if text is None:
            text = page([encoded(snapshot) for snapshot in snapshots])
        self.path.write_text(text, encoding="utf-8")
        self.address = self.path.as_uri()
        self.page.goto(self.address + hash_)

    def drawn(self):
        end = time.monotonic() + 60
        # The policy of the page forbids eval, which wait_for_function needs
        while not self.page.evaluate(DRAWN):
            assert time.monotonic() < end, self.page.locator("#ipygpumem").inner_text()
            self.page.wait_for_timeout(10)
        self.settle()
        return self

    def reset(self):
        self.page.mouse.move(0, 0)
        self.page.keyboard.press("Escape")
        self.page.evaluate(RESET)
        self.settle()
        self.messages.clear()

    def call(self, text):
        return self.page.evaluate(f"window.ipygpumem.{text}")

    def settle(self):
        self.page.evaluate(SETTLED)

    def until(self, condition, seconds=60):
        end = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < end, "the condition does not hold"
            self.page.wait_for_timeout(20)
        return value

    def press(self, *keys):
        for key in keys:
            self.page.keyboard.press(key)
            self.settle()

    @property
    def plot(self):
        return self.page.locator(".plot").first

    @property
    def plot_height(self):
        return int(self.page.locator("canvas.picture").first.get_attribute("height"))

    def visible(self):
        return self.call("view()")

    def export(self, kind):
        self.page.locator(".menu summary").click()
        with self.page.expect_download() as download:
            self.page.get_by_role("button", name=kind).click()
        return Path(download.value.path()), download.value.suggested_filename

    def byte_labels(self):
        """Return the labels of all byte axes from top to bottom, each with the width to which it was compressed."""
        svg = self.export("Image as SVG")[0].read_text(encoding="utf-8")
        texts = re.findall(r"<text ([^>]*)>([^<]*)</text>", svg)
        axis = [(facts, text) for facts, text in texts if f'x="{BYTE_AXIS_X}"' in facts]
        widths = [re.search(r'textLength="([\d.]+)"', facts) for facts, _ in axis]
        return [(text, width and float(width[1])) for (_, text), width in zip(axis, widths, strict=True)]

    def foreign_requests(self):
        own = ("blob:", "data:", self.address)
        return [url for url in self.requests if not url.startswith(own)]

    def close(self):
        self.context.close()
