"""Writes pages and images to files, and opens pages in a browser."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.files import check_path, write_file
from ipygpumem.snapshot.export.encode import encode
from ipygpumem.snapshot.export.encoded_replay import encode_replays
from ipygpumem.snapshot.export.redaction import shareable_copies
from ipygpumem.viewer.page import PageData, check_snapshot_count, page
from ipygpumem.viewer.static_plot import static_image

if TYPE_CHECKING:
    from ipygpumem.snapshot.snapshot import Snapshot

_TEXT_BROWSERS = {"www-browser", "links", "elinks", "lynx", "w3m"}
_MAX_STEM = 60
_PREFIX = "ipygpumem-view-"
_LIFETIME = 600
"""Time in seconds after which a page that was opened is deleted. A browser may take a minute to start and read it."""
_MAX_AGE = 86_400
"""Age in seconds of the pages that `open_page` deletes because they were not opened or the process was killed."""
_DELETE = "import shutil, sys, time; time.sleep(float(sys.argv[2])); shutil.rmtree(sys.argv[1], ignore_errors=True)"


def write_page(
    path: str | os.PathLike[str],
    snapshots: Sequence[Snapshot],
    *,
    source: bool = True,
    paths: bool = True,
    theme: str = "auto",
    settings: str | None = None,
) -> Path:
    """Write the viewer's HTML page for one to eight snapshots. Options and errors are those of `Snapshot.to_html`."""
    target = check_path(path, "page", "snapshot.html")
    check_snapshot_count(len(snapshots))
    # shareable copies do not contain the allocator settings with which the recording was made
    replays = [None if settings is None else encode_replays(snapshot, settings) for snapshot in snapshots]
    exported = shareable_copies(snapshots, source=source, paths=paths)
    data = [PageData(item.name, encode(item, added)) for item, added in zip(exported, replays, strict=True)]
    text = page(data, theme=theme)
    return write_file(target, text.encode("utf-8"))


def write_image(path: str | os.PathLike[str], snapshot: Snapshot, device: int | None = None) -> Path:
    """Write a static image of a snapshot. Raises the same errors as `Snapshot.to_png`."""
    target = check_path(path, "image", "snapshot.png")
    return write_file(target, static_image(snapshot, device).png)


def open_page(snapshots: Sequence[Snapshot], **options: Any) -> tuple[Path, bool]:
    """Write a page to a temporary directory and open it in a browser. Return a tuple ``(path, opened)``.

    Another process deletes the page later, because the browser may read it after this process has ended. If the page
    was not opened, the first call on a later day deletes it.
    """
    _delete_old_pages()
    try:
        directory = Path(tempfile.mkdtemp(prefix=_PREFIX))
    except OSError as error:
        raise OptionError(f"cannot create a temporary directory for the page: {error.strerror or error}") from error
    stem = re.sub(r"[^\w-]", "-", snapshots[0].name.split(".")[0])[:_MAX_STEM] or "snapshot"
    try:
        path = write_page(directory / f"{stem}.html", snapshots, **options)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise
    opened = _open(path.as_uri())
    if opened:
        _delete_later(directory)
    return path, opened


def _delete_later(directory: Path) -> None:
    command, null = [sys.executable, "-ISc", _DELETE, str(directory), str(_LIFETIME)], subprocess.DEVNULL
    with contextlib.suppress(OSError):
        process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)  # noqa: S603
        process.returncode = 0  # otherwise a ResourceWarning says that it is still running


def _delete_old_pages() -> None:
    with contextlib.suppress(OSError):
        user = getattr(os, "getuid", int)()  # 0 on Windows, as st_uid
        for directory in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
            status = directory.lstat()
            if time.time() - status.st_mtime > _MAX_AGE and stat.S_ISDIR(status.st_mode) and status.st_uid == user:
                shutil.rmtree(directory, ignore_errors=True)  # would wait if another user had created a pipe


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
