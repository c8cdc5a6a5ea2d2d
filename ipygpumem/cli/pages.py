"""``html`` and ``view``: the viewer of snapshots, as a file and in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipygpumem.cli.progress import progress
from ipygpumem.commands.output import BAD_FILE, complain, print_json, say
from ipygpumem.core.errors import SnapshotError
from ipygpumem.core.files import check_path
from ipygpumem.core.units import size
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.reader.load import one_line

if TYPE_CHECKING:
    import argparse

    from ipygpumem.commands.arguments import Commands

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Put the commands in."""
    made = commands.over_one(
        "html", _html, "The viewer as one HTML file, to keep or to send: it opens without a network."
    )
    _pictured(made)
    made.add_argument("-o", "--output", metavar="OUT", help="where to write (in this folder, named after FILE)")
    _pictured(
        commands.over_one("view", _view, "Open the viewer in the browser: a page in a temporary folder, no server.")
    )


def _pictured(made: argparse.ArgumentParser) -> None:
    made.add_argument("--no-source", action="store_true", help="leave the text of the recorded cells out")
    made.add_argument("--strip-paths", action="store_true", help="leave the folders of files out")
    made.add_argument("--theme", choices=("auto", "light", "dark"), default="auto", help="(auto: as the system)")


def _loaded(words: argparse.Namespace) -> list[Snapshot] | None:
    """The snapshots to show; None, and the reason said, where one cannot be read.

    Raises:
        OptionError: They are too many.
    """
    from ipygpumem.viewer.page import check_snapshot_count

    check_snapshot_count(1 + len(words.others))
    try:
        with progress("reading"):
            return [Snapshot.load(name) for name in (words.file, *words.others)]
    except SnapshotError as problem:
        complain(problem)
        return None


def _shown(words: argparse.Namespace) -> dict[str, Any]:
    return {"source": not words.no_source, "paths": not words.strip_paths, "theme": words.theme}


def _html(words: argparse.Namespace) -> int:
    from ipygpumem.viewer import write_page

    target = words.output
    if target is None:
        target = f"{Path(words.file).name.split('.')[0] or 'snapshot'}.html"
    check_path(target, "page", "snapshot.html")
    snapshots = _loaded(words)
    if snapshots is None:
        return BAD_FILE
    with progress("writing"):
        path = write_page(target, snapshots, **_shown(words))
    count = path.stat().st_size
    if words.json:
        print_json({"page": str(path), "bytes": count})
    else:
        say(f"{one_line(str(target))}: {size(count)}")
    return 0


def _view(words: argparse.Namespace) -> int:
    from ipygpumem.viewer import open_page

    snapshots = _loaded(words)
    if snapshots is None:
        return BAD_FILE
    with progress("writing"):
        path, opened = open_page(snapshots, **_shown(words))
    if words.json:
        print_json({"page": str(path), "opened": opened})
    else:
        say(str(path) if opened else f"no browser can be opened from here: open this file in one\n{path}")
    return 0
