"""The help of the magics, made of the same tables as the parser."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from ipygpumem.jupyter.commands import COMMANDS
from ipygpumem.jupyter.options import CELL, STATEMENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.jupyter.options import Option

__all__ = ["help_text"]


def help_text() -> str:
    """What ``--help`` shows and ``?`` ends with."""
    lines = [
        "%%gpumem [OPTIONS]            measure this cell: the full table after its output",
        "%gpumem [OPTIONS] STATEMENT   measure one statement, and give its value",
        "%gpumem                       the books now: where every byte of the card is",
    ]
    lines += [f"%gpumem {_usage(command.word, command.options)}".ljust(30) + command.help for command in COMMANDS]
    lines += ["%gpumem -- STATEMENT          measure a statement that begins with one of these words", "", "Options:"]
    lines += _table({option.flags: option for option in (*CELL, *STATEMENT)}.values())
    for command in COMMANDS:
        if command.options:
            lines += ["", f"Options of %gpumem {command.word}:", *_table(command.options)]
    lines += ["", "Settings: %config GPUMem. Reports: ipygpumem.last, ipygpumem.reports."]
    return "\n".join(lines)


def _usage(word: str, options: tuple[Option, ...]) -> str:
    operands = [
        option.usage or (f"{option.value}..." if option.many else str(option.value))
        for option in options
        if option.operand
    ]
    return " ".join([word, *operands])


def _table(options: Iterable[Option]) -> list[str]:
    lines = []
    for option in options:
        value = f" {option.value}" if option.value else ""
        flags = str(option.value) if option.operand else ", ".join(option.flags) + value
        lines += textwrap.wrap(option.help, 110, initial_indent=f"  {flags.ljust(26)}  ", subsequent_indent=" " * 30)
    return lines
