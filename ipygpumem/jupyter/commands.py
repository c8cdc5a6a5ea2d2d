"""The ``%gpumem`` commands, their help texts, and tab completion, which requires IPython 8.6 or later."""

from __future__ import annotations

import difflib
import glob
import keyword
import re
import textwrap
from collections.abc import Container, Iterable
from pathlib import Path
from typing import Any

from ipygpumem.features.commands import registry
from ipygpumem.features.commands.command import ASSIGNMENT, HELP, Command, Option
from ipygpumem.jupyter.options import CELL, STATEMENT

_NAME = re.compile(r"[A-Za-z_]\w*(?=\s|$)")
_INDENT = 30
COMMANDS = (
    Command(
        "on",
        "show automatic reports below cells",
        (HELP,),
        lambda notebook, _: notebook.set_reports(on=True),
    ),
    Command("off", "show only requested reports", (HELP,), lambda notebook, _: notebook.set_reports(on=False)),
    *(command for command in registry.COMMANDS if command.magic is not None or command.subcommands),
)
_SHELL_COMMANDS = {command.name for command in registry.COMMANDS} - {command.name for command in COMMANDS}


def command_error(statement: str, variables: Container[str]) -> str:
    """Return an error message if a statement starts with a misspelled command or a shell command; otherwise ``""``."""
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
        indent = f"  {flags.ljust(_INDENT - 4)}  "
        lines += textwrap.wrap(option.help, 110, initial_indent=indent, subsequent_indent=" " * _INDENT)
    return lines


_PATHS = ("--snapshot", "--trace", "--timeline")
_LINE = re.compile(r"^\s*(?P<magic>%{1,2})gpumem\b(?P<rest>.*)$", re.DOTALL)


def candidates(line: str) -> list[str] | None:
    """Return the completions of the last argument of a line, or None if there are none for this line."""
    match = _LINE.match(line)
    if match is None or "\n" in match["rest"] or not match["rest"][:1].isspace():
        return None
    before, _, typed = match["rest"].rpartition(" ")
    arguments = before.split()
    last = arguments[-1] if arguments else ""
    flag, equals, value = typed.partition("=")
    if (equals and flag in _PATHS) or last in {*_PATHS, "--collect"}:
        return _paths(value if equals and flag in _PATHS else typed)
    if match["magic"] == "%%":
        return _complete(typed, CELL, last)
    command = next((command for command in COMMANDS if arguments[:1] == [command.name]), None)
    if command is None:
        names = [] if arguments else [command.name for command in COMMANDS if command.name.startswith(typed)]
        options = _complete(typed, STATEMENT, last) if typed.startswith("-") else []
        return [*names, *(options or [])] or None
    if command.subcommands and len(arguments) == 1:
        return [subcommand.name for subcommand in command.subcommands if subcommand.name.startswith(typed)]
    command = next((sub for sub in command.subcommands if arguments[1:2] == [sub.name]), command)
    return _complete(typed, command.options_of("magic"), last)


def _paths(start: str) -> list[str]:
    paths = sorted(glob.glob(f"{glob.escape(start)}*"))  # noqa: PTH207 (Path would normalize the typed text)
    return [f"{path}/" if Path(path).is_dir() else path for path in paths]


def _complete(typed: str, options: tuple[Option, ...], last: str) -> list[str] | None:
    option = next((option for option in options if last in option.flags), None)
    if option is not None and option.metavar is not None:
        return [choice for choice in option.choices if choice.startswith(typed)] or None
    if not typed.startswith("-") and any(option.is_argument and option.is_path for option in options):
        return _paths(typed)
    flags = [flag for option in options if not option.is_argument for flag in option.flags]
    return [flag for flag in flags if flag.startswith(typed)]


def matcher() -> Any | None:
    try:
        from IPython.core.completer import SimpleCompletion, context_matcher
    except ImportError:
        return None

    @context_matcher()
    def gpumem_matcher(context: Any) -> Any:
        line = context.line_with_cursor[: context.cursor_position]
        completions = [SimpleCompletion(text, type="param") for text in candidates(line) or []]
        # replace the whole argument, because IPython also splits at brackets and equals signs
        typed = line.rpartition(" ")[2]
        for flag in _PATHS:
            typed = typed.removeprefix(f"{flag}=")
        return {"completions": completions, "matched_fragment": typed}

    return gpumem_matcher
