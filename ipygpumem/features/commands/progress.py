"""A line on the standard error while an operation takes more than a second."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["progress"]

_DELAY = 1.0
_CLEAR_LINE = "\r\x1b[K"


@contextlib.contextmanager
def progress(operation: str) -> Iterator[None]:
    """Show the operation and its duration in a terminal, on one line that is removed at the end."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield
        return
    finished = threading.Event()
    thread = threading.Thread(target=_show_progress, args=(operation, finished), daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def _show_progress(operation: str, finished: threading.Event) -> None:
    began = time.monotonic()
    shown = False
    while not finished.wait(_DELAY):
        shown = True
        _write(f"{_CLEAR_LINE}{operation} ... {time.monotonic() - began:.0f} s")
    if shown:
        _write(_CLEAR_LINE)


def _write(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
