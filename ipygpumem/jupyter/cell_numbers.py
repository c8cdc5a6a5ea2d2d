"""In numbers and file names of the notebook's cells."""

from __future__ import annotations

import linecache
import re
import sys
from typing import TYPE_CHECKING, Any

from ipygpumem.core.interpreter import frame_label
from ipygpumem.measurement.notebook_sources import notebook_sources

if TYPE_CHECKING:
    from collections.abc import Container
    from types import FrameType

__all__ = ["CellNumbers", "calling_cell"]

_TERMINAL = re.compile(r"<ipython-input-(\d+)-")


class CellNumbers:
    """The In numbers of one shell's cells by file name. From version 8 on IPython keeps them itself."""

    def __init__(self, shell: Any) -> None:
        self._compile = shell.compile
        self._kept_by_ipython = hasattr(shell.compile, "_filename_map")
        self._numbers: dict[str, int] = getattr(shell.compile, "_filename_map", {})

    def note(self, raw: str, number: int | None) -> None:
        """Record the number of a cell that has run."""
        if number is not None and not self._kept_by_ipython:
            self._numbers[self._compile.get_code_name(raw, raw, number)] = number

    def known(self) -> dict[str, int]:
        """All known In numbers by file name."""
        numbers = {name: int(match[1]) for name in notebook_sources() if (match := _TERMINAL.match(name))}
        return {**numbers, **self._numbers}

    def filename(self, raw: str, number: int | None, statements: Container[str]) -> str | None:
        """File name of a cell in tracebacks; ``statements`` are those of statements, which have the same number."""
        # ipykernel derives it from the text; a terminal from the number and a hash of the transformed text
        name = self._compile.get_code_name(raw, raw, number)
        if name in linecache.cache:
            return str(name)
        prefix = f"<ipython-input-{number}-"
        names = (name for name in reversed(linecache.cache) if name.startswith(prefix))
        return next((name for name in names if name not in statements), None)

    def label(self, file: str, line: int, function: str) -> str:
        """A recorded line by its cell, ``In [3]:5 make()``, or by its file."""
        match = _TERMINAL.match(file)
        number = self._numbers.get(file, None if match is None else int(match[1]))
        if number is None:
            return frame_label(file, line, function)
        return f"In [{number}]:{line}{'' if function == '<module>' else f' {function}()'}"


def calling_cell() -> str | None:
    """File name of the cell whose code calls this function; None outside of cells."""
    cells = notebook_sources()
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 (the only way to the caller)
    while frame is not None and frame.f_code.co_filename not in cells:
        frame = frame.f_back
    return None if frame is None else frame.f_code.co_filename
