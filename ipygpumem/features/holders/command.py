"""The command ``%gpumem who``."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.features.commands.command import Command, Option, positive, result_options, show_result

if TYPE_CHECKING:
    import argparse

    from ipygpumem.features.holders.model import Holders
    from ipygpumem.jupyter.magics import GPUMem


def _run(notebook: GPUMem, arguments: argparse.Namespace) -> Any:
    from ipygpumem.features.holders.table import holders_tables

    selected = _holders(notebook, arguments)
    tables = holders_tables(selected, limit=arguments.n, parts=arguments.parts)
    return show_result(notebook, arguments, selected, lambda: notebook.show_tables(tables))


def _holders(notebook: GPUMem, arguments: argparse.Namespace) -> Holders:
    from ipygpumem.features.holders.collect import find_holders
    from ipygpumem.features.holders.reference_graph import notebook_roots

    session, baselines = notebook.session, notebook.cells.baselines
    device = session.monitor.parse_devices(arguments.device) if arguments.device else None
    since, moment = baselines.comparison() if arguments.new else (None, "")
    if arguments.new and since is None:
        raise OptionError(
            "--new requires an earlier search to compare with. Run %gpumem who first or, on a GPU, use --new in the"
            " cell that creates the tensors"
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
        selected = tuple(holder for holder in result.holders if holder.name in arguments.names)
        missing = set(arguments.names) - {holder.name for holder in selected}
        if missing:
            raise OptionError(f"no holder is named {' or '.join(sorted(missing))}; %gpumem who lists all holders")
        result = replace(result, holders=selected)
    return replace(result, since=moment)


WHO = Command(
    "who",
    "list the variables and objects that hold memory",
    (
        Option(("names",), "NAME", "show only the holders with these names", accepts_many=True, usage="[NAME...]"),
        Option(("--new",), None, "show only tensors that are new in this cell or since the last search"),
        Option(("-n",), "N", "number of holders to show (default: 10)", default=10, type=positive),
        Option(("--parts",), "N", "number of tensors to show per holder (default: 3)", default=3, type=positive),
        Option(("--host",), None, "include tensors in host memory"),
        Option(("--all",), None, "search all Python objects, even if the variables account for 99% of the memory"),
        *result_options("the holders"),
    ),
    magic=_run,
)
