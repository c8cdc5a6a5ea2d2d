"""Snapshots as one HTML file that opens without a network and without Python.

The file contains the viewer's script and the encoded data as base64. Its Content-Security-Policy allows only this
script, identified by its hash (and by ``blob:``, for the part that runs in a worker), and forbids every connection.
"""

from __future__ import annotations

import base64
import hashlib
import html
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

MAX_SNAPSHOTS = 8
"""Limit of snapshots side by side: the usual number of GPUs in a machine."""
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
<noscript>This page needs JavaScript to show {what}, but JavaScript is disabled in this browser. The page loads nothing
from any network.</noscript>
{data}
<script>{script}</script>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class PageData:
    """The name that a page shows, and a snapshot as `ipygpumem.snapshot.export.encode` encodes it, or other data."""

    name: str
    data: bytes


@cache
def script(name: str) -> str:
    """Return the text of a JavaScript bundle, such as ``"page.js"`` or ``"widget.js"``."""
    return files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def page(snapshots: Sequence[PageData], theme: str = "auto") -> str:
    """Return the HTML of the viewer of one to eight snapshots; see `document`."""
    check_snapshot_count(len(snapshots))
    return document("page.js", "a memory snapshot", snapshots, theme)


def check_snapshot_count(count: int) -> None:
    """Raise `OptionError` if the viewer cannot show so many snapshots."""
    if not 1 <= count <= MAX_SNAPSHOTS:
        raise OptionError(f"the viewer shows 1 to {MAX_SNAPSHOTS} snapshots side by side, got {count}")


def join_names(names: Sequence[str]) -> str:
    """Join names into one phrase: ``a and b``, ``a, b and 6 more``."""
    if len(names) <= _MAX_NAMES:
        return " and ".join(names)
    return f"{', '.join(names[:_MAX_NAMES])} and {len(names) - _MAX_NAMES} more"


def document(bundle: str, what: str, data: Sequence[PageData], theme: str) -> str:
    """Return the HTML of a page with a bundle and its data. Without JavaScript, it says ``what`` it would show.

    The theme is ``"auto"`` (follows the system), ``"light"`` or ``"dark"``; others raise `OptionError`.
    """
    if theme not in {"auto", "light", "dark"}:
        raise OptionError(f"unknown theme {theme!r}: choose auto, light or dark")
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
        what=what,
        data="\n".join(map(_data_element, data)),
        script=text,
    )


def _data_element(page_data: PageData) -> str:
    data = base64.b64encode(page_data.data).decode()
    name = _escape(page_data.name)
    return f'<script type="application/octet-stream" class="ipygpumem-data" data-name="{name}">{data}</script>'


def _escape(text: str) -> str:
    """Escape text for an element or an attribute; unpaired surrogates become question marks."""
    return html.escape(text.encode("utf-8", "replace").decode())
