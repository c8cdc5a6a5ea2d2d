"""Where a display will be seen: the one file of this room that asks IPython."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable

    Publish = Callable[[dict[str, Any], dict[str, Any]], None]

__all__ = ["DisplayTarget", "current_target", "shell_target"]


@dataclass(frozen=True, slots=True)
class DisplayTarget:
    """What stands at the other end.

    Attributes:
        kind: ``live``: a front end that can show widgets. ``batch``: a notebook that is run with nobody in front of it
            (nbclient, papermill, ``jupyter execute``). ``text``: a terminal. ``none``: no IPython.
        publish: Shows a mime bundle with its metadata.
        cell: The cell that is running, as the front end calls it; None where it does not say.
        request: The run of that cell.
        updates: Whether a display can surely be changed after it was shown. A console that knows no updates shows its
            first state for ever: so only who names his cells, as notebooks do, or Colab.
    """

    kind: Literal["live", "batch", "text", "none"]
    publish: Publish
    cell: str | None = None
    request: str | None = None
    updates: bool = False


def current_target() -> DisplayTarget:
    """The place of what is displayed now."""
    if sys.modules.get("IPython") is None:
        return DisplayTarget("none", _print)
    from IPython import get_ipython

    shell = get_ipython()
    return DisplayTarget("none", _print) if shell is None else shell_target(shell)


def shell_target(shell: Any) -> DisplayTarget:
    """The place of what a shell displays now."""

    def publish(data: dict[str, Any], metadata: dict[str, Any]) -> None:
        shell.display_pub.publish(data=data, metadata=metadata)

    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return DisplayTarget("text", publish)
    parent = shell.get_parent() if hasattr(shell, "get_parent") else {}
    # Who runs a notebook in the background says that it cannot be asked for input; every front end can. Voila can not,
    # and shows widgets all the same.
    watched = parent.get("content", {}).get("allow_stdin", True) or "voila" in os.environ.get("SERVER_SOFTWARE", "")
    cell = parent.get("metadata", {}).get("cellId")
    return DisplayTarget(
        "live" if watched else "batch",
        publish,
        cell,
        parent.get("header", {}).get("msg_id"),
        updates=bool(watched and (cell or type(shell).__module__.startswith("google.colab"))),
    )


def _print(data: dict[str, Any], metadata: dict[str, Any]) -> None:
    del metadata
    print(data["text/plain"])  # noqa: T201 (what a display is without IPython)
