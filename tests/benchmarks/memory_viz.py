"""PyTorch's own viewer for comparison: the page that ``python -m torch.cuda._memory_viz trace_plot`` writes.

The page loads MemoryViz.js and d3 from cdn.jsdelivr.net. Without a network, IPYGPUMEM_MEMORY_VIZ names a directory with
copies of MemoryViz.js, of process_alloc_data.js (which later versions import) and of d3 as one ES module, d3.js.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

COPIES = "IPYGPUMEM_MEMORY_VIZ"
TIMEOUT = 120  # seconds for one image
POLYGON_COUNT = "document.querySelectorAll('svg polygon').length"
#: Records the times of animation frames.
RECORD_FRAMES = """() => {
    window.frameTimes = [];
    const next = at => { window.frameTimes.push(at); requestAnimationFrame(next); };
    requestAnimationFrame(next);
}"""
FRAMES = "window.frameTimes.splice(0).map((at, i, all) => i ? at - all[i - 1] : 0).slice(1)"


def write(pickle, html):
    """Write the page. Return how many seconds this took, and the size of the page in bytes."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "torch.cuda._memory_viz", "trace_plot", str(pickle), "-o", str(html)]
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - start, html.stat().st_size


def serve(context):
    """Serve network requests from the directory with copies, if there is one."""
    folder = os.environ.get(COPIES)
    if not folder:
        return

    def respond(route):
        name = route.request.url.rsplit("/", 1)[-1]
        path = Path(folder, name if name in ("MemoryViz.js", "process_alloc_data.js") else "d3.js")
        route.fulfill(
            body=path.read_text(encoding="utf-8"),
            headers={"content-type": "text/javascript", "access-control-allow-origin": "*"},
        )

    context.route("https://**/*", respond)


def open_page(page, address):
    """Open the page. Return the milliseconds until the first image, or None after a timeout."""
    start = time.perf_counter()
    page.goto(address, wait_until="commit")
    while time.perf_counter() < start + TIMEOUT:
        if page.evaluate(POLYGON_COUNT):
            page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")
            return (time.perf_counter() - start) * 1e3
        page.wait_for_timeout(20)
    return None
