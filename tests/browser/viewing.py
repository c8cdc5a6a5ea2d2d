"""The stand-alone page in a real Chromium: opened, listened to, and asked."""

from __future__ import annotations

import time

from ipygpumem.viewer.page import PageData, page

DRAWN = "performance.getEntriesByName('ipygpumem:drawn').length"


class Viewing:
    """One page, and everything that it did which it should not have done."""

    def __init__(self, browser, folder, *snapshots, scheme="light", size=(1280, 900), hash_="", text=None):
        self.context = browser.new_context(
            color_scheme=scheme, viewport={"width": size[0], "height": size[1]}, reduced_motion="reduce"
        )
        self.page = self.context.new_page()
        self.problems = []
        self.requests = []
        self.page.on("console", lambda message: self.problems.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.path = folder / f"viewer{len(list(folder.iterdir()))}.html"
        if text is None:
            text = page([PageData(snapshot.name, snapshot.encode()) for snapshot in snapshots])
        self.path.write_text(text, encoding="utf-8")
        self.address = self.path.as_uri()
        self.page.goto(self.address + hash_)

    def drawn(self):
        end = time.monotonic() + 60
        # the page forbids eval, and wait_for_function needs it
        while not self.page.evaluate(DRAWN):
            assert time.monotonic() < end, self.page.locator("#ipygpumem").inner_text()
            self.page.wait_for_timeout(20)
        self.call("device()")
        return self

    def call(self, text):
        """``window.ipygpumem.TEXT``, as plain data."""
        return self.page.evaluate(f"window.ipygpumem.{text}")

    @property
    def plot(self):
        return self.page.locator(".plot").first

    @property
    def plot_height(self):
        """Pixels of the picture from top to bottom."""
        return int(self.page.locator("canvas.picture").first.get_attribute("height"))

    def shown(self):
        """The visible part of the axes, as it is."""
        return self.page.evaluate("window.ipygpumem.view()")

    def strangers(self):
        """Requests to anywhere but the page itself and its own worker."""
        return [
            one for one in self.requests if one != self.address and not one.startswith(("blob:", "data:", self.address))
        ]

    def close(self):
        self.context.close()
