"""Input transformer that replaces the ``%%gpumem`` line at the start of a cell with a call to a line magic.

An ordinary cell magic would have to run the body itself. Then IPython would regard a failed cell as successful,
``await`` would not work, and the value of the last expression and the line numbers in tracebacks would be lost.

IPython removes prompts and indentation only if the first line of a cell has them. Because that line is ``%%gpumem``,
this module removes them from the body.
"""

from __future__ import annotations

import re

from IPython.core.inputtransformer2 import cell_magic, classic_prompt, ipython_prompt, leading_indent

NAME = "gpumem"

_FIRST_LINE = re.compile(rf"%%{NAME}(?:\s+(?P<options>.*))?", re.DOTALL)
_HELP = {"-h", "--help"}


def rewrite(lines: list[str]) -> list[str]:
    """Return the lines of a cell, with a call to a line magic in place of a ``%%gpumem`` line at the start."""
    match = _FIRST_LINE.fullmatch(lines[0].rstrip()) if lines else None
    if match is None:
        return lines
    options = match["options"] or ""
    if _HELP & set(options.split()):
        return [_line_magic(NAME, "--help")]
    if "--engines" in options.split():  # the body runs on other processes, so the ordinary cell magic is used
        return lines
    return [_line_magic("_gpumem_begin", options), *_body(lines[1:])]


# prevents IPython's check_complete from calling this function: a terminal would run the rewritten first line alone
rewrite.has_side_effects = True  # type: ignore[attr-defined]


def _body(lines: list[str]) -> list[str]:
    """Transform the body of a ``%%gpumem`` cell, which may start with a cell magic, as IPython transforms a cell."""
    first = next((index for index, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return lines
    for transform in (leading_indent, classic_prompt, ipython_prompt):
        lines = [*lines[:first], *transform(lines[first:])]
    return [*lines[:first], *cell_magic(rewrite(lines[first:]))]


def _line_magic(name: str, options: str) -> str:
    return f"get_ipython().run_line_magic({name!r}, {options!r})\n"
