"""Paths as they are written on a magic's line."""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.utils.text import EvalFormatter

from ipygpumem.recording import check_path

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["expanded"]


def expanded(shell: Any, text: str) -> Path:
    """A path to write to, proved: ``{name}`` is a variable of the notebook; ``{host}`` and ``{time}`` are ours.

    Raises:
        UsageError: A name that does not expand.
        RecordingError: Nothing can be written there.
    """
    names = {**shell.user_ns, "host": platform.node(), "time": time.strftime("%Y%m%d-%H%M%S")}
    if "{" in text:
        try:
            text = EvalFormatter().vformat(text, [], names)
        except Exception as error:
            raise UsageError(f"gpumem: {text!r} does not expand ({type(error).__name__}: {error})") from error
    return check_path(text)
