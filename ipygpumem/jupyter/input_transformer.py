"""The input transformer for ``%%gpumem``: its first line becomes a call, the body stays as it would without it.

A cell magic that runs its body itself changes what the cell does: a failing cell counts as good, ``await`` breaks, the
last value and the line numbers of tracebacks are lost. So the magic never sees the body. Pure text to text.

IPython has stripped prompts and a common indent by the cell's first line; below ours the body's own first line counts.
"""

from __future__ import annotations

import re

from IPython.core.inputtransformer2 import cell_magic, classic_prompt, ipython_prompt, leading_indent

__all__ = ["BEGIN", "NAME", "rewrite"]

NAME = "gpumem"
BEGIN = "_gpumem_begin"

_FIRST = re.compile(rf"%%{NAME}(?:\s+(?P<words>.*))?", re.DOTALL)
_HELP = {"-h", "--help"}


def rewrite(lines: list[str]) -> list[str]:
    """A cell's lines, each with its line end; cells without the magic on their first line come back untouched."""
    match = _FIRST.fullmatch(lines[0].rstrip()) if lines else None
    if match is None:
        return lines
    words = match["words"] or ""
    if _HELP & set(words.split()):
        return [_line_magic(NAME, "--help")]
    if "--engines" in words.split():  # the body runs elsewhere: IPython's own way of a cell magic will do
        return lines
    return [_line_magic(BEGIN, words), *_body(lines[1:])]


# check_complete of the terminal's prompt must see the cell magic, or it would run the first line alone
rewrite.has_side_effects = True  # type: ignore[attr-defined]


def _body(lines: list[str]) -> list[str]:
    """The body; a cell magic at its head becomes the call that IPython would have made of it on the first line."""
    head = next((i for i, line in enumerate(lines) if line.strip()), None)
    if head is None:
        return lines
    for clean in (leading_indent, classic_prompt, ipython_prompt):
        lines = [*lines[:head], *clean(lines[head:])]
    return [*lines[:head], *cell_magic(rewrite(lines[head:]))]


def _line_magic(name: str, words: str) -> str:
    return f"get_ipython().run_line_magic({name!r}, {words!r})\n"
