"""``%gpumem compare A B``: two runs of a notebook, cell by cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from ipygpumem.commands.command import Command
from ipygpumem.features.history.comparison import earlier_runs, pair_rows
from ipygpumem.features.history.report_files import read_rows, short_names
from ipygpumem.features.history.table import COLUMNS, comparison_tables
from ipygpumem.jupyter import display as show
from ipygpumem.jupyter.options import Option, parse
from ipygpumem.jupyter.paths import filled

if TYPE_CHECKING:
    from ipygpumem.jupyter.magics import GPUMem

__all__ = ["COMPARE"]

_TWO = 2
_OPTIONS = (
    Option(
        ("file",),
        "FILE",
        "two logs or executed notebooks: the second against the first",
        path=True,
        many=True,
        usage="A B",
    ),
    Option(
        ("--by",),
        f"{{{','.join(COLUMNS)}}}",
        "sort by the change of this column, the largest first (default: in, the order in which the cells ran)",
        choices=tuple(COLUMNS),
        default="in",
    ),
    Option(("-h", "--help"), None, "show this help"),
)


def _run(magics: GPUMem, rest: str) -> None:
    words = parse("%gpumem compare", _OPTIONS, rest)
    if len(words.file) != _TWO:
        raise UsageError("%gpumem compare takes two files: logs (GPUMem.log), or executed notebooks")
    paths = [filled(magics.shell, word) for word in words.file]
    before, after = (read_rows(path) for path in paths)
    magics.cells.claim()
    found = pair_rows(before.rows, after.rows)
    earlier = earlier_runs(before.rows, after.rows)
    show.show_tables(magics.shell, comparison_tables(found, words.by, short_names(*paths), earlier))
    for fault in (*before.faults, *after.faults):
        print(f"ipygpumem: passed over: {fault}")  # noqa: T201 (what is missing is told)


COMPARE = Command("compare", "two runs of a notebook, cell by cell", _run, options=_OPTIONS)
