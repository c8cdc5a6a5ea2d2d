"""The ``%gpumem`` commands and their help texts."""

from __future__ import annotations

import difflib
import keyword
import re
import textwrap
from collections.abc import Container, Iterable

from ipygpumem.features.commands import registry
from ipygpumem.features.commands.command import ASSIGNMENT, HELP, Command, Option
from ipygpumem.jupyter.options import CELL, STATEMENT

_NAME = re.compile(r"[A-Za-z_]\w*(?=\s|$)")
_INDENT = 30
COMMANDS = (
    Command(
        "on", "report on cells that change memory usage", (HELP,), lambda notebook, _: notebook.set_reports(on=True)
    ),
    Command("off", "show only requested reports", (HELP,), lambda notebook, _: notebook.set_reports(on=False)),
    *(command for command in registry.COMMANDS if command.magic is not None or command.subcommands),
)
_SHELL_COMMANDS = {command.name for command in registry.COMMANDS} - {command.name for command in COMMANDS}


def command_error(statement: str, variables: Container[str]) -> str:
    """Return an error message if a statement starts with a misspelled command or a shell command, otherwise ``""``."""
    match = _NAME.match(statement)
    if match is None or match[0] in variables or keyword.iskeyword(match[0]):
        return ""
    name, rest = match[0], statement[match.end() :]
    if ASSIGNMENT.match(rest.lstrip()):
        return ""
    if name in _SHELL_COMMANDS:
        return f"{name!r} is a shell command: run !ipygpumem {name}{rest}"
    similar = difflib.get_close_matches(name, [command.name for command in COMMANDS], n=1)
    return f"unknown command {name!r}. Did you mean %gpumem {similar[0]}?" if similar else ""


def help_text() -> str:
    """Return the text of ``%gpumem --help``, which is also part of ``%gpumem?``."""
    lines = [
        "%%gpumem [OPTIONS]            measure this cell",
        "%gpumem [OPTIONS] STATEMENT   measure one statement and return its value",
        "%gpumem                       show the current memory breakdown of each device",
        *(f"%gpumem {_usage(command)} ".ljust(_INDENT) + command.help for command in COMMANDS),
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
    """Return the text of ``%gpumem COMMAND --help``."""
    lines = [f"%gpumem {_usage(command)}: {command.help}", *_option_lines(command.options_of("magic"))]
    for subcommand in command.subcommands:
        lines += ["", f"%gpumem {command.name} {_usage(subcommand)}: {subcommand.help}"]
        lines += _option_lines(subcommand.options_of("magic"))
    return "\n".join(lines)


def _usage(command: Command) -> str:
    arguments = [
        option.usage or (f"{option.metavar}..." if option.accepts_many else str(option.metavar))
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
            option.help,
            110,
            initial_indent=f"  {flags.ljust(_INDENT - 4)}  ",
            subsequent_indent=" " * _INDENT,
        )
    return lines
