"""``%gpumem history``: the session cell by cell, as a table or a picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from IPython.core.error import UsageError

from ipygpumem.commands.command import Command
from ipygpumem.core.device_names import device_names
from ipygpumem.display.table import text_tables
from ipygpumem.features.history.model import changed_rows
from ipygpumem.features.history.report_files import ReportRows, read_rows
from ipygpumem.features.history.reports import session_reports
from ipygpumem.features.history.table import COLUMNS, PAGE, Page, history_tables, select_devices
from ipygpumem.jupyter import display as show
from ipygpumem.jupyter.options import Option, parse
from ipygpumem.jupyter.paths import filled

if TYPE_CHECKING:
    import argparse

    from ipygpumem.jupyter.magics import GPUMem

__all__ = ["HISTORY"]

_OPTIONS = (
    Option(
        ("file",), "FILE", "a log, an executed notebook, instead of this session", path=True, many=True, usage="[FILE]"
    ),
    Option(
        ("--by",),
        f"{{{','.join(COLUMNS)}}}",
        "sort by this column, the worst first (default: in, the order in which the cells ran)",
        choices=tuple(COLUMNS),
    ),
    Option(("-d", "--device"), "DEVICE", "this device only (cuda:0, 0); may be repeated", many=True),
    Option(("-n", "--top"), "N", f"rows on a page (default {PAGE})"),
    Option(("--page",), "N", "which page: 1 is the newest or the worst (default)"),
    Option(("--plot",), None, "as a picture: level and peak of each cell, stacked, under the card's capacity"),
    Option(("-h", "--help"), None, "show this help"),
)


def _run(magics: GPUMem, rest: str) -> None:
    words = parse("%gpumem history", _OPTIONS, rest)
    page = Page(words.by or "in", _number("--page", words.page or "1"), _number("-n", words.top or str(PAGE)))
    if words.plot and (words.by or words.page or words.top):
        raise UsageError("%gpumem history: --plot draws every cell in the order in which they ran: no --by, -n, --page")
    names = device_names(words.device or ())
    found = _rows(magics, words)
    magics.cells.claim()
    rows, title = select_devices(found.rows, names), found.name
    if words.plot:
        from ipygpumem.features.history.picture import history_picture

        text = text_tables(history_tables(rows, Page(), title=title))
        show.show_picture(magics.shell, history_picture(rows, title), text)
    else:
        show.show_tables(magics.shell, history_tables(rows, page, title=title, dropped=found.dropped))
    for fault in found.faults:
        print(f"ipygpumem: passed over: {fault}")  # noqa: T201 (what is missing is told)


def _rows(magics: GPUMem, words: argparse.Namespace) -> ReportRows:
    if not words.file:
        reports = session_reports()
        return ReportRows("this session", changed_rows(reports), dropped=reports.dropped)
    if len(words.file) > 1:
        raise UsageError("%gpumem history takes one file: %gpumem compare takes two")
    return read_rows(filled(magics.shell, words.file[0]))


def _number(flag: str, text: str) -> int:
    if not text.isdecimal() or not text.isascii() or int(text[:9]) < 1:
        raise UsageError(f"%gpumem history: {flag} is a number from 1 on, not {text!r}")
    return int(text[:9])


HISTORY = Command("history", "every measured cell: held, peak, outside, time", _run, options=_OPTIONS)
