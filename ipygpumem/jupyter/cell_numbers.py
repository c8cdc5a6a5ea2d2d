"""In numbers of the notebook's cells, by the file name in their frames."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

from ipygpumem.measurement.notebook_sources import notebook_sources

if TYPE_CHECKING:
    from types import FrameType

__all__ = ["CellNumbers", "calling_cell"]

_TERMINAL = re.compile(r"<ipython-input-(\d+)-")


class CellNumbers:
    """The numbers of one shell's cells. IPython from 8 on keeps them; in a kernel of IPython 7 nobody does but us."""

    def __init__(self, shell: Any) -> None:
        self._compile = shell.compile
        self.needed = not hasattr(shell.compile, "_filename_map")
        self._own: dict[str, int] = {}

    def note(self, raw: str, number: int | None) -> None:
        """A cell has run."""
        if number is not None and not hasattr(self._compile, "_filename_map"):
            self._own[self._compile.get_code_name(raw, raw, number)] = number

    def known(self) -> dict[str, int]:
        """Every number that is known."""
        found = {name: int(match[1]) for name in notebook_sources() if (match := _TERMINAL.match(name))}
        return {**found, **self._own, **getattr(self._compile, "_filename_map", {})}


def calling_cell() -> str | None:
    """The file name of the cell whose code calls this, through whatever magic; None outside of cells."""
    cells = notebook_sources()
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 (the only way to the caller)
    while frame is not None and frame.f_code.co_filename not in cells:
        frame = frame.f_back
    return None if frame is None else frame.f_code.co_filename
