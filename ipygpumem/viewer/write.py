"""Writes pages and images to files, and opens pages in a browser."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.files import check_path, write_file
from ipygpumem.snapshot.export.encode import encode
from ipygpumem.snapshot.export.redaction import align_start_times, shareable
from ipygpumem.viewer.page import PageData, check_snapshot_count, page
from ipygpumem.viewer.static_plot import static_image

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.snapshot.snapshot import Snapshot

_TEXT_BROWSERS = {"www-browser", "links", "elinks", "lynx", "w3m"}
_MAX_STEM = 60


def write_page(
    path: str | os.PathLike[str],
    snapshots: Sequence[Snapshot],
    *,
    source: bool = True,
    paths: bool = True,
    theme: str = "auto",
) -> Path:
    """Write the viewer's HTML page for one to eight snapshots. Options and errors are those of `Snapshot.to_html`."""
    target = check_path(path, "page", "snapshot.html")
    check_snapshot_count(len(snapshots))
    exported = [shareable(snapshot, source=source, paths=paths) for snapshot in align_start_times(snapshots)]
    text = page([PageData(snapshot.name, encode(snapshot)) for snapshot in exported], theme=theme)
    return write_file(target, text.encode("utf-8"))


def write_image(path: str | os.PathLike[str], snapshot: Snapshot, device: int | None = None) -> Path:
    """Write a static image of a snapshot. Raises the errors of `Snapshot.to_png`."""
    target = check_path(path, "image", "snapshot.png")
    return write_file(target, static_image(snapshot, device).png)


def open_page(snapshots: Sequence[Snapshot], **options: Any) -> tuple[Path, bool]:
    """Write a page to a temporary directory and open it in a browser. Return a tuple ``(path, opened)``."""
    try:
        directory = Path(tempfile.mkdtemp(prefix="ipygpumem-"))
    except OSError as error:
        raise OptionError(f"cannot create a temporary directory for the page: {error.strerror or error}") from error
    stem = re.sub(r"[^\w-]", "-", snapshots[0].name.split(".")[0])[:_MAX_STEM] or "snapshot"
    path = write_page(directory / f"{stem}.html", snapshots, **options)
    return path, _open(path.as_uri())


def _open(address: str) -> bool:
    """Open a URL in a graphical browser. Return False if no browser is available."""
    posix = sys.platform not in {"win32", "darwin", "cygwin"}
    if posix and not any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")):
        return False  # webbrowser would start a text browser in the terminal
    try:
        browser = webbrowser.get()
        if getattr(browser, "name", "").rpartition("/")[2] in _TEXT_BROWSERS:
            return False
        return browser.open(address)
    except (webbrowser.Error, OSError):
        return False
