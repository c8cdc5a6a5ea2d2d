"""The viewer in a browser: a page in a temporary folder, without a server."""

from __future__ import annotations

import os
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError
from ipygpumem.viewer.write import write_page

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.snapshot.snapshot import Snapshot

__all__ = ["open_page"]

_TEXT_BROWSERS = {"www-browser", "links", "elinks", "lynx", "w3m"}
_MAX_STEM = 60


def open_page(
    snapshots: Sequence[Snapshot], *, source: bool = True, paths: bool = True, theme: str = "auto"
) -> tuple[Path, bool]:
    """Write the page of up to eight snapshots to a new temporary folder and open it.

    Returns:
        The path of the page, and whether a browser was opened.

    Raises:
        OptionError: The page cannot be written.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="ipygpumem-"))
    except OSError as error:
        raise OptionError(f"cannot create a temporary folder for the page: {error.strerror or error}") from error
    name = snapshots[0].name.split(".")[0]
    stem = "".join(character if character.isalnum() or character in "-_" else "-" for character in name)[:_MAX_STEM]
    path = write_page(folder / f"{stem or 'snapshot'}.html", snapshots, source=source, paths=paths, theme=theme)
    return path, _open(path.as_uri())


def _open(address: str) -> bool:
    """Open an address in a graphical browser, and return False if there is none."""
    posix = sys.platform not in {"win32", "darwin", "cygwin"}
    if posix and not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        return False  # webbrowser would start a text browser in this terminal
    try:
        browser = webbrowser.get()
        if getattr(browser, "name", "").rpartition("/")[2] in _TEXT_BROWSERS:
            return False
        return browser.open(address)
    except (webbrowser.Error, OSError):
        return False
