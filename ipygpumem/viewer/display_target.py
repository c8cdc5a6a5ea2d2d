"""Detection of the display target: a notebook with or without a front end, a terminal, or Python without IPython."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class DisplayTarget:
    """Properties of the program that shows the output of this process.

    Attributes:
        kind: ``live`` for a front end that shows widgets, ``batch`` for a notebook without a front end (nbclient,
            papermill, ``jupyter execute``), ``text`` for a terminal, and ``none`` for Python without IPython.
        publish: Function that displays a MIME bundle with its metadata.
        cell: ID of the running cell; None if the front end does not send it.
        request: Message ID of the cell's execution request.
        updates: Whether the front end is known to support display updates. Consoles may ignore updates, so this
            requires Colab or a cell ID, which notebooks send.
        views: Views that the shell displays, by cell ID, with the message ID of the cell's last execution request.
    """

    kind: Literal["live", "batch", "text", "none"]
    publish: Callable[[dict[str, Any], dict[str, Any]], None]
    cell: str | None = None
    request: str | None = None
    updates: bool = False
    views: dict[str, Any] = field(default_factory=dict)


def current_target() -> DisplayTarget:
    """Return the display target of the current process."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if shell is None:
        return DisplayTarget("none", lambda data, _: print(data["text/plain"]))  # noqa: T201 (the display without IPython)
    return shell_target(shell)


def shell_target(shell: Any) -> DisplayTarget:
    """Return the display target of a shell for the current execution."""

    def publish(data: dict[str, Any], metadata: dict[str, Any]) -> None:
        shell.display_pub.publish(data=data, metadata=metadata)

    if getattr(shell, "kernel", None) is None:
        return DisplayTarget("text", publish)
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    # interactive front ends allow input, programs that execute notebooks do not; only Voila shows widgets without input
    allows_input = parent.get("content", {}).get("allow_stdin", True)
    live = allows_input or "voila" in os.environ.get("SERVER_SOFTWARE", "")
    cell, request = parent.get("metadata", {}).get("cellId"), parent.get("header", {}).get("msg_id")
    updates = bool(live and (cell or type(shell).__module__.startswith("google.colab")))
    views = vars(shell).setdefault("_ipygpumem_views", {})
    return DisplayTarget("live" if live else "batch", publish, cell, request, updates, views)
