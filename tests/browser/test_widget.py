"""The viewer in JupyterLab: drawn, run again, closed, with a restarted kernel, and untrusted."""

from __future__ import annotations

import contextlib
import json
from urllib.parse import urlsplit

import nbformat
import pytest

from ipygpumem import Snapshot
from snapshot import files

KERNEL = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
HINT = "(run this cell to display the interactive viewer of gpt_small.pickle.xz)"
LOAD = f"from ipygpumem import Snapshot\nsnapshot = Snapshot.load({str(files.path('gpt_small'))!r})\n"
WIDGET = "application/vnd.jupyter.widget-view+json"

API = """async ([cell, call]) => {
    const outputs = document.querySelectorAll('.jp-Notebook .jp-CodeCell')[cell].querySelectorAll('.jp-OutputArea *');
    const viewer = [...outputs].find((one) => one.ipygpumem)?.ipygpumem;
    return viewer ? await Function('viewer', `return viewer.${call}`)(viewer) : null;
}"""


class Notebook:
    def __init__(self, lab, page, name, *sources, loads=False):
        """Open a new notebook. If ``loads`` is true, its address is loaded, so that the page can be reloaded."""
        self.lab, self.page, self.name = lab, page, name
        self.errors, self.hosts = [], set()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("console", lambda line: line.type == "error" and self.errors.append(line.text))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).hostname))
        cells = [nbformat.v4.new_code_cell(source) for source in sources]
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), self.path)
        if loads:
            page.goto(lab.notebook_url(name))
        else:
            lab.open(page, name)
        page.get_by_text("| Idle").wait_for(timeout=60_000)

    @property
    def path(self):
        return self.lab.folder / self.name

    def cell(self, number):
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(number)

    def run(self, number):
        self.cell(number).locator(".jp-InputArea-editor").click()
        self.page.keyboard.press("Control+Enter")

    def call(self, cell, call):
        """Call a function of the viewer's API and return its result; None while there is no viewer."""
        return self.page.evaluate(API, [cell, call])

    def drawn(self, cell, seconds=60):
        for _ in range(seconds * 20):
            if self.call(cell, "view()") and not self.static_image(cell).is_visible():
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(f"no viewer in cell {cell}: {self.cell(cell).inner_text()} {self.errors}")

    def static_image(self, cell):
        return self.cell(cell).locator("img[src^='data:image/png;base64,']")

    def save(self):
        before = self.path.stat().st_mtime_ns
        self.page.keyboard.press("Control+s")
        for _ in range(1200):
            if self.path.stat().st_mtime_ns != before:
                with contextlib.suppress(ValueError):  # the server is still writing the file
                    return nbformat.read(self.path, as_version=4)
            self.page.wait_for_timeout(50)
        raise AssertionError("the notebook was not saved")

    def reload(self):
        self.page.reload()
        self.page.locator(".jp-OutputArea-output").first.wait_for(state="attached", timeout=60_000)
        self.page.get_by_text("| Idle").wait_for(timeout=60_000)

    def restart(self):
        self.page.keyboard.press("Escape")
        self.page.get_by_role("menuitem", name="Kernel").click()
        self.page.get_by_text("Restart Kernel…", exact=True).click()
        self.page.locator(".jp-Dialog .jp-mod-accept").click()
        self.page.get_by_text("| Idle").wait_for(timeout=60_000)


@pytest.fixture(scope="module")
def snapshot():
    return Snapshot.load(files.path("gpt_small"))


def test_viewer_through_reload_and_restart(lab, page, snapshot):
    sources = f"{LOAD}snapshot.view()", "view = snapshot.view()\nview", "view.close()"
    notebook = Notebook(lab, page, "session.ipynb", *sources, loads=True)
    event, requested = snapshot.timeline().requested.peak()

    notebook.run(0)
    notebook.drawn(0)
    peak = notebook.call(0, "peak()")
    assert (peak["event"], peak["bytes"]) == (event, requested)

    # two viewers do not disturb each other
    notebook.run(1)
    notebook.drawn(1)
    initial_range = notebook.call(0, "view()")
    assert notebook.call(1, "zoom(100, 900)") != initial_range
    assert notebook.call(0, "view()") == initial_range

    # the kernel stores the visible range, and the next page shows it
    for milliseconds in (1500, 10_000, 30_000):  # until the range has been sent and stored
        zoomed_range = notebook.call(0, "zoom(2000, 2500)")
        assert zoomed_range != initial_range
        page.wait_for_timeout(milliseconds)
        notebook.save()
        notebook.reload()
        notebook.drawn(0)
        if notebook.call(0, "view()") == zoomed_range:
            break
    assert notebook.call(0, "view()") == zoomed_range

    # run the same cell again: one viewer, and the first one is removed
    notebook.run(0)
    notebook.drawn(0)
    assert notebook.cell(0).locator(".jp-OutputArea-child").count() == 2

    # after closing the viewer, the image is shown
    notebook.run(2)
    notebook.static_image(1).wait_for(state="visible", timeout=60_000)
    assert notebook.call(1, "peak()") is None
    assert notebook.call(0, "peak()")["bytes"] == requested, "the other viewer still works"

    # the notebook file contains none of the data
    document = notebook.save()
    assert notebook.path.stat().st_size < 300_000
    assert "widgets" not in document.metadata
    assert [set(output["data"]) for output in document.cells[0].outputs] == [
        {"text/plain", "image/png"},
        {"text/plain", WIDGET},
    ]
    assert document.cells[0].outputs[0]["data"]["text/plain"] == snapshot.summary()
    assert notebook.errors == []
    assert notebook.hosts <= {"127.0.0.1", None}, "no network"

    # reload the page: the kernel still has the widget
    notebook.reload()
    notebook.drawn(0)
    assert notebook.call(0, "peak()")["bytes"] == requested

    # restart the kernel: the open page still works, and the next page shows the image
    notebook.restart()
    assert notebook.call(0, "peak()")["bytes"] == requested
    notebook.reload()
    notebook.static_image(0).wait_for(state="visible", timeout=60_000)
    assert notebook.static_image(1).is_visible()
    page.wait_for_timeout(1000)
    assert notebook.static_image(0).is_visible()


def test_comparison_of_two_snapshots(lab, tab):
    notebook = Notebook(lab, tab, "compare.ipynb", f"{LOAD}snapshot.view(snapshot)", "snapshot.view().widget")
    notebook.run(0)
    for _ in range(300):
        images = notebook.static_image(0)
        if notebook.call(0, "view()") and not any(image.is_visible() for image in images.all()):
            break
        tab.wait_for_timeout(200)
    assert images.count() == 2
    assert not any(image.is_visible() for image in images.all())
    # A widget without a image does not hide the images of other widgets
    tab.evaluate("document.querySelectorAll('.jp-OutputArea-child').forEach((area) => { area.style.display = '' })")
    notebook.run(1)
    for _ in range(300):
        if notebook.call(1, "view()"):
            break
        tab.wait_for_timeout(200)
    tab.wait_for_timeout(500)
    assert all(image.is_visible() for image in images.all())
    assert notebook.errors == []


def test_busy_kernel(lab, tab):
    code = "snapshot.view()._ipython_display_()\nwhile not os.path.exists('end of busy cell'): time.sleep(0.05)"
    notebook = Notebook(lab, tab, "busy.ipynb", f"{LOAD}import os, time\n{code}")
    notebook.run(0)
    waiting_message = notebook.cell(0).get_by_text("Waiting for the kernel, which is busy or not running")
    waiting_message.wait_for(timeout=60_000)
    assert notebook.static_image(0).is_visible()
    (lab.folder / "end of busy cell").touch()
    notebook.drawn(0)
    assert waiting_message.count() == 0
    assert notebook.errors == []


def test_kernel_that_dies(lab, tab):
    code = "import os, time\nsnapshot.view()._ipython_display_()\ntime.sleep(3)\nos.kill(os.getpid(), 9)"
    notebook = Notebook(lab, tab, "dies.ipynb", f"{LOAD}{code}")
    notebook.run(0)
    waiting_message = notebook.cell(0).get_by_text("Waiting for the kernel, which is busy or not running")
    waiting_message.wait_for(timeout=60_000)
    tab.locator(".jp-Dialog", has_text="Kernel Restarting").wait_for(timeout=60_000)
    assert waiting_message.is_visible()
    assert notebook.static_image(0).is_visible()
    assert notebook.call(0, "peak()") is None


def test_picture_in_an_untrusted_notebook(lab, tab, snapshot):
    from ipygpumem.viewer.display_target import DisplayTarget
    from ipygpumem.viewer.view import View

    shown_pictures = []
    View([snapshot]).publish(DisplayTarget("live", lambda data, metadata: shown_pictures.append((data, metadata))))
    outputs = [nbformat.v4.new_output("display_data", data, metadata=metadata) for data, metadata in shown_pictures]
    cell = nbformat.v4.new_code_cell("snapshot.view()", outputs=outputs, execution_count=1)
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=KERNEL), lab.folder / "strange.ipynb")
    lab.open(tab, "strange.ipynb")
    image = tab.locator(".jp-OutputArea-output img[src^='data:image/png;base64,']")
    image.wait_for(timeout=60_000)
    box = image.bounding_box()
    assert 500 < box["width"] <= 880
    assert box["width"] / box["height"] == pytest.approx(880 / shown_pictures[0][1]["image/png"]["height"], rel=0.02)
    assert tab.locator(".jp-OutputArea-output", has_text=HINT).is_visible()


def test_nbconvert_shows_the_picture(snapshot):
    from nbconvert import HTMLExporter

    from ipygpumem.viewer.display_target import DisplayTarget
    from ipygpumem.viewer.view import View

    shown_pictures = []
    View([snapshot]).publish(DisplayTarget("live", lambda data, metadata: shown_pictures.append((data, metadata))))
    outputs = [nbformat.v4.new_output("display_data", data, metadata=metadata) for data, metadata in shown_pictures]
    cell = nbformat.v4.new_code_cell("snapshot.view()", outputs=outputs, execution_count=1)
    notebook = nbformat.v4.new_notebook(cells=[cell], metadata=KERNEL)
    body, _ = HTMLExporter().from_notebook_node(notebook)
    assert body.count('src="data:image/png;base64,') == 1
    assert shown_pictures[0][0]["image/png"] in body.replace("\n", "")
    assert HINT in body
    assert "widget-view+json" not in body
    # a front end may store the state of widgets: the image is shown nevertheless
    state = {WIDGET.replace("view", "state"): {"version_major": 2, "version_minor": 0, "state": {}}}
    notebook.metadata["widgets"] = json.loads(json.dumps(state))
    model = shown_pictures[1][0][WIDGET]["model_id"]
    notebook.metadata["widgets"][WIDGET.replace("view", "state")]["state"][model] = {"model_name": "AnyModel"}
    body, _ = HTMLExporter().from_notebook_node(notebook)
    assert body.count('src="data:image/png;base64,') == 1
