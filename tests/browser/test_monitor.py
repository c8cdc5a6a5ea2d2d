"""The monitor in JupyterLab shows two devices while cells run, pauses and resumes, and stops when its page closes."""

from __future__ import annotations

from pathlib import Path

from browser.test_widget import Notebook

TESTS = Path(__file__).parents[1]
FAKE = f"""import sys, time, threading
sys.path.insert(0, {str(TESTS)!r})
from fakes.cuda import FakeGpu, MIB
gpu = FakeGpu(2).install()
import torch
%load_ext ipygpumem
torch.ones(1, device='cuda:1');"""
WORK = """import os
a = gpu.alloc(900 * MIB); gpu.outside(600 * MIB); gpu.nvml_device.others[9000001] = 700 * MIB
b = gpu.alloc(2000 * MIB, 1)
while not os.path.exists('end of work on two devices'): time.sleep(0.05)
gpu.free(a)"""
THREADS = "print([thread.name for thread in threading.enumerate() if 'monitor' in thread.name], gpu.nvml.calls.total())"

STATE = """(cell) => {
    const outputs = document.querySelectorAll('.jp-Notebook .jp-CodeCell')[cell].querySelectorAll('.jp-OutputArea *');
    const monitor = [...outputs].find((element) => element.ipygpumemMonitor)?.ipygpumemMonitor;
    if (!monitor) return null;
    const { history, panel } = monitor;
    return {
      count: history.time.length, cells: history.cells.map((cell) => cell.number), running: history.running,
      devices: [...history.devices.keys()], status: panel.status.textContent, span: panel.span,
      theme: panel.root.dataset.theme,
      maximum: Object.fromEntries([...history.devices].map(([name, columns]) =>
        [name, Object.fromEntries(Object.entries(columns).map(([part, row]) => [part, Math.max(...row)]))])),
      texts: [...panel.root.querySelectorAll('section')].map((section) => section.innerText),
      painted: [...panel.root.querySelectorAll('canvas')].map((canvas) => {
        const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
        return new Set(new Uint32Array(data.buffer)).size;
      }),
    };
}"""
MIB = 1 << 20


def state(notebook, cell):
    return notebook.page.evaluate(STATE, cell)


def until(notebook, cell, condition, seconds=60):
    current = None
    for _ in range(seconds * 20):
        current = state(notebook, cell)
        if current and condition(current):
            return current
        notebook.page.wait_for_timeout(50)
    raise AssertionError(f"{current} {notebook.errors}")


def test_two_devices_while_cells_run(lab, page):
    code = "%gpumem monitor --every 0.25"
    sources = FAKE, code, WORK, THREADS, "%unload_ext ipygpumem"
    notebook = Notebook(lab, page, "monitor.ipynb", *sources, loads=True)
    notebook.run(0)
    notebook.run(1)
    first = until(notebook, 1, lambda status: status["count"] > 2)
    assert first["theme"] == "light"
    assert first["devices"] == ["cuda:0", "cuda:1"]
    notebook.run(2)
    during = until(notebook, 1, lambda status: status["running"] and status["running"]["number"] == 3)
    assert during["status"] == "live"
    maximum = {"cuda:0": {"allocated": 900, "others": 700}, "cuda:1": {"allocated": 2000}}
    for device, parts in maximum.items():
        for part, size in parts.items():
            until(notebook, 1, lambda status: status["maximum"][device][part] >= size * MIB)  # noqa: B023 (called now)
    (lab.folder / "end of work on two devices").touch()
    after = until(notebook, 1, lambda status: 3 in status["cells"])
    assert after["running"] is None
    assert "allocated" in after["texts"][0]
    assert "other processes" in after["texts"][0]
    assert "used, " in after["texts"][1]
    assert all(count > 5 for count in after["painted"])

    # The theme follows the notebook
    page.emulate_media(color_scheme="dark")
    dark = until(notebook, 1, lambda status: status["theme"] == "dark")
    assert all(count > 5 for count in dark["painted"])

    # A pause stops the charts, but not the readings
    chart = notebook.cell(1).locator("canvas").first
    chart.focus()
    page.keyboard.press("Space")
    paused = until(notebook, 1, lambda status: status["status"].startswith("paused at "))
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("-")
    continued = until(notebook, 1, lambda status: status["count"] > paused["count"] + 2)
    assert continued["span"] == 900
    page.keyboard.press("Space")
    until(notebook, 1, lambda status: status["status"] == "live")

    # The notebook contains only the view of the loader
    document = notebook.save()
    assert notebook.path.stat().st_size < 30_000
    assert [set(output["data"]) for output in document.cells[1].outputs] == [
        {"text/plain", "application/vnd.jupyter.widget-view+json"}
    ]

    # A reloaded page shows the past readings
    notebook.reload()
    reloaded = until(notebook, 1, lambda status: status["count"] > continued["count"])
    assert 3 in reloaded["cells"]

    # Unloading the extension removes the monitor and its thread
    notebook.run(4)
    for _ in range(1200):
        if state(notebook, 1) is None:
            break
        page.wait_for_timeout(50)
    assert state(notebook, 1) is None
    notebook.run(3)
    notebook.cell(3).get_by_text("[] ").wait_for(timeout=60_000)
    assert notebook.errors == []
    assert notebook.hosts <= {"127.0.0.1", None}


def test_monitor_stops_when_its_output_is_removed(lab, tab):
    notebook = Notebook(lab, tab, "stops.ipynb", FAKE, "%gpumem monitor --every 0.25", THREADS)
    notebook.run(0)
    notebook.run(1)
    until(notebook, 1, lambda status: status["count"] > 2)
    notebook.cell(1).locator(".jp-InputArea-editor").click()
    notebook.page.keyboard.press("Escape")
    notebook.page.keyboard.press("m")  # a text cell has no outputs
    notebook.page.wait_for_timeout(300)
    notebook.page.locator(".jp-Notebook .jp-CodeCell").nth(1).locator(".jp-InputArea-editor").click()

    prompt, output = notebook.cell(1).locator(".jp-InputPrompt"), notebook.cell(1).locator(".jp-OutputArea-output pre")

    def calls():
        before = prompt.inner_text()
        notebook.page.keyboard.press("Control+Enter")
        for _ in range(1200):
            if prompt.inner_text() not in {before, "[*]:"} and output.count():
                break
            notebook.page.wait_for_timeout(50)
        notebook.page.wait_for_timeout(1000)  # four readings, if the monitor were running
        return int(output.last.inner_text().split()[-1])

    for _ in range(10):  # until the message that the page is closed has arrived
        first, second = calls(), calls()
        if second - first < 12:
            break
    assert second - first < 12, "only the two readings of the cell itself"
