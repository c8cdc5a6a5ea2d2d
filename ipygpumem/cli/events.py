"""``events``: the events of snapshots as a table."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ipygpumem.commands.output import each, print_json, say
from ipygpumem.snapshot.export.event_table import COLUMNS, event_rows, write_csv, write_parquet
from ipygpumem.snapshot.reader.load import one_line

if TYPE_CHECKING:
    import argparse

    from ipygpumem.commands.arguments import Commands
    from ipygpumem.snapshot import Snapshot

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Put the command in."""
    made = commands.over_files("events", _events, "All events as a table.")
    form = made.add_mutually_exclusive_group()
    form.add_argument("--csv", action="store_true", help="as CSV, to the standard output")
    form.add_argument("--parquet", action="store_true", help="as Parquet, beside each file")


def _events(words: argparse.Namespace) -> int:
    several = len(words.files) > 1
    begun: list[str] = []

    def show(snapshot: Snapshot, name: str) -> None:
        if words.json:
            of = {"snapshot": name} if several else {}
            for row in event_rows(snapshot, words.device):
                print_json(of | dict(zip(COLUMNS, row, strict=True)))
        elif words.parquet:
            target = Path(f"{name}.parquet")
            write_parquet(snapshot, target, words.device)
            say(one_line(str(target)))
        else:
            write_csv(snapshot, sys.stdout, words.device, label=name if several else None, names=not begun)
            begun.append(name)

    return each(words, show)
