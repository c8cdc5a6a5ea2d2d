"""``ranks DIRECTORY``: compare the ranks of a run."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError
from ipygpumem.core.files import check_ending, check_path, write_file
from ipygpumem.core.tables import text_tables
from ipygpumem.core.text import printable
from ipygpumem.core.units import size
from ipygpumem.features.commands.command import HELP, Command, Notebook, Option, positive
from ipygpumem.features.commands.output import BAD_FILE, print_json, print_lines, print_skipped, progress
from ipygpumem.features.ranks import DEFAULT_ROWS

if TYPE_CHECKING:
    from ipygpumem.features.ranks.collect import Ranks

_COLUMNS = ("rank", "held", "peak", "outside", "time")
_WORKERS = min(os.cpu_count() or 1, 8)
_ENDINGS = {"plot": ("image", ".png"), "html": ("page", ".html", ".htm")}


def _magic(notebook: Notebook, arguments: argparse.Namespace) -> None:
    from ipygpumem.features.ranks.collect import read_ranks
    from ipygpumem.features.ranks.table import ranks_tables

    ranks = read_ranks(notebook.expand(arguments.directory), workers=_WORKERS)
    notebook.claim_cell()
    notebook.show_tables(ranks_tables(ranks.members, by=arguments.by, limit=arguments.top))
    notebook.print(*(f"ipygpumem: skipped: {fault}" for fault in ranks.faults))
    if arguments.plot:
        from ipygpumem.features.ranks.plot import ranks_plot

        notebook.show_image(ranks_plot(ranks.members), "memory usage of each rank over time")
    if arguments.view:
        files = _viewer_files(ranks)
        notebook.show_snapshots(files)
        notebook.print(f"ipygpumem: {ranks.clock(files)}")


def _viewer_files(ranks: Ranks) -> tuple[str, ...]:
    from ipygpumem.viewer.write import MAX_SNAPSHOTS

    files = ranks.beside(MAX_SNAPSHOTS)
    if not files:
        raise OptionError("cannot display the ranks side by side: at least two ranks with snapshots are required")
    return files


def _shell(arguments: argparse.Namespace) -> int:
    from ipygpumem.features.ranks.collect import read_ranks
    from ipygpumem.features.ranks.table import ranks_tables

    for option, (kind, *endings) in _ENDINGS.items():
        path = getattr(arguments, option)
        if path is not None:
            check_path(path, kind, f"ranks{endings[0]}")
            check_ending(path, kind, *endings)
    with progress(f"reading {arguments.directory}"):
        ranks = read_ranks(arguments.directory, workers=_WORKERS)
    print_skipped(ranks.faults)
    if arguments.json:
        print_json({"folder": arguments.directory, **ranks.to_dict()})
    else:
        print_lines(text_tables(ranks_tables(ranks.members, by=arguments.by, limit=arguments.top)))
    if arguments.plot is not None:
        from ipygpumem.features.ranks.plot import ranks_plot
        from ipygpumem.viewer.plot_image import import_matplotlib

        import_matplotlib()
        write_file(check_path(arguments.plot), ranks_plot(ranks.members).png)
        print_lines(f"{printable(arguments.plot)}: memory usage of each rank over time")
    if arguments.html is not None:
        _write_page(arguments.html, ranks)
    return BAD_FILE if ranks.faults else 0


def _write_page(target: str, ranks: Ranks) -> None:
    from ipygpumem.snapshot import Snapshot
    from ipygpumem.viewer.write import write_page

    files = _viewer_files(ranks)
    with progress("writing"):
        path = write_page(target, [Snapshot.load(file) for file in files])
    count = len(ranks.snapshots)
    selection = f"; the page contains {len(files)} of {count} ranks" if count > len(files) else ""
    print_lines(f"{printable(target)}: {size(path.stat().st_size)}{selection}", ranks.clock(files))


RANKS = Command(
    "ranks",
    "compare the ranks of a run that used measure(rank_reports=DIRECTORY)",
    (
        Option(("directory",), "DIRECTORY", "directory with the reports and snapshots of the ranks", is_path=True),
        Option(
            ("--by",),
            f"{{{','.join(_COLUMNS)}}}",
            'sort by this column in descending order (default: "rank", ascending)',
            _COLUMNS,
            "rank",
        ),
        Option(("-n", "--top"), "N", f"rows per table (default: {DEFAULT_ROWS})", default=DEFAULT_ROWS, type=positive),
        Option(("--plot",), None, "also plot the memory usage of each rank over time", only_interface="magic"),
        Option(("--plot",), "OUT.png", "also plot the memory usage of each rank over time", only_interface="shell"),
        Option(("--view",), None, "also open the viewer with up to eight ranks side by side", only_interface="magic"),
        Option(("--html",), "OUT", "also write an HTML page with up to eight ranks", only_interface="shell"),
        HELP,
    ),
    _magic,
    _shell,
)
