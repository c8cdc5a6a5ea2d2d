"""Labels of recorded lines in a notebook: the number of the cell instead of its file name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ipygpumem.core.stack_frames import frame_label

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["cell_labeller"]

_CELL_FILE = re.compile(r"<ipython-input-(\d+)-")


def cell_labeller(shell: Any) -> Callable[[str, int, str], str]:
    """A function that labels (file name, line, function): ``In [3]:5 make()``."""

    def label(file: str, line: int, function: str) -> str:
        number = getattr(shell.compile, "_filename_map", {}).get(file)
        match = _CELL_FILE.match(file)
        if number is None and match is not None:
            number = int(match[1])
        if number is None:
            return frame_label(file, line, function)
        return f"In [{number}]:{line}{'' if function == '<module>' else f' {function}()'}"

    return label
