"""The names that IPython itself keeps in a notebook's namespace."""

from __future__ import annotations

import re

__all__ = ["LATEST", "is_ipythons", "numbered"]

LATEST = ("_", "__", "___")
"""The last three outputs."""
_HIDDEN = frozenset(
    {"In", "Out", "_oh", "_ih", "_dh", "_i", "_ii", "_iii", "get_ipython", "exit", "quit", "_exit_code"}
)
_NUMBERED = re.compile(r"_([1-9][0-9]{0,8}|0)")
_INPUT = re.compile(r"_i[0-9]+")


def numbered(name: str) -> int | None:
    """The number of the output that a name is for: 3 of ``_3``."""
    match = _NUMBERED.fullmatch(name)
    return None if match is None else int(match[1])


def is_ipythons(name: str) -> bool:
    """Whether IPython puts something under this name."""
    return name in LATEST or name in _HIDDEN or numbered(name) is not None or _INPUT.fullmatch(name) is not None
