"""A model's step as tables, written out."""

from __future__ import annotations

from dataclasses import replace

from ipygpumem.display.html import html_tables
from ipygpumem.display.table import text_tables
from ipygpumem.features.modules.model import KindBytes, ModuleRow, ModuleTree, StepPhase
from ipygpumem.features.modules.table import module_tables

MIB = 1 << 20


def row(path, kind, depth, peak, own, **facts):
    sizes = dict.fromkeys(("parameters", "buffers", "gradients", "optimizer", "activations", "temporary"), 0)
    return ModuleRow(path, kind, depth, 1, **{**sizes, "peak": peak, "own": own, **facts})


TREE = ModuleTree(
    device="cuda:0",
    phases=(
        StepPhase("forward", 2, 0.010, 30 * MIB, 40 * MIB, 50 * MIB),
        StepPhase("other", 3, 1.5, -20 * MIB, 20 * MIB, 25 * MIB),
    ),
    parts=(
        KindBytes("parameters", 4 * MIB, 4 * MIB),
        KindBytes("gradients", 0, 0),
        KindBytes("activations", 40 * MIB, 0),
        KindBytes("not the model's", 512, 512),
    ),
    rows=(
        row("", "Net<b>", 0, 44 * MIB, MIB, parameters=4 * MIB, activations=40 * MIB),
        row("blocks", "ModuleList", 1, 43 * MIB, 0, parameters=4 * MIB),
        row("blocks.0", "OptimizedModule", 2, 43 * MIB, 43 * MIB, temporary=3 * MIB, note="compiled"),
        row("blocks.0._orig_mod", "Linear", 3, None, None, activations=None, temporary=None, note="in compiled code"),
    ),
    rounding=(None, 100),
    pending=(0, 0),
    allocated=(None, 4 * MIB + 612),
    notes=("a note",),
)
TEXT = """\
cuda:0 by phase
           times     time     change     after      peak
  forward      2  10.0 ms  +30.0 MiB  40.0 MiB  50.0 MiB  ██████████
  other        3   1.50 s  -20.0 MiB  20.0 MiB  25.0 MiB  █████
all                1.51 s  +10.0 MiB            50.0 MiB

cuda:0 at its peak and at the end, by kind
                                                     peak      end
  parameters                                      4.0 MiB  4.0 MiB  █
  activations (kept for backward, and outputs)   40.0 MiB        0  ██████████
  not the model's (inputs, loss, anything else)     512 B    512 B  █
  rounding by the allocator                       unknown    100 B
allocated                                         unknown  4.0 MiB

cuda:0 by module
                         parameters  gradients  optimizer  activations  temporary  at the peak
the model: Net<b>           4.0 MiB          -          -     40.0 MiB          -     44.0 MiB  ██████████
  (itself)                                                                             1.0 MiB  █
  blocks: ModuleList        4.0 MiB          -          -            -          -     43.0 MiB  ██████████
    0: OptimizedModule            -          -          -            -    3.0 MiB     43.0 MiB  ██████████  compiled
      (itself)                                                                        43.0 MiB  ██████████
      _orig_mod: Linear           -          -          -      unknown    unknown      unknown              in \
compiled code
"""


def plain(text):
    return [line.rstrip() for line in text.splitlines()]


def test_text():
    text = plain(text_tables(module_tables([TREE])))
    assert text[: len(plain(TEXT))] == plain(TEXT)
    assert text[-1] == "a note"


def test_html_escapes_names():
    html = html_tables(module_tables([TREE]))
    assert "the model: Net&lt;b&gt;" in html
    assert "background-color" in html


def test_buffers_have_a_column_where_there_are_any():
    rows = (replace(TREE.rows[0], buffers=MIB), *TREE.rows[1:])
    assert "buffers" in module_tables([replace(TREE, rows=rows)])[2].header
    assert "buffers" not in module_tables([TREE])[2].header


def test_a_large_model_fits_a_screen():
    rows = [row("", "Net", 0, 10**9, 0)]
    for block in range(30):
        rows.append(row(f"{block}", "Block", 1, 10**7 + block, 0))
        rows += [row(f"{block}.{part}", "Linear", 2, 10**6, 10**6) for part in range(8)]
    table = module_tables([replace(TREE, rows=tuple(rows))])[2]
    assert len(table.rows) == 31
    assert table.remarks[0] == "240 modules further inside are counted in those above: report.modules has all"
    rows = [rows[0], *(row(f"{n}", "Linear", 1, n, n) for n in range(500))]
    table = module_tables([replace(TREE, rows=tuple(rows))])[2]
    assert len(table.rows) == 60
    assert table.rows[-1].label == "499: Linear"
