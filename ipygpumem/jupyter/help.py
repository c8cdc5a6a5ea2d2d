"""The help of the magics, from the specifications of the commands."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from ipygpumem.jupyter.commands import COMMANDS
from ipygpumem.jupyter.options import CELL, STATEMENT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.commands.command import Command, Option

__all__ = ["command_help", "help_text"]

_INDENT = 30


def help_text() -> str:
    """What ``%gpumem --help`` shows, and ``%gpumem?`` ends with."""
    lines = [
        "%%gpumem [OPTIONS]            measure this cell",
        "%gpumem [OPTIONS] STATEMENT   measure one statement, and return its value",
        "%gpumem                       show the memory breakdown: where device memory is used now",
        *(f"%gpumem {_usage(command)}".ljust(_INDENT) + command.help for command in COMMANDS),
        "",
        "Options:",
        *_option_lines({option.flags: option for option in (*CELL, *STATEMENT)}.values()),
    ]
    for command in COMMANDS:
        if command.options_of("magic"):
            lines += ["", f"Options of %gpumem {command.name}:", *_option_lines(command.options_of("magic"))]
    lines += ["", "Settings: %config GPUMem. Reports: ipygpumem.last, ipygpumem.reports."]
    return "\n".join(lines)


def command_help(command: Command) -> str:
    """What ``%gpumem COMMAND --help`` shows."""
    lines = [f"%gpumem {_usage(command)}: {command.help}", *_option_lines(command.options_of("magic"))]
    for subcommand in command.subcommands:
        lines += ["", f"%gpumem {command.name} {_usage(subcommand)}: {subcommand.help}"]
        lines += _option_lines(subcommand.options_of("magic"))
    return "\n".join(lines)


def _usage(command: Command) -> str:
    arguments = [
        option.usage or (f"{option.metavar}..." if option.many else str(option.metavar))
        for option in command.options_of("magic")
        if option.is_argument
    ]
    return " ".join([command.name, *arguments])


def _option_lines(options: Iterable[Option]) -> list[str]:
    lines = []
    for option in options:
        value = f" {option.metavar}" if option.metavar else ""
        flags = str(option.metavar) if option.is_argument else ", ".join(option.flags) + value
        lines += textwrap.wrap(
            option.help.replace("%%%%", "%%"),
            110,
            initial_indent=f"  {flags.ljust(_INDENT - 4)}  ",
            subsequent_indent=" " * _INDENT,
        )
    return lines
