"""``%gpumem who``: what keeps the memory, by name, the largest first."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from ipygpumem.commands.answer import answer, answer_options
from ipygpumem.commands.command import Command
from ipygpumem.features.holders.collect import holders
from ipygpumem.features.holders.table import holders_tables
from ipygpumem.jupyter import display as show
from ipygpumem.jupyter.options import Option, parse

if TYPE_CHECKING:
    import argparse

    from ipygpumem.features.holders.model import Holders
    from ipygpumem.jupyter.magics import GPUMem

__all__ = ["WHO"]

_OPTIONS = (
    Option(("names",), "NAME", "only what stands under these names", many=True),
    Option(("--new",), None, "only what is new: since this cell began, or since the last %%gpumem who"),
    Option(("-n",), "N", "how many holders to show (default 10)", default="10"),
    Option(("--parts",), "N", "how many tensors of each (default 3)", default="3"),
    Option(("--host",), None, "tensors in main memory, too"),
    *answer_options("the holders"),
)


def _run(magics: GPUMem, rest: str) -> Any:
    words = parse("%gpumem who", _OPTIONS, rest)
    most, parts = _number("-n", words.n), _number("--parts", words.parts)
    found = _holders(magics, words)

    def display() -> None:
        show.show_tables(magics.shell, holders_tables(found, most=most, parts=parts))

    return answer(magics, words, found, display)


def _holders(magics: GPUMem, words: argparse.Namespace) -> Holders:
    host = True if words.host else None
    device = None if not words.device else magics.session.monitor.parse_devices(words.device)
    since, told = None, ""
    if words.new:
        since, told = magics.cells.marks.since()
        if since is None:
            raise UsageError(f"%gpumem who --new: {told}")
    found = holders(device=device, host=host, since=since)
    magics.cells.marks.told()
    if words.names:
        chosen = tuple(one for one in found.holders if one.name in words.names)
        missing = [name for name in words.names if all(one.name != name for one in chosen)]
        if missing:
            raise UsageError(f"%gpumem who: nothing is held under the name {', '.join(missing)}")
        found = replace(found, holders=chosen)
    return replace(found, since=told)


def _number(flag: str, text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise UsageError(f"%gpumem who: {flag} is a number from 1 on, not {text!r}")
    return int(text)


WHO = Command("who", "who holds the memory, by name", _run, options=_OPTIONS)
