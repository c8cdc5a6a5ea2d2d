"""The first line of a piece of code, by which people know it again."""

from __future__ import annotations

from ipygpumem.core.from_dict import printable

__all__ = ["WIDTH", "first_code"]

WIDTH = 80
"""Characters; what is longer ends in an ellipsis."""
_MOST = 2_000
"""Characters that are looked at: a cell may be a page of data."""


def first_code(text: str) -> str:
    """The first line that does something: no comment, no cell magic; where there is none, the first line at all."""
    lines = [line.strip() for line in text[:_MOST].splitlines() if line.strip()]
    plain = (line for line in lines if not line.startswith(("#", "%%")))
    line = printable(next(plain, lines[0] if lines else "").replace("\t", " "))
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"
