"""The viewer in a headless Chromium: start, frame times, allocator state, DOM nodes, memory and page size.

Values in brackets are those of pytorch.org/memory_viz for the same file on the same kind of machine (two cores,
software rendering), measured once with its version of April 2026. If its code is available (see memory_viz.py), it is
measured in the same run.
"""

from __future__ import annotations

import contextlib
import json
import lzma
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.benchmarks import memory_viz
from tests.browser import chromium

ROOT = Path(__file__).parents[2]
LARGE = ROOT.parent / "shared" / "data" / "gpt_500k.pickle.xz"
EVENTS = 2_500_000
CROWD, LIVE = 500_000, 50_000
REPEATS = 5
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
SIZE = {"width": 1360, "height": 900}

PYTHON = """
import json, sys, time
from pathlib import Path
from ipygpumem.snapshot import Snapshot
from ipygpumem.viewer.write import PageData, page
began = time.perf_counter()
snapshot = Snapshot.load(sys.argv[1])
text = page([PageData(snapshot.name, snapshot.encode())])
seconds = time.perf_counter() - began
Path(sys.argv[2]).write_text(text, encoding="utf-8")
print(json.dumps({"seconds": seconds, "bytes": len(text.encode()), "events": len(snapshot.timeline().trace)}))
"""
MARK = "performance.getEntriesByName('ipygpumem:{}').map(entry => entry.startTime)[0]"
DURATIONS = "performance.getEntriesByName('ipygpumem:{}').map(entry => entry.duration)"
ELEMENTS = """() => {
    let count = 0;
    const walk = root => {
        for (const element of root.querySelectorAll('*')) {
            count++;
            if (element.shadowRoot) walk(element.shadowRoot);
        }
    };
    walk(document);
    return count;
}"""


def row(measure, value, target=""):
    return {"measure": measure, "value": value, "target": target}


def spread(values, digits=0):
    """Format the median with the minimum and the maximum, which indicate other load on the machine."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def p95(values):
    return sorted(values)[max(int(len(values) * 0.95) - 1, 0)]


def build(pickle, html):
    """Build the page in new processes. Return the seconds of each, together with the page's size and event count."""
    results = []
    for _ in range(REPEATS):
        process = subprocess.run(
            [sys.executable, "-c", PYTHON, str(pickle), str(html)],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
        )
        results.append(json.loads(process.stdout))
    return [result["seconds"] for result in results], results[0]


class ViewerPage:
    """A page in its own browser context."""

    def __init__(self, browser, address):
        self.context = browser.new_context(viewport=SIZE)
        self.page = self.context.new_page()
        self.page.goto(address)

    def drawn(self):
        """Return the milliseconds from the navigation to the first interactive image."""
        end = time.monotonic() + 120
        while (milliseconds := self.page.evaluate(MARK.format("drawn"))) is None:
            if time.monotonic() > end:
                raise RuntimeError("the page was not drawn within two minutes")
            self.page.wait_for_timeout(10)
        return milliseconds

    def durations(self, name):
        return self.page.evaluate(DURATIONS.format(name))

    def clear(self):
        self.page.evaluate("performance.clearMeasures()")

    def frames(self):
        """Return the milliseconds of each redraw while zooming in, dragging and zooming out."""
        self.clear()
        self.gestures()
        self.page.wait_for_timeout(200)
        return self.durations("frame")

    def gaps(self):
        """Return the milliseconds between animation frames during the same gestures."""
        self.page.evaluate(memory_viz.RECORD_FRAMES)
        self.gestures()
        return self.page.evaluate(memory_viz.FRAMES)

    def gestures(self):
        mouse = self.page.mouse
        mouse.move(500, 330)
        for _ in range(30):
            mouse.wheel(0, -120)
            self.page.wait_for_timeout(33)
        for _ in range(20):
            mouse.wheel(0, 120)
            self.page.wait_for_timeout(33)
        mouse.down()
        for step in range(30):
            mouse.move(500 + 6 * step, 330)
            self.page.wait_for_timeout(33)
        mouse.up()
        for _ in range(15):
            mouse.wheel(0, 120)
            self.page.wait_for_timeout(33)

    def states(self, events):
        """Return the milliseconds from each request for the state at an event until it is drawn."""
        self.page.evaluate("ipygpumem.state(0).then(() => 0)")
        self.clear()
        for number in range(1, 21):
            self.page.evaluate(f"ipygpumem.state({number * events // 21}).then(() => 0)")
            self.page.wait_for_timeout(30)
        return self.durations("state")

    def elements(self):
        """Return the number of elements of the page, with the panel that has the most elements."""
        maximum = 0
        for tab in ("Allocations", "Allocator state", "Events", "Compare", "File"):
            self.page.get_by_role("tab", name=tab).click()
            self.page.wait_for_timeout(200)
            maximum = max(maximum, self.page.evaluate(ELEMENTS))
        return maximum

    def close(self):
        self.context.close()


def resident(browser, address):
    """Return the memory of the renderer process of a page after some gestures, in bytes."""
    run = ViewerPage(browser, address)
    if address.startswith("file:"):
        run.drawn()
        run.frames()
    run.page.wait_for_timeout(500)
    memory = renderer()
    run.close()
    return memory


def renderer():
    """Return the memory of the largest renderer process, in bytes."""
    import psutil

    maximum = 0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any("--type=renderer" in argument for argument in process.cmdline()):
                maximum = max(maximum, process.memory_info().rss)
    return maximum


def measure_memory_viz(browser, pickle, html, ours):
    """Measure memory_viz with one file, compared with our viewer. Return a single row if its code is not available."""
    seconds, size = memory_viz.write(pickle, html)
    run = ViewerPage(browser, "about:blank")
    memory_viz.serve(run.context)
    first = memory_viz.open_page(run.page, html.as_uri())
    if first is None:
        run.close()
        return [
            row("memory_viz", f"not measured: cdn.jsdelivr.net is not reachable and {memory_viz.COPIES} is not set")
        ]
    gaps = p95(run.gaps())
    elements = run.page.evaluate(ELEMENTS)
    memory = renderer() - ours["empty"]
    run.close()
    return [
        row("memory_viz: Python, file to page", times(seconds, ours["seconds"], 2, "s")),
        row("memory_viz: browser, page to first image (15,000 allocations)", times(first, ours["first"], 0, "ms")),
        row("memory_viz: between animation frames, p95", times(gaps, ours["gaps"], 0, "ms")),
        row("memory_viz: DOM nodes (timeline alone)", times(elements, ours["elements"], 0, "")),
        row("memory_viz: renderer beyond an empty page", times(memory / 2**20, ours["memory"] / 2**20, 0, "MiB")),
        row("memory_viz: HTML", times(size / 1e6, ours["bytes"] / 1e6, 2, "MB")),
    ]


def times(bracketed, ours, digits, unit):
    return f"{bracketed:,.{digits}f} {unit}".rstrip() + f": {bracketed / ours:.1f} x ours"


def measure(browser, pickle, html, bracket, targets, *, suffix=""):
    """Measure the viewer with one file."""
    seconds, page_info = build(pickle, html)
    address = html.as_uri()
    opened, frames, states, gaps = [], [], [], []
    elements = 0
    for number in range(REPEATS):
        run = ViewerPage(browser, address)
        opened.append(run.drawn())
        run.page.wait_for_timeout(700)
        frames.append(p95(run.frames()))
        if number == 0:
            states = run.states(page_info["events"])
            gaps = run.gaps()
            elements = run.elements()
        run.close()
    empty = resident(browser, "about:blank")
    memory = resident(browser, address) - empty
    values = {
        "seconds": statistics.median(seconds),
        "first": statistics.median(opened),
        "gaps": p95(gaps),
        "elements": elements,
        "memory": memory,
        "empty": empty,
        "bytes": page_info["bytes"],
    }
    name = f"{page_info['events']:,} events{suffix}"
    rows = [
        row(f"{name}: Python, file to page", f"{spread(seconds, 2)} s", targets[0]),
        row(f"{name}: browser, page to first image{bracket[0]}", f"{spread(opened)} ms", targets[1]),
        row(f"{name}: frame while panning and zooming, p95{bracket[1]}", f"{spread(frames)} ms", "<= 33 ms"),
        row(f"{name}: between animation frames meanwhile, p95", f"{values['gaps']:.0f} ms"),
        row(f"{name}: allocator state at an event{bracket[2]}", f"{spread(states)} ms", targets[4]),
        row(f"{name}: DOM nodes{bracket[3]}", f"{elements:,}", "< 1,500"),
        row(f"{name}: renderer beyond an empty page{bracket[4]}", f"{memory / 2**20:.0f} MiB", targets[2]),
        row(f"{name}: stand-alone HTML{bracket[5]}", f"{page_info['bytes'] / 1e6:.2f} MB", targets[3]),
    ]
    return rows, values


def run():
    if not LARGE.is_file():
        return [row("skipped", "../shared/data/gpt_500k.pickle.xz does not exist")]
    path = chromium.find()
    if path is None:
        return [row("skipped", "Chromium is not installed: run python tests/browser/chromium.py")]
    from playwright.sync_api import sync_playwright

    rows = [row("load of the machine", f"{os.getloadavg()[0]:.1f} processes at the start")]
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        large, long = Path(folder, "large.pickle"), Path(folder, "long.pickle")
        with lzma.open(LARGE) as packed, large.open("wb") as file:
            shutil.copyfileobj(packed, file)
        make = [sys.executable, "-m", "tests.benchmarks.synthetic", str(EVENTS), str(long)]
        subprocess.run(make, check=True, cwd=ROOT)
        options = {"executable_path": path} if path else {}
        browser = playwright.chromium.launch(args=ARGUMENTS, **options)
        bracketed = (
            " [2.2 s with 15,000 allocations at most; state history 10.9 s]",
            " [183-451 ms]",
            " [570 ms]",
            " [336,000]",
            " [1-2 GB]",
            " [61 MB, and blank without network]",
        )
        targets = ("<= 1.0 s", "<= 600 ms", "<= 200 MB", "<= 1.5 MB", "<= 50 ms")
        measured, values = measure(browser, large, Path(folder, "large.html"), bracketed, targets)
        rows += measured + measure_memory_viz(browser, large, Path(folder, "theirs.html"), values)
        no_memory_viz = ("", "", "", "", "", " [1.2 GB, never drawn]")
        targets = ("with the browser <= 8 s", "see above", "", "<= 8 MB", "")
        rows += measure(browser, long, Path(folder, "long.html"), no_memory_viz, targets)[0]
        live_file = Path(folder, "crowd.pickle")
        make = [sys.executable, "-m", "tests.benchmarks.synthetic", str(CROWD), str(live_file), str(LIVE)]
        subprocess.run(make, check=True, cwd=ROOT)
        rows += measure(
            browser, live_file, Path(folder, "crowd.html"), [""] * 6, [""] * 5, suffix=f", {LIVE:,} of them live"
        )[0]
        browser.close()
    rows.append(row("load of the machine", f"{os.getloadavg()[0]:.1f} processes at the end"))
    return rows
