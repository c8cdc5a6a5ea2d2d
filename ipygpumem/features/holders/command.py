"""The command ``%gpumem who``, and the baselines with which ``--new`` compares storages."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from typing import Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.introspection import release_free_memory
from ipygpumem.features.commands.command import Command, Notebook, Option, positive, result_options, show_result
from ipygpumem.features.holders.model import Holders, StorageBaseline
from ipygpumem.measurement.runtime import Runtime
from ipygpumem.sources import pytorch
from ipygpumem.sources.allocator import allocated_blocks

_WHO_NEW = re.compile(r"%gpumem\s+who\b.*--new\b")


class HolderBaselines:
    """The baselines with which ``%gpumem who --new`` compares storages in one IPython shell.

    Attributes:
        cell: Baseline before the current cell; None if it was not recorded. It contains only the allocator's blocks,
            which can be read in milliseconds. Therefore, tensors that reuse memory freed by the same cell are not
            recognized as new.
        reported: Baseline created by the last ``%gpumem who``; None before the first ``%gpumem who``.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.cell: StorageBaseline | None = None
        self.reported: StorageBaseline | None = None

    def start_cell(self, text: str) -> None:
        self.cell = None
        lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        if len(lines) > 1 and _WHO_NEW.search(text):
            self.record_blocks()

    def record_blocks(self) -> None:
        if pytorch.initialized_torch() is not None:
            blocks = allocated_blocks()
            self.cell = None if blocks is None else StorageBaseline.of({}, blocks)
        elif not self._runtime.host_only:
            self.cell = StorageBaseline()

    def comparison(self) -> tuple[StorageBaseline | None, str]:
        """Return the baseline with which ``--new`` compares storages (None if there is none), and a description."""
        if self.cell is not None:
            return self.cell, "this cell began"
        return self.reported, "the last %gpumem who"


def _run(notebook: Notebook, arguments: argparse.Namespace) -> Any:
    from ipygpumem.features.holders.table import holders_tables

    result = _holders(notebook, arguments)
    release_free_memory()  # the search allocates several MiB of temporary objects
    tables = holders_tables(result, limit=arguments.n, parts=arguments.parts)
    return show_result(notebook, arguments, result, lambda: notebook.show_tables(tables))


def _holders(notebook: Notebook, arguments: argparse.Namespace) -> Holders:
    from ipygpumem.features.holders.collect import find_holders
    from ipygpumem.features.holders.reference_graph import notebook_roots

    session, baselines = notebook.session, notebook.cells.baselines
    device = session.monitor.parse_devices(arguments.device) if arguments.device else None
    since, moment = baselines.comparison() if arguments.new else (None, "")
    if arguments.new and since is None:
        raise OptionError(
            "--new requires an earlier %gpumem who to compare with. Run %gpumem who first or, on a GPU, use --new in"
            " the cell that creates the tensors"
        )
    result, baselines.reported = find_holders(
        session,
        notebook_roots(notebook.shell),
        device=device,
        host=arguments.host or None,
        since=since,
        label=notebook.cells.numbers.label,
        everywhere=arguments.all,
    )
    if arguments.names:
        selected_holders = tuple(holder for holder in result.holders if holder.name in arguments.names)
        missing_names = set(arguments.names) - {holder.name for holder in selected_holders}
        if missing_names:
            raise OptionError(f"no holder is named {' or '.join(sorted(missing_names))}; %gpumem who lists the holders")
        result = replace(result, holders=selected_holders)
    return replace(result, since=moment)


WHO = Command(
    "who",
    "list the variables and objects that hold memory",
    (
        Option(("names",), "NAME", "show only the holders with these names", accepts_many=True, usage="[NAME...]"),
        Option(
            ("--new",),
            None,
            "show only tensors created by this cell or, if the cell contains only this command, since the last"
            " %gpumem who",
        ),
        Option(("-n",), "N", "number of holders to show (default: 10)", default=10, type=positive),
        Option(("--parts",), "N", "number of tensors to show per holder (default: 3)", default=3, type=positive),
        Option(("--host",), None, "include tensors in host memory"),
        Option(("--all",), None, "search all Python objects, even if the variables account for 99% of the memory"),
        *result_options("the holders"),
    ),
    magic=_run,
)
