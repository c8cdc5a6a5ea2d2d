"""Waterfalls are displayed as text and HTML with bars."""

from __future__ import annotations

import dataclasses
import re
from html import escape

import pytest

from fakes.reports import before
from ipygpumem.core.other_process import OtherProcess
from ipygpumem.core.reading import Baseline, HostReading, Reading, make_accuracy
from ipygpumem.features.explain.model import CachedMemory
from ipygpumem.features.explain.steps import NamedMemory, device_waterfall
from ipygpumem.features.explain.table import _rows, html_waterfalls, text_waterfalls

MIB = 1 << 20
BASE = Baseline(Reading(1.0, {"cuda:0": before()}, HostReading()), "cuda:0", "NVIDIA H200", 518 * MIB, 158 * MIB)


def waterfall(**changes):
    facts = {
        "label": "NVIDIA H200",
        "baseline": BASE,
        "processes": [OtherProcess(7, 70 * MIB, "python a.py", "own")],
        "cache": CachedMemory(12 * MIB, 6 * MIB, 2 * MIB, 3, 2, 4, 9 * MIB, 1),
        "notes": ("a note",),
    }
    return device_waterfall(before(), **{**facts, **changes})


TEXT = """\
no GPU

cuda:0, NVIDIA H200
cuda:0: nvidia-smi shows 885.0 MiB, of which 100.0 MiB is allocated (tensors). The rest: 70.0 MiB other processes; 9.0 \
MiB unattributed; 686.0 MiB outside PyTorch in this process; 20.0 MiB PyTorch's cache, of which \
torch.cuda.empty_cache() would release 12.0 MiB.

device used                                              1.5 GiB  ██████████████████████████████  exact
  driver reserved                                    - 615.0 MiB                    ▒▒▒▒▒▒▒▒▒▒▒▒  exact    not \
included in nvidia-smi's value
nvidia-smi shows                                       885.0 MiB  ██████████████████              exact
  pid 7 (python a.py)                                 - 70.0 MiB                  ▒▒              exact    your \
process; run kill 7 if you no longer need it
  unattributed                                         - 9.0 MiB                  ▒               exact
this process                                           806.0 MiB  ████████████████                exact
  CUDA context                                       - 518.0 MiB        ▒▒▒▒▒▒▒▒▒▒                derived  exists \
until this process ends
  first kernels                                      - 158.0 MiB     ▒▒▒                          derived  exists \
until this process ends
  libraries, kernel code, local memory, CUDA graphs   - 10.0 MiB    ▒                             derived  %%gpumem \
--outside lists the memory of a cell by library
PyTorch reserved                                       120.0 MiB  ██                              exact
  cached, can be released                             - 12.0 MiB    ▒                             exact    \
torch.cuda.empty_cache() or %gpumem free --cache
  cached, cannot be released                           - 6.0 MiB    ▒                             exact    free the \
tensors in these segments (%gpumem who lists them) or use expandable_segments:True
  cached in private pools                              - 2.0 MiB    ▒                             exact    delete the \
CUDA graphs or the MemPool, then call torch.cuda.empty_cache()
allocated (tensors)                                    100.0 MiB  ██                              exact    %gpumem who \
lists the holders

first kernels: code and handles of CUDA libraries
cached, cannot be released: 3 free blocks in 2 segments with 4 blocks in use (9.0 MiB in total)
cached in private pools: 1 pool, reserved for the CUDA graphs or the MemPool that use them
CUDA context: derived (measured when CUDA was initialized, and assumed not to change)
first kernels: derived (measured when the first kernels were loaded, and assumed not to change)
libraries, kernel code, local memory, CUDA graphs: derived (the remainder, which is not attributed to any library)
a note"""


def test_text():
    assert text_waterfalls([waterfall()], "no GPU") == TEXT


def test_accuracy_has_the_same_words_in_table_and_notes():
    text = text_waterfalls([waterfall(named=[NamedMemory("CuPy", 2 * MIB, make_accuracy("exact"), managed=True)])])
    assert re.search(r"managed memory +- 2\.0 MiB +▒ +at most", text)
    assert "managed memory: at most (2.0 MiB of managed memory (CuPy), of which" in text
    assert "bound" not in text


def test_each_bar_starts_where_the_previous_one_ends():
    level = None
    for row in _rows(waterfall()):
        if row.step.kind == "total":
            assert row.start == 0
            assert level is None or row.end == pytest.approx(level)
            level = row.end
        else:
            assert row.end == pytest.approx(level)
            level = row.start
    assert level == pytest.approx(100 / 1500)


def test_html_has_all_steps_and_only_allowed_elements():
    html = html_waterfalls([waterfall()], "no <GPU>")
    assert "no &lt;GPU&gt;" in html
    for step in waterfall().steps:
        assert step.label in html
        assert escape(step.todo) in html
    assert not re.search(r"<(svg|script|style|iframe|canvas)", html)
    widths = [float(width) for width in re.findall(r"height:11px;width:([\d.]+)%", html)]
    assert max(widths) == 100
    assert min(width for width in widths[1::2] if width) == 1, "small steps are visible"


def test_long_cells_are_wrapped():
    html = html_waterfalls([waterfall()])
    cells = re.findall(r'<td style="([^"]*)"', html)
    assert len(cells) % 5 == 0
    assert {"overflow-wrap:anywhere" in style for style in cells[0::5] + cells[4::5]} == {True}
    assert not any("nowrap" in style for style in cells[0::5] + cells[4::5])
    assert {"width:20%" in style for style in cells[3::5]} == {True}


def test_unknown_totals_have_no_bar():
    bare = dataclasses.replace(
        before(), used=None, driver_reserved=None, process=None, others=None, mode="torch-only", why="no driver"
    )
    unknown = device_waterfall(bare)
    text = text_waterfalls([unknown])
    assert re.search(r"^nvidia-smi shows +unknown +unknown$", text, re.MULTILINE)
    assert "nvidia-smi shows: unknown (no driver)" in text
    assert "unknown" in html_waterfalls([unknown])


def test_unused_device():
    empty = dataclasses.replace(
        before(), used=0, driver_reserved=None, process=0, others=0, allocated=0, reserved=0, active=0
    )
    assert text_waterfalls([device_waterfall(empty)])
    assert html_waterfalls([device_waterfall(empty)])


def test_long_name_is_shortened():
    long = waterfall(processes=[OtherProcess(7, 70 * MIB, "x" * 60, "own")])
    assert max(len(line.partition("-")[0]) for line in text_waterfalls([long]).splitlines() if "…" in line) < 68
    html = html_waterfalls([long])
    assert f">pid 7 ({'x' * 44}…</td>" in html
    assert f'title="pid 7 ({"x" * 60})' in html, "the tooltip has the whole name"
