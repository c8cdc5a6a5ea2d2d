"""The viewer's HTML page, a single file that requires neither a network connection nor Python.

The file contains the viewer's script and the base64-encoded data. Its Content-Security-Policy allows only this script,
identified by its hash, and ``blob:`` URLs for its worker. It blocks all connections.
"""

from __future__ import annotations

import base64
import hashlib
import html
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from ipygpumem.core.errors import OptionError

MAX_SNAPSHOTS = 8
"""Maximum number of snapshots side by side, which is the usual number of GPUs in a machine."""
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
    """Encoded data for a page, such as the result of `Snapshot.encode`, together with its display name."""

    name: str
    data: bytes


@cache
def script(name: str) -> str:
    """Return the source of a JavaScript bundle, such as ``"page.js"`` or ``"widget.js"``."""
    return files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def page(snapshots: Sequence[PageData], theme: str = "auto") -> str:
    """Return the HTML page of the viewer for one to eight snapshots. See `document` for the themes."""
    check_snapshot_count(len(snapshots))
    return document("page.js", "a memory snapshot", snapshots, theme)


def check_snapshot_count(count: int) -> None:
    """Raise `OptionError` if the viewer does not support this number of snapshots."""
    if not 1 <= count <= MAX_SNAPSHOTS:
        raise OptionError(f"the viewer shows 1 to {MAX_SNAPSHOTS} snapshots side by side, not {count}")


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
    if theme not in {"auto", "light", "dark"}:
        raise OptionError(f"unknown theme {theme!r}: choose 'auto', 'light' or 'dark'")
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
