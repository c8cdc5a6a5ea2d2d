"""What the front end can show: one place that looks."""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["coloured_terminal", "is_terminal"]


def is_terminal(shell: Any) -> bool:
    """Whether this is IPython in a terminal, which shows text only."""
    return any(kind.__name__ == "TerminalInteractiveShell" for kind in type(shell).__mro__)


def coloured_terminal(shell: Any) -> bool:
    """Whether the text goes to a terminal whose user has not switched colours off."""
    if not is_terminal(shell) or str(getattr(shell, "colors", "")).lower() == "nocolor":
        return False
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(getattr(sys.stdout, "isatty", lambda: False)())
