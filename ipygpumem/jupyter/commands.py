"""The commands of ``%gpumem``."""

from __future__ import annotations

import difflib
import re
from typing import TYPE_CHECKING

from ipygpumem.commands.command import HELP, Command
from ipygpumem.features import commands

if TYPE_CHECKING:
    import argparse
    from collections.abc import Container

    from ipygpumem.commands.notebook import Notebook

__all__ = ["COMMANDS", "find_command", "similar_command"]

_ASSIGNMENT = re.compile(r"(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=)")
_NAME = re.compile(r"[A-Za-z_]\w*(?=\s|$)")


def _on(notebook: Notebook, arguments: argparse.Namespace) -> None:  # noqa: ARG001 (has no options)
    notebook.set_reports(on=True)


def _off(notebook: Notebook, arguments: argparse.Namespace) -> None:  # noqa: ARG001 (has no options)
    notebook.set_reports(on=False)


COMMANDS = (
    Command("on", "report after every cell that changes memory", (HELP,), _on),
    Command("off", "report only cells with %%gpumem", (HELP,), _off),
    *(command for command in commands.COMMANDS if command.magic is not None or command.subcommands),
)


def find_command(line: str) -> tuple[Command, str] | None:
    """Split a line into a command and its arguments; None for a statement, such as ``history = fit(x)``."""
    name, _, rest = line.strip().partition(" ")
    command = next((command for command in COMMANDS if command.name == name), None)
    rest = rest.strip()
    return None if command is None or _ASSIGNMENT.match(rest) else (command, rest)


def similar_command(statement: str, names: Container[str]) -> tuple[str, str] | None:
    """The undefined name that a statement begins with, and a command with a similar name; None if there is none.

    Args:
        statement: The statement.
        names: The names that are defined.
    """
    match = _NAME.match(statement)
    if match is None or match[0] in names or _ASSIGNMENT.match(statement[match.end() :].lstrip()):
        return None
    similar = difflib.get_close_matches(match[0], [command.name for command in COMMANDS], n=1)
    return (match[0], similar[0]) if similar else None
