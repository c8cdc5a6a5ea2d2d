"""Render the screenshots of the documentation in Chromium: ``python docs/screenshots.py [DIRECTORY]``."""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent / "tests"
sys.path[:0] = [str(HERE.parent), str(TESTS)]

if TYPE_CHECKING:
    from collections.abc import Callable

FRAMES = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


def main() -> None:
    """Render all screenshots. No GPU is needed."""
    from playwright.sync_api import sync_playwright

    from browser import chromium

    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE
    path = chromium.find()
    if path is None:
        raise SystemExit("Chromium is not installed: run python tests/browser/chromium.py")
    with tempfile.TemporaryDirectory() as directory, sync_playwright() as playwright:
        browser = playwright.chromium.launch(args=["--no-sandbox"], **({"executable_path": path} if path else {}))

        def render(name: str, html: Path, size: tuple[int, int], show: Callable[[Any], None], scheme: Any) -> None:
            viewport = {"width": size[0], "height": size[1]}
            page = browser.new_page(viewport=viewport, color_scheme=scheme)
            page.goto(html.as_uri())
            show(page)
            page.evaluate(FRAMES)
            save(page.screenshot(), target / name)
            page.close()

        timeline, _ = viewer_page("gpt_small", directory)
        render("viewer-timeline.png", timeline, (1400, 900), lambda page: select(page, 5400), "light")
        state, event = viewer_page("oom_fragmented", directory)
        render("viewer-state.png", state, (1400, 900), lambda page: show_state(page, event), "dark")
        render("profile-timeline.png", profile_page(directory), (1180, 870), point_at_gradients, "light")
        browser.close()


def viewer_page(name: str, directory: str) -> tuple[Path, int]:
    """Write the viewer's page of a snapshot. Return its path and the event that ran out of memory, or 0."""
    from ipygpumem.snapshot import Snapshot
    from ipygpumem.viewer.write import PageData, page

    snapshot = Snapshot.load(TESTS / "data" / f"{name}.pickle.xz")
    path = Path(directory) / f"{name}.html"
    path.write_text(page([PageData(snapshot.name, snapshot.encode())]), encoding="utf-8")
    return path, next((oom.event for oom in snapshot.ooms()), 0)


def profile_page(directory: str) -> Path:
    """Profile three training steps of ResNet-50 on the CPU, and return the path of the timeline."""
    import ipygpumem
    from fakes.programs import example

    path = Path(directory) / "resnet50.html"
    run = example(steps=3, side=112)
    run()  # creates the optimizer state
    with ipygpumem.measure(timeline=path):
        run()
    return path


def select(page: Any, event: int) -> None:
    """Select the allocation of an event."""
    page.evaluate(f"window.ipygpumem.select({event}).then(() => 0)")


def show_state(page: Any, event: int) -> None:
    """Show the state of the allocator after an event."""
    page.evaluate(f"window.ipygpumem.state({event}).then(() => 0)")


def point_at_gradients(page: Any) -> None:
    """Move the pointer to the gradients of the second step, with the changes as the axis.

    Unlike the time axis, it does not depend on the load of the machine.
    """
    page.wait_for_function("window.ipygpumem")
    page.get_by_label("Axis").select_option("change")
    box = page.locator(".pad").bounding_box()
    page.mouse.move(box["x"] + 0.53 * box["width"], box["y"] + 0.3 * box["height"])


def save(data: bytes, path: Path) -> None:
    """Write a screenshot with a palette of 256 colors, which makes the file smaller."""
    from PIL import Image

    Image.open(io.BytesIO(data)).convert("RGB").quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)


if __name__ == "__main__":
    main()
