"""Where displays appear: a notebook that shows widgets, one that runs unattended, a terminal, or plain Python."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    Publish = Callable[[dict[str, Any], dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class DisplayTarget:
    """Where a display appears.

    Attributes:
        kind: ``live``: a front end that shows widgets. ``batch``: a notebook that runs unattended (nbclient, papermill,
            ``jupyter execute``). ``text``: a terminal. ``none``: no IPython.
        publish: Displays a MIME bundle with its metadata.
        cell, request: The front end's id of the running cell, if it sends one, and message id of its execution.
        updates: Whether displays can certainly be updated. A console without updates would show the first state
            forever, so this requires a cell id, which notebooks send, or Colab.
    """

    kind: Literal["live", "batch", "text", "none"]
    publish: Publish
    cell: str | None = None
    request: str | None = None
    updates: bool = False


def current_target() -> DisplayTarget:
    """Return the target of displays in the current process."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    return DisplayTarget("none", _print) if shell is None else shell_target(shell)


def shell_target(shell: Any) -> DisplayTarget:
    """Return the target of a shell's displays during the current execution."""

    def publish(data: dict[str, Any], metadata: dict[str, Any]) -> None:
        shell.display_pub.publish(data=data, metadata=metadata)

    if getattr(shell, "kernel", None) is None:
        return DisplayTarget("text", publish)
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    # programs that run notebooks in the background do not allow input, and every interactive front end does; only
    # Voila shows widgets without input
    allows_input = parent.get("content", {}).get("allow_stdin", True)
    live = allows_input or "voila" in os.environ.get("SERVER_SOFTWARE", "")
    cell, request = parent.get("metadata", {}).get("cellId"), parent.get("header", {}).get("msg_id")
    updates = bool(live and (cell or type(shell).__module__.startswith("google.colab")))
    return DisplayTarget("live" if live else "batch", publish, cell, request, updates)


def _print(data: dict[str, Any], metadata: dict[str, Any]) -> None:
    del metadata
    print(data["text/plain"])  # noqa: T201 (the display of plain Python)
