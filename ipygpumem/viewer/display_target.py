"""Detection of the display target: a notebook with or without a front end, a terminal, or Python without IPython."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import field
from typing import Any, Literal

from ipygpumem.core.data_classes import dataclass


@dataclass(frozen=True, slots=True)
class DisplayTarget:
    """Properties of the program that shows the output of this process.

    Attributes:
        kind: ``live`` for a front end that shows widgets, ``batch`` for a notebook without a front end (nbclient,
            papermill, ``jupyter execute``), ``text`` for a terminal, and ``none`` for Python without IPython.
        publish: Function that displays a MIME bundle with its metadata.
        cell: ID of the running cell; None if the front end does not send it.
        request: Message ID of the cell's execution request.
        updates: Whether the front end is known to support display updates. Consoles may ignore them, so the
            value is True only in Colab or with a cell ID, which notebooks send.
        views: For each cell ID, the message ID of the cell's last execution request and the views that it displayed.
    """

    kind: Literal["live", "batch", "text", "none"]
    publish: Callable[[dict[str, Any], dict[str, Any]], None]
    cell: str | None = None
    request: str | None = None
    updates: bool = False
    views: dict[str, Any] = field(default_factory=dict)


def current_target() -> DisplayTarget:
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    if shell is None:
        return DisplayTarget("none", lambda data, _: print(data["text/plain"]))  # noqa: T201 (the display without IPython)
    return shell_target(shell)


def shell_target(shell: Any) -> DisplayTarget:
    def publish(data: dict[str, Any], metadata: dict[str, Any]) -> None:
        shell.display_pub.publish(data=data, metadata=metadata)

    if getattr(shell, "kernel", None) is None:
        return DisplayTarget("text", publish)
    parent = _parent(shell)
    cell, request = parent.get("metadata", {}).get("cellId"), parent.get("header", {}).get("msg_id")
    views = vars(shell).setdefault("_ipygpumem_views", {})
    kind: Literal["live", "batch"] = "live" if _is_live(parent) else "batch"
    return DisplayTarget(kind, publish, cell, request, supports_updates(shell), views)


def supports_updates(shell: Any) -> bool:
    """Return whether the front end of a kernel's shell is known to support display updates (see `DisplayTarget`)."""
    parent = _parent(shell)
    sends_updates = parent.get("metadata", {}).get("cellId") or type(shell).__module__.startswith("google.colab")
    return bool(sends_updates) and _is_live(parent)


def _parent(shell: Any) -> dict[str, Any]:
    parent: dict[str, Any] = shell.get_parent() if hasattr(shell, "get_parent") else {}
    return parent


def _is_live(parent: dict[str, Any]) -> bool:
    # interactive front ends allow input, programs that execute notebooks do not; only Voila shows widgets without input
    allows_input = parent.get("content", {}).get("allow_stdin", True)
    return bool(allows_input) or "voila" in os.environ.get("SERVER_SOFTWARE", "")
