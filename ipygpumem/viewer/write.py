"""Write the viewer's HTML pages and images to files, and open pages in a browser.

The page is a single file that requires neither a network connection nor Python. It contains the viewer's script and the
base64-encoded data. Its Content-Security-Policy allows only this script, identified by its hash, and ``blob:`` URLs for
its worker. It blocks all connections.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import html
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
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError, check_choice
from ipygpumem.core.files import check_path, write_file
from ipygpumem.snapshot.export.encode import encode
from ipygpumem.snapshot.export.encoded_replay import encode_replays
from ipygpumem.snapshot.export.redaction import shareable_copies
from ipygpumem.viewer.static_plot import static_image

if TYPE_CHECKING:
    from ipygpumem.snapshot.snapshot import Snapshot

MAX_SNAPSHOTS = 8  # maximum number of snapshots side by side, which is the usual number of GPUs in a machine
_MAX_NAMES = 2
_PAGE = """<!DOCTYPE html>
<html lang="en" data-theme="{theme}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="{scheme}">
<meta name="referrer" content="no-referrer">
<title>{title}</title>
<link rel="icon" href="data:,">
<style>
html, body {{ margin: 0; height: 100%; }}
#ipygpumem {{ min-height: 100%; }}
noscript, .plain {{ display: block; margin: 3rem auto; max-width: 40rem; font: 16px/1.5 system-ui, sans-serif; }}
</style>
</head>
<body>
<main id="ipygpumem"></main>
<noscript>This page needs JavaScript to show {content}, but JavaScript is disabled in this browser. The page loads no
data from the network.</noscript>
{data}
<script>{script}</script>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class PageData:
    """Encoded data for a page, such as the result of `Snapshot.encode`, and its display name."""

    name: str
    data: bytes


@cache
def script(name: str) -> str:
    return files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def page(snapshots: Sequence[PageData], theme: str = "auto") -> str:
    check_snapshot_count(len(snapshots))
    return document("page.js", "a memory snapshot", snapshots, theme)


def check_snapshot_count(count: int) -> None:
    if not 1 <= count <= MAX_SNAPSHOTS:
        raise OptionError(f"expected 1 to {MAX_SNAPSHOTS} snapshots to show side by side, but got {count}")


def join_names(names: Sequence[str]) -> str:
    """Join names into a phrase such as ``a and b`` or ``a, b and 6 more``."""
    if len(names) <= _MAX_NAMES:
        return " and ".join(names)
    return f"{', '.join(names[:_MAX_NAMES])} and {len(names) - _MAX_NAMES} more"


def document(bundle: str, content: str, data: Sequence[PageData], theme: str) -> str:
    """Return an HTML page with a JavaScript bundle and its data.

    If JavaScript is disabled, a message states that JavaScript is required to show ``content``. The theme is ``"auto"``
    (the system's theme), ``"light"`` or ``"dark"``. Other values raise `OptionError`.
    """
    check_choice("theme", theme, ("auto", "light", "dark"))
    text = script(bundle)
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}' blob:; worker-src blob: data:; style-src 'unsafe-inline';"
        " img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    return _PAGE.format(
        theme=theme,
        policy=html.escape(policy),
        scheme="light dark" if theme == "auto" else theme,
        title=_escape(join_names([page_data.name for page_data in data])),
        content=content,
        data="\n".join(map(_data_element, data)),
        script=text,
    )


def _data_element(page_data: PageData) -> str:
    data = base64.b64encode(page_data.data).decode()
    name = _escape(page_data.name)
    return f'<script type="application/octet-stream" class="ipygpumem-data" data-name="{name}">{data}</script>'


def _escape(text: str) -> str:
    return html.escape(text.encode("utf-8", "replace").decode())  # unpaired surrogates become question marks


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
    target = check_path(path, "page", "snapshot.html")
    check_snapshot_count(len(snapshots))
    # copies without private data do not contain the allocator settings with which the recording was made
    replays = [None if settings is None else encode_replays(snapshot, settings) for snapshot in snapshots]
    exported = shareable_copies(snapshots, source=source, paths=paths)
    data = [
        PageData(item.name, encode(item, replays_by_device))
        for item, replays_by_device in zip(exported, replays, strict=True)
    ]
    text = page(data, theme=theme)
    return write_file(target, text.encode("utf-8"))


def write_image(path: str | os.PathLike[str], snapshot: Snapshot, device: int | None = None) -> Path:
    target = check_path(path, "image", "snapshot.png")
    return write_file(target, static_image(snapshot, device).png)


def open_page(snapshots: Sequence[Snapshot], **options: Any) -> tuple[Path, bool]:
    """Write a temporary page and open it in a browser. Another process deletes an opened page after ten minutes.

    Return the path of the page, and whether a browser was found. Raises `OptionError` for invalid options,
    and if the page cannot be written.
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
