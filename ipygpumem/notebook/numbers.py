"""In numbers of the notebook's cells, by the file name in their frames."""

from __future__ import annotations

import re
from typing import Any

from ipygpumem.session.block import notebook_sources

__all__ = ["CellNumbers"]

_TERMINAL = re.compile(r"<ipython-input-(\d+)-")


class CellNumbers:
    """The numbers of one shell's cells. IPython from 8 on keeps them; in a kernel of IPython 7 nobody does but us."""

    def __init__(self, shell: Any) -> None:
        self._compile = shell.compile
        self._own: dict[str, int] = {}

    def note(self, raw: str, number: int | None) -> None:
        """A cell has run."""
        if number is not None and not hasattr(self._compile, "_filename_map"):
            self._own[self._compile.get_code_name(raw, raw, number)] = number

    def known(self) -> dict[str, int]:
        """Every number that is known."""
        found = {name: int(match[1]) for name in notebook_sources() if (match := _TERMINAL.match(name))}
        return {**found, **self._own, **getattr(self._compile, "_filename_map", {})}
