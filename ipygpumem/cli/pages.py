"""Shell commands ``html`` and ``view``, which write the snapshot viewer to an HTML file or open it in a browser."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from ipygpumem.core.files import check_path
from ipygpumem.core.text import printable
from ipygpumem.core.units import size
from ipygpumem.features.commands.command import Command, Option
from ipygpumem.features.commands.output import print_json, print_lines, progress
from ipygpumem.features.recordings.command import VIEW
from ipygpumem.snapshot import Snapshot


def _load(arguments: argparse.Namespace) -> list[Snapshot]:
    from ipygpumem.viewer.write import check_snapshot_count

    check_snapshot_count(len(arguments.files))
    with progress("reading"):
        return [Snapshot.load(name) for name in arguments.files]


def _page_options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "source": not arguments.no_source,
        "paths": not arguments.strip_paths,
        "theme": arguments.theme,
        "settings": arguments.set,
    }


def _html(arguments: argparse.Namespace) -> int:
    from ipygpumem.viewer.write import write_page

    target = arguments.output
    if target is None:
        name = Path(arguments.files[0]).name.split(".")[0]
        target = f"{name or 'snapshot'}.html"
    check_path(target, "page", "snapshot.html")
    snapshots = _load(arguments)
    with progress("writing"):
        path = write_page(target, snapshots, **_page_options(arguments))
    nbytes = path.stat().st_size
    if arguments.json:
        print_json({"page": str(path), "bytes": nbytes})
    else:
        print_lines(f"{printable(str(target))}: {size(nbytes)}")
    return 0


def _view(arguments: argparse.Namespace) -> int:
    from ipygpumem.viewer.write import open_page

    snapshots = _load(arguments)
    with progress("writing"):
        path, opened = open_page(snapshots, **_page_options(arguments))
    if arguments.json:
        print_json({"page": str(path), "opened": opened})
    else:
        print_lines(*([] if opened else ["no browser was found: open this temporary file manually"]), str(path))
    return 0


_OPTIONS = (
    Option(("--no-source",), None, "omit the source code of recorded cells"),
    Option(("--strip-paths",), None, "omit directory names, the file name of FILE and strings in allocator settings"),
    Option(
        ("--theme",),
        "THEME",
        "color theme: light, dark or auto (default), which follows the system",
        choices=("auto", "light", "dark"),
        default="auto",
    ),
)
COMMANDS = (
    Command(
        "html",
        "write the viewer to a single HTML file that works offline",
        (
            *VIEW.options,
            *_OPTIONS,
            Option(
                ("-o", "--output"),
                "OUT",
                "output file (default: the file name of FILE with the extension .html, in the current directory)",
            ),
        ),
        shell=_html,
    ),
    replace(VIEW, options=(*VIEW.options, *_OPTIONS), shell=_view),
)
