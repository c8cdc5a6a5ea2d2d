"""The display of each report, and colors in terminals."""

from __future__ import annotations

import io
import re
import sys

import pytest
from IPython import version_info

from ipygpumem.jupyter.display import is_terminal, uses_color

pytestmark = pytest.mark.ipython

ALLOCATE = "kept = torch.ones(100 << 20, dtype=torch.uint8, device='cuda')"


class Tty(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(fake_gpu, make_notebook):
    notebook = make_notebook(terminal=True)
    notebook.run("import torch", store_history=False)
    notebook.load()
    return notebook


@pytest.mark.parametrize(
    ("case", "colored"),
    [("terminal", True), ("pipe", False), ("no colors", False), ("NO_COLOR=1", False), ("TERM=dumb", False)],
)
def test_color_in_a_terminal(terminal, monkeypatch, case, colored):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    if "=" in case:
        monkeypatch.setenv(*case.split("="))
    names = ("NoColor", "Linux") if version_info < (9,) else ("nocolor", "linux")
    terminal.shell.colors = names[case != "no colors"]
    monkeypatch.setattr(sys, "stdout", io.StringIO() if case == "pipe" else Tty())
    assert is_terminal(terminal.shell)
    assert uses_color(terminal.shell) is colored


def test_line_in_a_terminal(terminal, monkeypatch):
    """IPython's publisher prints the text."""
    from IPython.core.displaypub import DisplayPublisher

    shell = terminal.shell
    captured = shell.display_pub
    shell.display_pub = DisplayPublisher(shell=shell, parent=shell)
    shell.display_pub.outputs = []
    try:
        result = terminal.run(ALLOCATE)
    finally:
        shell.display_pub = captured
    assert re.fullmatch(
        r"cuda:0  \+100\.0 MiB held · peak \+100\.0 MiB · 0\.\d of 139\.8 GiB used   In \[1\], [\d.]+ m?s\n",
        result.stdout,
    )


def test_notebook_is_not_a_terminal(cpu_notebook):
    assert not is_terminal(cpu_notebook.shell)
    assert not uses_color(cpu_notebook.shell)


@pytest.mark.parametrize(("cell", "limit"), [(ALLOCATE, 4096), (f"%%gpumem\n{ALLOCATE}", 16384), ("%gpumem", 16384)])
def test_html_is_small_and_plain(gpu_notebook, cell, limit):
    (bundle,) = gpu_notebook.run(cell).displays
    assert set(bundle) == {"text/plain", "text/html"}
    html = bundle["text/html"]
    assert len(html.encode()) <= limit
    assert not re.search(r"<(script|style|svg|iframe|link|img)|\bon\w+=|javascript:", html)
    assert "\x1b" not in bundle["text/plain"]


def test_one_to_three_lines(two_gpus, make_notebook, tmp_path):
    notebook = make_notebook()
    notebook.run("import torch")
    notebook.load()
    assert notebook.run(ALLOCATE).text.count("\n") == 0
    first = notebook.run(f"more = {ALLOCATE}; two = torch.ones(1 << 28, device='cuda:1')").text
    assert first.count("\n") == 2
    assert first.endswith("cuda:1: its first tensor created a CUDA context, which exists until the process ends")
    assert notebook.run("two = torch.ones(1 << 20, device='cuda:1')").text.count("\n") <= 1
    notebook.run("%gpumem record start")
    text = notebook.run("x = torch.ones(1 << 28, device='cuda:0'); y = torch.ones(1 << 28, device='cuda:1')").text
    assert text.count("\n") == 2
    assert "recording allocation history" in text


def test_text_of_the_caller_is_not_markup(gpu_notebook, tmp_path):
    path = tmp_path / "<b>&.pickle"
    (bundle,) = gpu_notebook.run(f"%%gpumem --snapshot '{path}'\n{ALLOCATE}").displays
    assert "&lt;b&gt;&amp;.pickle" in bundle["text/html"]
    assert "<b>&.pickle" in bundle["text/plain"]


@pytest.mark.parametrize("cell", ["%gpumem", "%gpumem 6 * 7", "%%gpumem\n6 * 7", "6 * 7"])
def test_one_display_per_cell(cpu_notebook, cell):
    """Only the breakdown is shown, without a report about the statement itself."""
    assert len(cpu_notebook.run(cell).texts) == 1
