"""What shell commands print, and their exit status."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import ReportError

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = [
    "BAD_ARGUMENTS",
    "BAD_FILE",
    "INTERRUPTED",
    "print_error",
    "print_json",
    "print_lines",
    "print_skipped",
]

BAD_FILE, BAD_ARGUMENTS, INTERRUPTED = 1, 2, 130


def print_lines(*lines: str) -> None:
    """Print lines to the standard output."""
    sys.stdout.writelines(f"{line}\n" for line in lines)


def print_error(error: Exception) -> None:
    """Print one line to the standard error."""
    if sys.stderr is not None:
        sys.stderr.write(f"ipygpumem: {error}\n")


def print_skipped(faults: Iterable[str]) -> None:
    """Print what was skipped in a file to the standard error."""
    for fault in faults:
        print_error(ReportError(f"skipped: {fault}"))


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    print_lines(json.dumps(value))
