"""``ranks``: the processes of one run side by side, from the folder that they wrote into."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from ipygpumem.cli.progress import progress
from ipygpumem.commands.arguments import count
from ipygpumem.commands.output import BAD_FILE, complain, print_json, say
from ipygpumem.core.errors import OptionError, ReportError, SnapshotError
from ipygpumem.core.files import check_ending, check_path
from ipygpumem.core.units import size
from ipygpumem.display.table import text_tables
from ipygpumem.features.ranks.collect import read_ranks
from ipygpumem.features.ranks.table import DEFAULT_ROWS, ranks_tables

if TYPE_CHECKING:
    import argparse

    from ipygpumem.commands.arguments import Commands
    from ipygpumem.features.ranks.collect import Ranks

__all__ = ["add"]

_PICTURES, _PAGES = (".png",), (".html", ".htm")
_WORKERS = 8
"""More would wait for the disk."""


def add(commands: Commands) -> None:
    """Put the command in."""
    made = commands.add("ranks", _ranks, "The ranks of a run side by side: measure(rank_reports=FOLDER) writes them.")
    made.add_argument("folder", metavar="FOLDER", help="reports and snapshots of the ranks, or snapshots alone")
    made.add_argument(
        "--by",
        choices=("rank", "held", "peak", "outside", "time"),
        default="rank",
        help="the highest first (rank: in their order)",
    )
    made.add_argument(
        "-n",
        "--top",
        type=count,
        default=DEFAULT_ROWS,
        metavar="N",
        help=f"rows of each table ({DEFAULT_ROWS}; in JSON all)",
    )
    made.add_argument(
        "--html",
        metavar="OUT",
        help="write the viewer of up to eight ranks side by side, too: a typical one, the odd one, ...",
    )
    made.add_argument("--plot", metavar="OUT.png", help="draw the level of every rank over time, too")


def _ranks(words: argparse.Namespace) -> int:
    for target, what, example in ((words.html, "page", "ranks.html"), (words.plot, "picture", "ranks.png")):
        if target is not None:
            check_path(target, what, example)
            check_ending(target, what, *(_PICTURES if what == "picture" else _PAGES))
    try:
        with progress(f"reading {words.folder}"):
            found = read_ranks(words.folder, workers=min(os.cpu_count() or 1, _WORKERS))
    except ReportError as problem:
        complain(problem)
        return BAD_FILE
    for fault in found.faults:
        complain(ReportError(f"passed over: {fault}"))
    if words.json:
        print_json({"folder": words.folder, **found.to_dict()})
    else:
        say(*text_tables(ranks_tables(found.members, found.what, by=words.by, limit=words.top)).splitlines())
    status = BAD_FILE if found.faults else 0
    if words.plot is not None:
        _draw(words.plot, found)
    if words.html is not None:
        status = _page(words.html, found) or status
    return status


def _draw(target: str, found: Ranks) -> None:
    from ipygpumem.features.ranks.picture import ranks_picture
    from ipygpumem.viewer.write import write_file

    write_file(check_path(target, "picture", "ranks.png"), ranks_picture(found.members).png)
    say(f"{target}: the level of each rank over time")


def _page(target: str, found: Ranks) -> int:
    from ipygpumem.snapshot import Snapshot
    from ipygpumem.viewer import write_page
    from ipygpumem.viewer.page import MAX_SNAPSHOTS

    chosen = found.beside(MAX_SNAPSHOTS)
    if not chosen:
        raise OptionError("there is no page of these ranks: fewer than two have a snapshot")
    try:
        with progress("writing"):
            path = write_page(target, [Snapshot.load(one) for one in chosen])
    except SnapshotError as problem:
        complain(problem)
        return BAD_FILE
    known = len(found.snapshots or {})
    some = f", {len(chosen)} of {known} {found.what}s" if known > len(chosen) else ""
    say(f"{target}: {size(path.stat().st_size)}{some}", found.clock(chosen))
    return 0
