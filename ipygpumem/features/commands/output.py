"""Output and exit statuses of shell commands."""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from ipygpumem.core.errors import ReportError
from ipygpumem.core.serialization import plain
from ipygpumem.core.text import printable

BAD_FILE, BAD_ARGUMENTS, INTERRUPTED = 1, 2, 130
_PROGRESS_SECONDS = 1.0
_CLEAR_LINE = "\r\x1b[K"


def print_lines(*lines: str) -> None:
    sys.stdout.writelines(f"{printable(line)}\n" for text in lines for line in text.split("\n"))


def print_error(error: Exception) -> None:
    if sys.stderr is not None:
        sys.stderr.write(f"ipygpumem: {error}\n")


def print_skipped(faults: Iterable[str]) -> None:
    for fault in faults:
        print_error(ReportError(f"skipped: {fault}"))


def print_json(value: Any) -> None:
    sys.stdout.write(f"{json.dumps(value)}\n")


def print_json_list(values: dict[str, Any], name: str, items: Iterable[Any]) -> None:
    """Print a JSON object with the given values and a list, whose items are converted and written one by one."""
    sys.stdout.write(f"{json.dumps(values)[:-1]}, {json.dumps(name)}: [")
    for number, item in enumerate(items):
        sys.stdout.write(f"{', ' if number else ''}{json.dumps(plain(item))}")
    sys.stdout.write("]}\n")


@contextlib.contextmanager
def progress(operation: str) -> Iterator[None]:
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
    text = ""
    while not finished.wait(_PROGRESS_SECONDS):
        text = f"{_CLEAR_LINE}{printable(operation)} ... {time.monotonic() - began:.0f} s"
        print(text, end="", file=sys.stderr, flush=True)  # noqa: T201
    if text:
        print(_CLEAR_LINE, end="", file=sys.stderr, flush=True)  # noqa: T201
