"""``history``, ``compare``, ``notebook``: sessions from their logs, and from notebooks that were executed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from ipygpumem.cli.progress import progress
from ipygpumem.commands.arguments import count
from ipygpumem.commands.output import BAD_FILE, complain, print_json, say
from ipygpumem.core.device_names import device_names
from ipygpumem.core.errors import OptionError, ReportError
from ipygpumem.core.files import check_ending, check_path, replacing
from ipygpumem.display.table import text_tables
from ipygpumem.features.history.comparison import RowPair, earlier_runs, pair_rows
from ipygpumem.features.history.report_files import ReportRows, read_notebook, read_rows, short_names
from ipygpumem.features.history.table import COLUMNS, PAGE, Page, comparison_tables, history_tables, select_devices

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable

    from ipygpumem.commands.arguments import Commands

__all__ = ["add"]

_COMPARED = ("held", "peak", "outside", "seconds")


def add(commands: Commands) -> None:
    """Put the commands in."""
    made = commands.add("history", _history, "A session cell by cell, from its log (GPUMem.log) or its notebook.")
    _listed(made, "a log, or an executed notebook")
    made = commands.add("notebook", _notebook, "The memory of each cell of an executed notebook, without a kernel.")
    _listed(made, "a notebook (.ipynb) that ran with %%load_ext ipygpumem")
    made = commands.add("compare", _compare, "Two runs of a notebook, cell by cell: logs, or executed notebooks.")
    made.add_argument("before", metavar="A")
    made.add_argument("after", metavar="B", help="told against A")
    made.add_argument("--by", choices=tuple(COLUMNS), default="in", help="the largest change first (in: as they ran)")


def _listed(made: argparse.ArgumentParser, what: str) -> None:
    made.add_argument("files", nargs="+", metavar="FILE", help=what)
    made.add_argument("--by", choices=tuple(COLUMNS), help="the worst first (in: as they ran)")
    made.add_argument("--device", metavar="NAME", help="this device only (cuda:0, 0, host)")
    made.add_argument("-n", "--top", type=count, metavar="N", help=f"rows on a page ({PAGE}; in JSON all)")
    made.add_argument("--page", type=count, metavar="N", help="which page (1: the newest, or the worst)")
    made.add_argument("--plot", metavar="OUT.png", help="draw level and peak of each cell instead (of one FILE)")


def _history(words: argparse.Namespace) -> int:
    return _show(words, read_rows)


def _notebook(words: argparse.Namespace) -> int:
    return _show(words, read_notebook)


def _show(words: argparse.Namespace, read: Callable[[str], ReportRows]) -> int:
    if words.plot is not None:
        if len(words.files) > 1:
            raise OptionError("--plot draws one file")
        if words.by or words.top or words.page:
            raise OptionError("--plot draws every cell in the order in which they ran: no --by, --top, --page")
        check_path(words.plot, "picture", "history.png")
        check_ending(words.plot, "picture", ".png")
    names = () if words.device is None else device_names(words.device.split(","))
    status = 0
    for number, name in enumerate(words.files):
        found = _read(name, read)
        if found is None:
            status = BAD_FILE
            continue
        status = BAD_FILE if found.faults else status
        rows = select_devices(found.rows, names)
        found = dataclasses.replace(found, rows=rows)
        if words.json:
            print_json({"file": name, "rows": [dataclasses.asdict(row) for row in rows]})
        elif words.plot is not None:
            _draw(words.plot, found)
        else:
            say(*([""] if number else []), *_lines(found, words))
    return status


def _read(name: str, read: Callable[[str], ReportRows]) -> ReportRows | None:
    """The rows of a file; None, and the reason said, where it cannot be read. What was passed over is said, too."""
    try:
        with progress(f"reading {name}"):
            found = read(name)
    except ReportError as problem:
        complain(problem)
        return None
    for fault in found.faults:
        complain(ReportError(f"passed over: {fault}"))
    return found


def _lines(found: ReportRows, words: argparse.Namespace) -> Iterable[str]:
    if not found.rows and found.name.endswith(".ipynb"):
        return [f"{found.name}: no output carries figures: run it with %load_ext ipygpumem"]
    page = Page(words.by or "in", words.page or 1, words.top or PAGE)
    return text_tables(history_tables(found.rows, page, title=found.name)).splitlines()


def _draw(target: str, found: ReportRows) -> None:
    from ipygpumem.features.history.picture import history_picture

    still = history_picture(found.rows, found.name)
    path = check_path(target, "picture", "history.png")
    with replacing(path) as temporary:
        temporary.write_bytes(still.png)
    say(f"{target}: {still.text}")


def _compare(words: argparse.Namespace) -> int:
    before, after = _read(words.before, read_rows), _read(words.after, read_rows)
    if before is None or after is None:
        return BAD_FILE
    found = pair_rows(before.rows, after.rows)
    if words.json:
        print_json({"a": words.before, "b": words.after, "cells": [_pair(pair) for pair in found]})
    else:
        names = short_names(words.before, words.after)
        earlier = earlier_runs(before.rows, after.rows)
        say(*text_tables(comparison_tables(found, words.by, names, earlier)).splitlines())
    return BAD_FILE if before.faults or after.faults else 0


def _pair(pair: RowPair) -> dict[str, Any]:
    row = pair.row
    known = {name: getattr(row, name) for name in ("cell", "cell_id", "code", "device")}
    return {
        **known,
        "a": None if pair.before is None else {name: getattr(pair.before, name) for name in _COMPARED},
        "b": None if pair.after is None else {name: getattr(pair.after, name) for name in _COMPARED},
        "change": {name: pair.change(name) for name in _COMPARED},
    }
