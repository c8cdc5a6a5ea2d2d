"""``%gpumem ranks FOLDER``: the ranks of a run side by side."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from ipygpumem.commands.command import Command
from ipygpumem.core.errors import OptionError
from ipygpumem.features.ranks.collect import read_ranks
from ipygpumem.features.ranks.table import DEFAULT_ROWS, ranks_tables
from ipygpumem.jupyter import display as show
from ipygpumem.jupyter.options import Option, parse
from ipygpumem.jupyter.paths import filled

if TYPE_CHECKING:
    from ipygpumem.jupyter.magics import GPUMem

__all__ = ["RANKS"]

_BY = ("rank", "held", "peak", "outside", "time")
_WORKERS = 8
_OPTIONS = (
    Option(
        ("folder",),
        "FOLDER",
        "what measure(rank_reports=FOLDER) wrote, or snapshots alone",
        path=True,
        many=True,
        usage="FOLDER",
    ),
    Option(("--by",), f"{{{','.join(_BY)}}}", "the highest first (default: rank)", choices=_BY, default="rank"),
    Option(("-n", "--top"), "N", f"rows of each table (default {DEFAULT_ROWS})", default=str(DEFAULT_ROWS)),
    Option(("--plot",), None, "as a picture: the level of every rank over time"),
    Option(("--view",), None, "the viewer of up to eight ranks side by side: a typical one, the odd one, ..."),
    Option(("-h", "--help"), None, "show this help"),
)


def _run(magics: GPUMem, rest: str) -> None:
    words = parse("%gpumem ranks", _OPTIONS, rest)
    if len(words.folder) != 1:
        raise UsageError("%gpumem ranks takes one folder: what measure(rank_reports=FOLDER) wrote")
    if not words.top.isdecimal() or not words.top.isascii() or int(words.top[:9]) < 1:
        raise UsageError(f"%gpumem ranks: -n is a number from 1 on, not {words.top!r}")
    found = read_ranks(filled(magics.shell, words.folder[0]), workers=min(os.cpu_count() or 1, _WORKERS))
    magics.cells.claim()
    problem = None
    if words.plot:
        try:
            from ipygpumem.features.ranks.picture import ranks_picture

            show.show_picture(magics.shell, ranks_picture(found.members, found.what), str(found))
        except OptionError as error:
            problem = error
    if not words.plot or problem is not None:  # what can be told is told before what cannot be drawn
        show.show_tables(magics.shell, ranks_tables(found.members, found.what, by=words.by, limit=int(words.top[:9])))
    for fault in found.faults:
        print(f"ipygpumem: passed over: {fault}")  # noqa: T201 (what is missing is told)
    if problem is not None:
        raise problem
    if words.view:
        from ipygpumem.viewer.page import MAX_SNAPSHOTS

        chosen = found.beside(MAX_SNAPSHOTS)
        if not chosen:
            raise UsageError("%gpumem ranks: there is no view of these: fewer than two have a snapshot")
        show.show_snapshots(magics.shell, chosen)
        print(f"ipygpumem: {found.clock(chosen)}")  # noqa: T201 (what the axis does not tell)


RANKS = Command("ranks", "the ranks of a run side by side, from their folder", _run, options=_OPTIONS)
