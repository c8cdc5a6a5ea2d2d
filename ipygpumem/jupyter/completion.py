"""Tab completion of the magics' words and of snapshot paths, where IPython has matchers (8.6 and later)."""

from __future__ import annotations

import glob
import re
from pathlib import Path
from typing import Any

from ipygpumem.jupyter.commands import COMMANDS
from ipygpumem.jupyter.options import CELL, STATEMENT, Option

__all__ = ["candidates", "matcher"]

_PATHS = ("--snapshot", "--trace", "--timeline")
_LINE = re.compile(r"^\s*(?P<magic>%{1,2})gpumem\b(?P<rest>.*)$", re.DOTALL)


def candidates(line: str) -> list[str] | None:
    """What may stand in the place of the last word of a line; None where the line is not ours to complete."""
    match = _LINE.match(line)
    if match is None or "\n" in match["rest"] or not match["rest"][:1].isspace():
        return None
    before, _, word = match["rest"].rpartition(" ")
    words = before.split()
    flag, equals, start = word.partition("=")
    begun = start if equals and flag in _PATHS else word if words and words[-1] in _PATHS else None
    if begun is None and words and words[-1] == "--collect":
        begun = word
    if begun is not None:
        return _paths(begun)
    if match["magic"] == "%%":
        return _matching(word, CELL, words)
    command = next((one for one in COMMANDS if words[:1] == [one.word]), None)
    if command is None:
        commands = [one.word for one in COMMANDS if one.word.startswith(word)] if not words else []
        options = _matching(word, STATEMENT, words) if word.startswith("-") else []
        return [*commands, *(options or [])] or None
    if command.verbs and len(words) == 1:
        return [verb.word for verb in command.verbs if verb.word.startswith(word)]
    verb = next((one for one in command.verbs if words[1:2] == [one.word]), None)
    return _matching(word, verb.options if verb else command.options, words)


def _paths(start: str) -> list[str]:
    """Files and folders that begin as the text typed so far; a folder ends in a slash."""
    found = sorted(glob.glob(f"{glob.escape(start)}*"))  # noqa: PTH207 (the text as typed is what is completed)
    return [f"{path}/" if Path(path).is_dir() else path for path in found]


def _matching(word: str, options: tuple[Option, ...], words: list[str]) -> list[str] | None:
    last = next((one for one in options if words and words[-1] in one.flags), None)
    if last is not None and last.value is not None:
        return [choice for choice in last.choices if choice.startswith(word)] or None
    if not word.startswith("-") and any(option.operand and option.path for option in options):
        return _paths(word)
    return [flag for one in options if not one.operand for flag in one.flags if flag.startswith(word)]


def matcher() -> Any | None:
    """A matcher for ``Completer.custom_matchers``; None on an IPython without them."""
    try:
        from IPython.core.completer import SimpleCompletion, context_matcher
    except ImportError:
        return None

    @context_matcher()
    def gpumem_matcher(context: Any) -> Any:
        line = context.line_with_cursor[: context.cursor_position]
        completions = [SimpleCompletion(text, type="param") for text in candidates(line) or []]
        # the whole word is replaced; IPython's own idea of it ends at a bracket or an equals sign
        word = line.rpartition(" ")[2]
        for flag in _PATHS:
            word = word.removeprefix(f"{flag}=")
        return {"completions": completions, "matched_fragment": word}

    return gpumem_matcher
