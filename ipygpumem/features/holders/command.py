"""``%gpumem who``: what holds the memory, by name, the largest first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from ipygpumem.commands.answer import answer, answer_options
from ipygpumem.commands.command import Command
from ipygpumem.features.holders.collect import find_holders
from ipygpumem.features.holders.table import holders_tables
from ipygpumem.jupyter import display as show
from ipygpumem.jupyter.options import Option, parse

if TYPE_CHECKING:
    import argparse

    from ipygpumem.features.holders.model import Holders
    from ipygpumem.jupyter.magics import GPUMem

__all__ = ["WHO"]

_OPTIONS = (
    Option(("names",), "NAME", "show only these holders", many=True),
    Option(("--new",), None, "show only tensors created since this cell began, or since the last %%gpumem who"),
    Option(("-n",), "N", "number of holders to show (default 10)", default="10"),
    Option(("--parts",), "N", "number of tensors to show for each holder (default 3)", default="3"),
    Option(("--host",), None, "include tensors in main memory"),
    *answer_options("the holders"),
)


def _run(magics: GPUMem, rest: str) -> Any:
    arguments = parse("%gpumem who", _OPTIONS, rest)
    limit, parts = _number("-n", arguments.n), _number("--parts", arguments.parts)
    found = _holders(magics, arguments)

    def display() -> None:
        show.show_tables(magics.shell, holders_tables(found, limit=limit, parts=parts))

    return answer(magics, arguments, found, display)


def _holders(magics: GPUMem, arguments: argparse.Namespace) -> Holders:
    session, baselines = magics.session, magics.cells.baselines
    device = None if not arguments.device else session.monitor.parse_devices(arguments.device)
    since, moment = baselines.comparison() if arguments.new else (None, "")
    if arguments.new and since is None:
        raise UsageError(
            "%gpumem who --new: there is nothing to compare with yet. Use it in the cell that creates the tensors, or"
            " run %gpumem who first"
        )
    found, baselines.reported = find_holders(session, device=device, host=arguments.host or None, since=since)
    if arguments.names:
        chosen = tuple(holder for holder in found.holders if holder.name in arguments.names)
        missing = set(arguments.names) - {holder.name for holder in chosen}
        if missing:
            raise UsageError(f"%gpumem who: no memory is held under the name {', '.join(sorted(missing))}")
        found = replace(found, holders=chosen)
    return replace(found, since=moment)


def _number(flag: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise UsageError(f"%gpumem who: {flag} must be a positive integer, not {text!r}")
    return int(text)


WHO = Command("who", "who holds the memory, by name", _run, options=_OPTIONS)
