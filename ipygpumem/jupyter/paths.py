"""Paths as they are written on a magic's line."""

from __future__ import annotations

import platform
import re
import time
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.utils.text import EvalFormatter

from ipygpumem.features.ranks.rank_info import rank_and_world
from ipygpumem.measurement.recording_file import check_path

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["expanded", "filled"]

_DOLLAR = re.compile(r"\$([A-Za-z_]\w*)")
"""As in IPython's own magics; what is no variable stays as it is."""


def expanded(shell: Any, text: str) -> Path:
    """A path to write to, proved: ``{name}`` and ``$name`` are variables of the notebook, ``{host}``, ``{time}`` ours.

    ``{rank}``, where no variable has that name, is this process's rank, or an engine's number.

    Raises:
        UsageError: A name that does not expand.
        RecordingError: Nothing can be written there.
    """
    return check_path(filled(shell, text))


def filled(shell: Any, text: str) -> str:
    """A path as it is written, with its names filled in as in `expanded`.

    Raises:
        UsageError: A name that does not expand.
    """
    text = _DOLLAR.sub(lambda match: f"{{{match[1]}}}" if match[1] in shell.user_ns else match[0], text)
    if "{" not in text:
        return text
    rank = rank_and_world()[0]
    known = {} if rank is None else {"rank": rank}
    names = {**known, **shell.user_ns, "host": platform.node(), "time": time.strftime("%Y%m%d-%H%M%S")}
    try:
        return str(EvalFormatter().vformat(text, [], names))
    except Exception as error:
        raise UsageError(f"gpumem: {text!r} does not expand ({type(error).__name__}: {error})") from error
