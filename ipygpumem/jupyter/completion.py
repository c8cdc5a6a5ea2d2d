"""Tab completion of commands, options and paths, which requires IPython 8.6 or later."""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import Any

from ipygpumem.features.commands.command import Option
from ipygpumem.jupyter.commands import COMMANDS
from ipygpumem.jupyter.options import CELL, STATEMENT

_PATHS = ("--snapshot", "--trace", "--timeline")
_LINE = re.compile(r"^\s*(?P<magic>%{1,2})gpumem\b(?P<rest>.*)$", re.DOTALL)


def candidates(line: str) -> list[str] | None:
    """Return the completions of the last argument of a line, or None if it cannot be completed."""
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
    """Return a matcher for ``Completer.custom_matchers``, or None if this version of IPython has no matchers."""
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
