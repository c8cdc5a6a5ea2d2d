"""Generates the reference pages from the specifications of the commands and of the settings."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.features.commands.command import Command, Option

ROOT = Path(__file__).resolve().parents[1]


def pages() -> dict[str, str]:
    """Return the text of each page by file name."""
    return {
        "magics.md": magics(),
        "settings.md": settings(),
        "command_line.md": command_line(),
        "reports_format.md": format_description("ipygpumem/core/FORMAT.md"),
        "snapshots_format.md": format_description("ipygpumem/snapshot/FORMAT.md"),
    }


def magics() -> str:
    """Return the page that describes the magics and their options."""
    from ipygpumem.jupyter.commands import COMMANDS
    from ipygpumem.jupyter.options import CELL, STATEMENT

    lines = [
        "# Magics",
        "",
        "`%gpumem?` and `%%gpumem --help` show this help, and `%gpumem COMMAND --help` shows the help of a command. A",
        "line that begins with the name of a command runs the command; any other line is a statement to measure.",
        "",
        "## %%gpumem",
        "",
        "Measure a cell. `%%gpumem` is its first line, followed by options:",
        "",
        *_definitions(CELL),
        "## %gpumem STATEMENT",
        "",
        "Measure one statement and return its value. The options precede the statement. All options of `%%gpumem` are",
        "supported except `--engines` and `--collect`. In addition, the following are supported:",
        "",
        *_definitions(option for option in STATEMENT if option not in CELL),
        "## %gpumem",
        "",
        "Show the memory breakdown: how device memory is used now.",
        "",
    ]
    for command in COMMANDS:
        lines += _command(command, "%gpumem")
    return "\n".join(lines)


def _command(command: Command, program: str, level: str = "##") -> list[str]:
    name = f"{program} {command.name}"
    lines = [f"{level} {name}", "", f"{_escape(command.help[0].upper() + command.help[1:])}.", ""]
    lines += _definitions(command.options_of("magic"))
    for subcommand in command.subcommands:
        lines += _command(subcommand, name, f"{level}#")
    return lines


def _definitions(options: Iterable[Option]) -> list[str]:
    lines = []
    for option in options:
        if "--help" in option.flags:
            continue
        flags = [str(option.metavar)] if option.is_argument else option.flags
        value = f" {option.metavar}" if option.metavar and not option.is_argument else ""
        term = ", ".join(f"`{flag}{value}`" for flag in flags)
        lines += [term, f": {_escape(option.help.replace('%%%%', '%%'))}", ""]
    return lines


def _escape(text: str) -> str:
    """Escape characters that Markdown interprets."""
    return re.sub(r"([\\`*_<>\[\]#])", r"\\\1", text)


def settings() -> str:
    """Return the page that describes the settings: the help, the values and the default of each trait of ``GPUMem``."""
    from ipygpumem.jupyter.settings import Settings

    lines = [
        "# Settings",
        "",
        'Change a setting in a notebook with `%config GPUMem.min_change = "4 MiB"`, or for all sessions with',
        '`c.GPUMem.min_change = "4 MiB"` in `ipython_config.py`, which `ipython profile create` creates.',
        "`%config GPUMem` shows the current values. An invalid value raises an error, and the setting keeps its value.",
        "",
    ]
    for name, trait in sorted(Settings.class_traits(config=True).items()):
        values = " or ".join(f"`{value!r}`" for value in getattr(trait, "values", ())) or trait.info()
        default = trait.default_value if trait.default_value is not trait.default_value.__class__ else None
        lines += [f"## {name}", "", trait.help, "", f"Values: {values}. Default: `{_default(name, default)!r}`.", ""]
    return "\n".join(lines)


def _default(name: str, value: object) -> object:
    from ipygpumem.core.units import size

    return size(value) if name == "min_change" and isinstance(value, int) else value


def command_line() -> str:
    """Return the page with the ``--help`` text of each shell command."""
    from ipygpumem.cli.parser import parser

    lines = [
        "# Command line",
        "",
        "Snapshot commands need only numpy, so files can be opened on a computer without PyTorch and without a GPU.",
        "The exit status is 0 on success, 1 if a file cannot be read (with one line on standard error), and 2 for",
        "invalid arguments.",
        "",
    ]
    for action in parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                lines += [f"## ipygpumem {name}", "", *_text_block(command.format_help())]
    return "\n".join(lines)


def _text_block(text: str) -> list[str]:
    return ["```text", text.rstrip(), "```", ""]


def format_description(path: str) -> str:
    """Return a Markdown file of the package without its links to other files of the repository."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)[^)]*\)", r"\1", text)
