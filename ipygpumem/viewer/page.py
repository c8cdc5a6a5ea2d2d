"""A snapshot as one HTML file that opens from a disk, without a network and without Python.

The file holds the viewer's script and the encoded data as base64. Its Content-Security-Policy names the script by
its hash (``blob:`` is for the part of it that runs in a worker) and forbids every connection.
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

__all__ = ["MAX_SNAPSHOTS", "Source", "check_sources", "document", "in_words", "page", "script"]

MAX_SNAPSHOTS = 8
"""Snapshots side by side: as many as a node has GPUs."""
_NAMED = 2
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
<main id="ipygpumem" data-state="{state}"></main>
<noscript>This page draws {what} with JavaScript, which is switched off here. It loads nothing from any
network.</noscript>
{data}
<script>{script}</script>
</body>
</html>
"""


@dataclass(frozen=True, slots=True)
class Source:
    """Data for a page.

    Attributes:
        name: What they are called in the page.
        data: What `ipygpumem.snapshot.export.encode.encode` makes of a snapshot, or what another bundle reads.
    """

    name: str
    data: bytes


@cache
def script(name: str) -> str:
    """The text of a built bundle: ``"page.js"``, ``"widget.js"`` or another."""
    return files(__package__).joinpath("static", name).read_text(encoding="utf-8")


def page(sources: Sequence[Source], *, title: str | None = None, theme: str = "auto", state: str = "") -> str:
    """The whole page.

    Args:
        sources: One snapshot, or up to eight beside each other.
        title: The page's title; without one the names of the snapshots.
        theme: ``"auto"`` (as the reader's system), ``"light"`` or ``"dark"``.
        state: The view to begin with, as the page itself writes it behind the ``#`` of its address.

    Raises:
        OptionError: No snapshot, more than eight, or another theme.
    """
    check_sources(len(sources))
    return document(
        "page.js",
        "a memory snapshot",
        sources,
        title=title or in_words([source.name for source in sources]),
        theme=theme,
        state=state,
    )


def check_sources(count: int) -> None:
    """Whether so many can be seen at once.

    Raises:
        OptionError: None, or more than eight.
    """
    if not 1 <= count <= MAX_SNAPSHOTS:
        raise OptionError(f"the viewer shows one snapshot, or up to {MAX_SNAPSHOTS} side by side: {count} were given")


def in_words(names: Sequence[str]) -> str:
    """What is shown, in one phrase: ``a and b``, ``a, b and 6 more``."""
    if len(names) <= _NAMED:
        return " and ".join(names)
    return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"


def document(bundle: str, what: str, sources: Sequence[Source], *, title: str, theme: str, state: str = "") -> str:
    """A page of one bundle and its data.

    Args:
        bundle: The script, as `script` has it.
        what: What it draws, in words.
        sources: Its data.
        title: The page's title.
        theme: ``"auto"``, ``"light"`` or ``"dark"``.
        state: The view to begin with.

    Raises:
        OptionError: Another theme.
    """
    if theme not in {"auto", "light", "dark"}:
        raise OptionError(f"the theme {theme!r} is none of auto, light, dark")
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
        title=_escaped(title),
        what=what,
        state=_escaped(state),
        data="\n".join(map(_holder, sources)),
        script=text,
    )


def _holder(source: Source) -> str:
    data = base64.b64encode(source.data).decode()
    name = _escaped(source.name)
    return f'<script type="application/octet-stream" class="ipygpumem-data" data-name="{name}">{data}</script>'


def _escaped(text: str) -> str:
    """Text for an attribute or an element; halves of characters, which no file can hold, become question marks."""
    return html.escape(text.encode("utf-8", "replace").decode())
