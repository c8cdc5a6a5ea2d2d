# ruff: noqa: RUF001 (multiplication signs)
"""Tables of a model's memory usage: contents, folding of identical modules, and size."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipygpumem.core.tables import html_tables, text_tables
from ipygpumem.features.modules.model import MemoryKindUsage, ModuleRow, ModuleTree, StepPhase
from ipygpumem.features.modules.table import module_tables

KIB, MIB = 1 << 10, 1 << 20


def row(path, class_name, depth, peak, own_bytes, **values):
    sizes = dict.fromkeys(("parameters", "buffers", "gradients", "optimizer", "activations", "temporary"), 0)
    return ModuleRow(path, class_name, depth, 1, **{**sizes, "peak": peak, "own": own_bytes, **values})


TREE = ModuleTree(
    device="cuda:0",
    phases=(
        StepPhase("forward", 2, 0.010, 30 * MIB, 40 * MIB, 50 * MIB),
        StepPhase("other", 3, 1.5, -20 * MIB, 20 * MIB, 25 * MIB),
    ),
    parts=(
        MemoryKindUsage("parameters", 4 * MIB, 4 * MIB),
        MemoryKindUsage("gradients", 0, 0),
        MemoryKindUsage("activations", 40 * MIB, 0),
        MemoryKindUsage("outside the model", 512, 512),
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
cuda:0 allocated memory by phase
           times     time     change     after      peak
  forward      2  10.0 ms  +30.0 MiB  40.0 MiB  50.0 MiB  ██████████
  other        3   1.50 s  -20.0 MiB  20.0 MiB  25.0 MiB  █████
all                1.51 s  +10.0 MiB            50.0 MiB

cuda:0 allocated memory by kind
                                                    peak      end
  parameters                                     4.0 MiB  4.0 MiB  █
  activations (saved for backward, and outputs) 40.0 MiB        0  ██████████
  outside the model (inputs, loss, other code)     512 B    512 B  █
  rounding by the allocator                      unknown    100 B
allocated                                        unknown  4.0 MiB

cuda:0 allocated memory by module
                         parameters  gradients  optimizer  activations  temporary  at the peak
model: Net<b>               4.0 MiB          -          -     40.0 MiB          -     44.0 MiB  ██████████
  (itself)                                                                             1.0 MiB  █
  blocks: ModuleList        4.0 MiB          -          -            -          -     43.0 MiB  ██████████
    0: OptimizedModule            -          -          -            -    3.0 MiB     43.0 MiB  ██████████  compiled
      _orig_mod: Linear           -          -          -      unknown    unknown      unknown              in \
compiled code
"""


def without_padding(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def module_table(rows):
    return module_tables([replace(TREE, rows=tuple(rows))])[2]


def labels(rows):
    return [table_row.label for table_row in module_table(rows).rows]


def test_text():
    text = text_tables(module_tables([TREE]))
    assert without_padding(text)[: len(without_padding(TEXT))] == without_padding(TEXT)
    assert text.splitlines()[-1] == "a note"


def test_number_of_runs_in_json():
    assert [phase["times"] for phase in TREE.to_dict()["phases"]] == [2, 3]


def test_html_escapes_names():
    html = html_tables(module_tables([TREE]))
    assert "model: Net&lt;b&gt;" in html
    assert "background-color" in html


def test_buffers_have_a_column_if_present():
    rows = (replace(TREE.rows[0], buffers=MIB), *TREE.rows[1:])
    assert "buffers" in module_table(rows).header
    assert "buffers" not in module_table(TREE.rows).header


def transformer(blocks=12, **last_block):
    """Yield the rows of a model with a list of identical blocks, each with attention and an MLP."""
    yield row("", "GPT", 0, blocks * 10 * MIB, 0)
    yield row("h", "ModuleList", 1, blocks * 10 * MIB, 0)
    for number in range(blocks):
        values = last_block if number == blocks - 1 else {}
        yield replace(row(f"h.{number}", "Block", 2, 10 * MIB, 3 * MIB, parameters=MIB, temporary=5 * MIB), **values)
        yield row(f"h.{number}.attn", "Attention", 3, 4 * MIB, 4 * MIB, temporary=(5 if number else 6) * KIB)
        yield row(f"h.{number}.mlp", "MLP", 3, 3 * MIB, 3 * MIB)


def test_identical_modules_are_folded_with_sums():
    table = module_table(transformer())
    assert [(table_row.label, table_row.cells[0], table_row.cells[-2:]) for table_row in table.rows] == [
        ("model: GPT", "-", ("-", "120.0 MiB")),
        ("h: ModuleList", "-", ("-", "120.0 MiB")),
        ("0-11: Block ×12", "12.0 MiB", ("5.0 MiB", "120.0 MiB")),  # the temporary memory of one module at a time
        ("(itself)", "", ("", "36.0 MiB")),
        ("attn: Attention ×12", "-", ("6.0 KiB", "48.0 MiB")),
        ("mlp: MLP ×12", "-", ("-", "36.0 MiB")),
    ]


@pytest.mark.parametrize(
    "difference",
    [{"parameters": 2 * MIB}, {"type": "OtherBlock"}, {"note": "compiled"}, {"activations": None}, {"calls": 2}],
)
def test_different_module_is_not_folded(difference):
    names = [label for label in labels(transformer(**difference)) if "Block" in label]
    assert names == ["0-10: Block ×11", f"11: {difference.get('type', 'Block')}"]


def test_modules_with_different_contents_are_not_folded():
    rows = [*transformer(3), row("h.2.extra", "Linear", 3, 0, 0, parameters=1)]
    assert [label for label in labels(rows) if "Block" in label] == ["0-1: Block ×2", "2: Block"]


def test_differences_not_shown_in_table_are_ignored():
    assert "0-11: Block ×12" in labels(transformer(parameters=MIB + 50 * KIB))


def test_modules_that_differ_only_at_the_peak_are_folded():
    (blocks,) = [row for row in module_table(transformer(peak=99 * MIB)).rows if "Block" in row.label]
    assert (blocks.label, blocks.cells[-1]) == ("0-11: Block ×12", "209.0 MiB")


def test_only_numbered_modules_are_folded():
    rows = [row("", "Attention", 0, 2 * MIB, 0), row("q", "Linear", 1, MIB, MIB), row("k", "Linear", 1, MIB, MIB)]
    assert labels(rows) == ["model: Attention", "q: Linear", "k: Linear"]


def test_lists_inside_folded_modules():
    rows = [row("", "Net", 0, 6 * MIB, 0)]
    for number in range(2):
        rows.append(row(f"{number}", "Sequential", 1, 3 * MIB, 0))
        rows += [row(f"{number}.{inner}", "Linear", 2, MIB, MIB) for inner in range(3)]
    assert labels(rows) == ["model: Net", "0-1: Sequential ×2", "0-2: Linear ×6"]
    assert module_table(rows).rows[-1].cells[-1] == "6.0 MiB"


def test_modules_without_memory_are_omitted():
    rows = [row("", "Net", 0, MIB, 0), row("drop", "Dropout", 1, 0, 0), row("out", "Linear", 1, MIB, MIB)]
    table = module_table(rows)
    assert [table_row.label for table_row in table.rows] == ["model: Net", "out: Linear"]
    assert table.notes[0] == "1 of 3 modules are not listed; all are in report.modules"


def test_itself_row_only_for_noticeable_share():
    rows = [
        row("", "Net", 0, 101 * MIB, MIB // 2),
        row("a", "Custom", 1, 60 * MIB, 60 * MIB),
        row("a.b", "Linear", 2, 0, 0),
        row("c", "Custom", 1, 40 * MIB, 10 * MIB),
        row("c.d", "Linear", 2, 30 * MIB, 30 * MIB),
    ]
    assert labels(rows) == ["model: Net", "a: Custom", "c: Custom", "(itself)", "d: Linear"]


def test_large_model_fits_a_screen():
    rows = [row("", "Net", 0, 10**9, 0)]
    for block in range(30):
        rows.append(row(f"{block}", "Block", 1, 10**7, 0, parameters=10**7 * (block + 1)))
        rows += [row(f"{block}.part{part}", "Linear", 2, 10**6, 10**6) for part in range(8)]
    table = module_table(rows)
    assert len(table.rows) == 31
    assert table.notes[0] == "240 of 271 modules are not listed; all are in report.modules"
    rows = [rows[0], *(row(f"{n}", "Linear", 1, n * 10**6, n, parameters=n * 10**6) for n in range(500))]
    table = module_table(rows)
    assert len(table.rows) == 60
    assert table.rows[-1].label == "499: Linear"


def test_model_on_another_device():
    tree = replace(TREE, rows=(row("", "Net", 0, 0, 0), row("up", "Linear", 1, 0, 0)))
    (*_, table) = module_tables([tree])
    reason = "no module used memory on cuda:0: the model may be on another device, such as the CPU"
    assert (table.rows, table.notes) == ((), (reason, "a note"))
    assert text_tables([table]) == f"cuda:0 allocated memory by module\n{reason}\na note"
