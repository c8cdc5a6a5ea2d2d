"""A line on the standard error while something takes more than a second, if somebody sits in front of it."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["progress"]

_PATIENCE = 1.0
_CLEAR = "\r\x1b[K"


@contextlib.contextmanager
def progress(what: str) -> Iterator[None]:
    """Say what is being done and since when, on one line that vanishes at the end."""
    if sys.stderr is None or not sys.stderr.isatty():  # None: closed
        yield
        return
    done = threading.Event()
    teller = threading.Thread(target=_tell, args=(what, done), daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()


def _tell(what: str, done: threading.Event) -> None:
    began = time.monotonic()
    told = False
    while not done.wait(_PATIENCE):
        told = True
        _show(f"{_CLEAR}{what} ... {time.monotonic() - began:.0f} s")
    if told:
        _show(_CLEAR)


def _show(text: str) -> None:
    sys.stderr.write(text)
    sys.stderr.flush()
