"""The commands ``history``, ``notebook`` and ``compare`` for sessions, logs and executed notebooks."""

from __future__ import annotations

import argparse
from functools import partial
from typing import TYPE_CHECKING, Any

from ipygpumem.core.device_names import device_names
from ipygpumem.core.errors import OptionError, ReportError
from ipygpumem.core.files import check_ending, check_path, write_file
from ipygpumem.core.tables import text_tables
from ipygpumem.core.text import printable
from ipygpumem.features.commands.command import DEVICE, HELP, Command, Notebook, Option, positive
from ipygpumem.features.commands.output import (
    BAD_FILE,
    print_error,
    print_json_list,
    print_lines,
    print_skipped,
    progress,
)
from ipygpumem.features.history.model import PAGE, SORT_COLUMNS, RowPair, changed_rows, pair_rows

if TYPE_CHECKING:
    from ipygpumem.features.history.load import SessionRows
    from ipygpumem.features.history.table import TablePage

_COMPARED = ("held", "peak", "outside", "seconds")


def _magic(notebook: Notebook, arguments: argparse.Namespace) -> None:
    from ipygpumem.features.history.load import SessionRows, read_rows  # on first use, as below: to save memory
    from ipygpumem.features.history.table import history_tables, select_devices

    page, devices = _page(arguments), device_names(arguments.device or ())
    if len(arguments.files) > 1:
        raise OptionError("only one file can be displayed: use %gpumem compare to compare two files")
    if arguments.files:
        rows = read_rows(notebook.expand(arguments.files[0]))
    else:
        from ipygpumem.features.history.reports import session_reports

        reports = session_reports()
        rows = SessionRows("this session", changed_rows(reports), dropped=reports.dropped)
    notebook.claim_cell()
    selected_rows = select_devices(rows.rows, devices)
    tables = history_tables(selected_rows, page, title=rows.name, dropped=rows.dropped)
    if arguments.plot:
        from ipygpumem.features.history.plot import history_plot

        notebook.show_image(history_plot(selected_rows, rows.name), text_tables(tables))
    else:
        notebook.show_tables(tables)
    notebook.print(*(f"ipygpumem: skipped: {fault}" for fault in rows.faults))


def _page(arguments: argparse.Namespace) -> TablePage:
    if arguments.plot and (arguments.by or arguments.page or arguments.top):
        raise OptionError("--plot displays all cells in execution order: omit --by, -n and --page")
    from ipygpumem.features.history.table import TablePage

    return TablePage(arguments.by or "in", arguments.page or 1, arguments.top or PAGE)


def _shell(arguments: argparse.Namespace, *, is_notebook: bool = False) -> int:
    from ipygpumem.features.history.table import history_tables, select_devices

    page, devices = _page(arguments), device_names(arguments.device or ())
    if arguments.plot is not None:
        if len(arguments.files) > 1:
            raise OptionError("--plot accepts only one file")
        check_path(arguments.plot, "plot", "history.png")
        check_ending(arguments.plot, "plot", ".png")
    status = 0
    for number, name in enumerate(arguments.files):
        try:
            rows = _read(name, is_notebook=is_notebook)
        except ReportError as error:
            print_error(error)
            status = BAD_FILE
            continue
        if rows.faults:
            status = BAD_FILE
        selected_rows = select_devices(rows.rows, devices)
        if arguments.json:
            print_json_list({"file": name}, "rows", selected_rows)
        elif arguments.plot is not None:
            from ipygpumem.features.history.plot import history_plot
            from ipygpumem.viewer.plot_image import import_matplotlib

            import_matplotlib()
            image = history_plot(selected_rows, rows.name)
            write_file(check_path(arguments.plot), image.png)
            print_lines(f"{printable(arguments.plot)}: {image.text}")
        elif not selected_rows and rows.name.endswith(".ipynb"):
            print_lines(f"{rows.name}: no output contains measurements; execute the notebook with ipygpumem loaded")
        else:
            print_lines(*([""] if number else []), text_tables(history_tables(selected_rows, page, title=rows.name)))
    return status


def _read(name: str, *, is_notebook: bool = False) -> SessionRows:
    from ipygpumem.features.history.load import read_notebook, read_rows

    with progress(f"reading {name}"):
        rows = read_notebook(name) if is_notebook else read_rows(name)
    print_skipped(rows.faults)
    return rows


def _compare_magic(notebook: Notebook, arguments: argparse.Namespace) -> None:
    from ipygpumem.features.history.load import read_rows, short_names
    from ipygpumem.features.history.table import comparison_tables

    paths = [notebook.expand(path) for path in (arguments.before, arguments.after)]
    before, after = map(read_rows, paths)
    notebook.claim_cell()
    pairs, skipped = pair_rows(before.rows, after.rows)
    notebook.show_tables(comparison_tables(pairs, arguments.by, short_names(*paths), skipped))
    notebook.print(*(f"ipygpumem: skipped: {fault}" for fault in (*before.faults, *after.faults)))


def _compare_shell(arguments: argparse.Namespace) -> int:
    from ipygpumem.features.history.load import short_names
    from ipygpumem.features.history.table import comparison_tables

    before, after = _read(arguments.before), _read(arguments.after)
    pairs, skipped = pair_rows(before.rows, after.rows)
    if arguments.json:
        print_json_list({"a": arguments.before, "b": arguments.after}, "cells", map(_pair_to_dict, pairs))
    else:
        names = short_names(arguments.before, arguments.after)
        print_lines(text_tables(comparison_tables(pairs, arguments.by, names, skipped)))
    return BAD_FILE if before.faults or after.faults else 0


def _pair_to_dict(pair: RowPair) -> dict[str, Any]:
    return {
        **{name: getattr(pair.row, name) for name in ("cell", "cell_id", "code", "device")},
        "a": None if pair.before is None else {name: getattr(pair.before, name) for name in _COMPARED},
        "b": None if pair.after is None else {name: getattr(pair.after, name) for name in _COMPARED},
        "change": {name: pair.change(name) for name in _COMPARED},
    }


def _by(help_text: str, default: str | None = None) -> Option:
    return Option(("--by",), f"{{{','.join(SORT_COLUMNS)}}}", help_text, choices=tuple(SORT_COLUMNS), default=default)


def _options(file_help: str) -> tuple[Option, ...]:
    return (
        Option(("files",), "FILE", file_help, is_path=True, accepts_many=True, usage="[FILE]"),
        _by('sort by this column in descending order, or use "in" (default) for execution order'),
        DEVICE,
        Option(("-n", "--top"), "N", f"number of rows per page (default: {PAGE})", type=positive),
        Option(("--page",), "N", "page number (page 1 contains the newest rows or the largest values)", type=positive),
        Option(("--plot",), None, "plot the memory usage and the peak of each cell", only_interface="magic"),
        Option(("--plot",), "OUT.png", "plot the memory usage and the peak of each cell", only_interface="shell"),
        HELP,
    )


HISTORY = Command(
    "history",
    "list all measured cells with their held memory, peak, memory outside PyTorch and time",
    _options("a log (see the setting GPUMem.log) or an executed notebook (default in a notebook: this session)"),
    _magic,
    _shell,
)
NOTEBOOK = Command(
    "notebook",
    "list the memory usage of each cell of an executed notebook; no kernel is needed",
    _options("an executed notebook (.ipynb) in which ipygpumem was loaded"),
    shell=partial(_shell, is_notebook=True),
)
COMPARE = Command(
    "compare",
    "compare two runs of a notebook, cell by cell",
    (
        Option(("before",), "A", "a log (see the setting GPUMem.log) or an executed notebook", is_path=True),
        Option(("after",), "B", "a log or an executed notebook to compare with A", is_path=True),
        _by(
            'sort by the size of the change in this column, largest first, or use "in" (default) for execution order',
            "in",
        ),
        HELP,
    ),
    _compare_magic,
    _compare_shell,
)
