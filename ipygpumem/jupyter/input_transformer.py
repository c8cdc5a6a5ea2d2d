"""The input transformer for ``%%gpumem``: its first line becomes a call, and the body stays as it is.

A cell magic that runs its body itself changes the cell: a failing cell counts as successful, ``await`` does not work,
the last value and the line numbers of tracebacks are lost. So the magic never gets the body.

IPython has already removed prompts and a common indentation according to the cell's first line; below ``%%gpumem`` the
first line of the body counts.
"""

from __future__ import annotations

import re

from IPython.core.inputtransformer2 import cell_magic, classic_prompt, ipython_prompt, leading_indent

NAME = "gpumem"
BEGIN = "_gpumem_begin"

_FIRST_LINE = re.compile(rf"%%{NAME}(?:\s+(?P<options>.*))?", re.DOTALL)
_HELP = {"-h", "--help"}


def rewrite(lines: list[str]) -> list[str]:
    """Rewrite the lines of a cell, each with its line end, if the first one is ``%%gpumem``."""
    match = _FIRST_LINE.fullmatch(lines[0].rstrip()) if lines else None
    if match is None:
        return lines
    options = match["options"] or ""
    if _HELP & set(options.split()):
        return [_line_magic(NAME, "--help")]
    if "--engines" in options.split():  # the body runs elsewhere: IPython's own way to call a cell magic is right
        return lines
    return [_line_magic(BEGIN, options), *_body(lines[1:])]


# the terminal's check_complete must see the cell magic, or it would run the first line alone
rewrite.has_side_effects = True  # type: ignore[attr-defined]


def _body(lines: list[str]) -> list[str]:
    """The body; a cell magic on its first line becomes the call that IPython makes of it in a cell."""
    first = next((index for index, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return lines
    for transform in (leading_indent, classic_prompt, ipython_prompt):
        lines = [*lines[:first], *transform(lines[first:])]
    return [*lines[:first], *cell_magic(rewrite(lines[first:]))]


def _line_magic(name: str, options: str) -> str:
    return f"get_ipython().run_line_magic({name!r}, {options!r})\n"
