"""A page in the person's browser: a file in a temporary folder, no server."""

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
_PLAIN = 60


def open_page(
    snapshots: Sequence[Snapshot], *, source: bool = True, paths: bool = True, theme: str = "auto"
) -> tuple[Path, bool]:
    """Write the page of up to eight snapshots into a new temporary folder and open it.

    Returns:
        The page, and whether a browser took it.

    Raises:
        OptionError: There is no room for it.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="ipygpumem-"))
    except OSError as error:
        raise OptionError(f"the page was not written: {error.strerror or error}") from error
    stem = "".join(sign if sign.isalnum() or sign in "-_" else "-" for sign in snapshots[0].name.split(".")[0])
    path = write_page(
        folder / f"{stem[:_PLAIN] or 'snapshot'}.html", snapshots, source=source, paths=paths, theme=theme
    )
    return path, _open(path.as_uri())


def _open(address: str) -> bool:
    """Hand an address to a browser that draws; False where there is none."""
    posix = sys.platform not in {"win32", "darwin", "cygwin"}
    if posix and not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        return False  # Python would take a browser for text, in this very terminal
    try:
        browser = webbrowser.get()
        if getattr(browser, "name", "").rpartition("/")[2] in _TEXT_BROWSERS:
            return False
        return browser.open(address)
    except (webbrowser.Error, OSError):
        return False
