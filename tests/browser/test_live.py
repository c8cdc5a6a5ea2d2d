"""The live display in JupyterLab: shown below a running cell, and replaced by its report."""

from __future__ import annotations

from browser.test_monitor import FAKE
from browser.test_widget import Notebook

WORK = """import os
for i in range(9):
    blocks = [gpu.alloc((100 + 60 * i) * MIB), blocks] if i else [gpu.alloc(50 * MIB)]
    if i == 4: gpu.outside(500 * MIB)
    time.sleep(0.4)
while not os.path.exists('end of work'): time.sleep(0.05)
print('done')"""


def test_long_cell(lab, tab):
    notebook = Notebook(lab, tab, "live.ipynb", FAKE, WORK)
    notebook.run(0)
    notebook.run(1)
    cell = notebook.cell(1)
    running = cell.get_by_text("running for")
    running.wait_for(timeout=60_000)
    assert cell.locator("svg polygon").count() >= 3
    assert "allocated " in cell.inner_text()
    (lab.folder / "end of work").touch()
    cell.get_by_text("held").wait_for(timeout=60_000)
    assert running.count() == 0
    assert cell.locator(".jp-OutputArea-child").count() == 2
    document = notebook.save()
    report, text = document.cells[1].outputs
    assert text["text"] == "done\n"
    assert "In [2]" in report["data"]["text/plain"]
    assert "running for" not in str(document)
    assert "application/vnd.ipygpumem+json" in report["metadata"]
    assert notebook.errors == []


CAPTURED_CELL = """import ipywidgets
box = ipywidgets.Output()
display(box)
with box:
    live_display.DELAY = 0.2
    live._thread.start(0.2, 0.2)
    a = gpu.alloc(900 * MIB); time.sleep(1.2); print('inside')
print('outside')"""
LATE = """
from ipygpumem.jupyter import live_display
live, live_display.DELAY = get_ipython().magics_manager.registry['GPUMem'].cells.live, 300"""


def test_output_widget_gets_no_chart(lab, tab):
    notebook = Notebook(lab, tab, "inside.ipynb", FAKE + LATE, CAPTURED_CELL)
    notebook.run(0)
    notebook.run(1)
    cell = notebook.cell(1)
    cell.get_by_text("+900.0 MiB held").wait_for(timeout=60_000)
    assert "running for" not in cell.inner_text()
    assert cell.inner_text().index("inside") < cell.inner_text().index("+900.0 MiB held")
    kinds = [output.output_type for output in notebook.save().cells[1].outputs]
    assert kinds == ["display_data", "stream", "display_data"]
    assert notebook.errors == []
