"""What the commands print, and their exit status."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from ipygpumem.cli.progress import progress
from ipygpumem.core.errors import OptionError, SnapshotError
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.reader.load import one_line

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Sequence

    from ipygpumem.snapshot.model.timeline import Timeline

__all__ = ["BAD_FILE", "BAD_WORDS", "INTERRUPTED", "complain", "each", "print_json", "say", "timelines"]

BAD_FILE, BAD_WORDS, INTERRUPTED = 1, 2, 130


def say(*said: str) -> None:
    """Lines to the standard output."""
    sys.stdout.writelines(f"{line}\n" for line in said)


def complain(problem: Exception) -> None:
    """One line to the standard error."""
    if sys.stderr is not None:
        sys.stderr.write(f"ipygpumem: {problem}\n")


def print_json(value: Any) -> None:
    """A value on one line."""
    say(json.dumps(value))


def each(words: argparse.Namespace, show: Callable[[Snapshot, str], None]) -> int:
    """Show each file; tell of one that cannot be read, or that has not what is asked for, and go on.

    Raises:
        OptionError: The only file has not what is asked for.
    """
    status = 0
    for name in words.files:
        try:
            with progress(f"reading {name}"):
                snapshot = Snapshot.load(name)
        except SnapshotError as problem:
            complain(problem)
            status = BAD_FILE
            continue
        try:
            show(snapshot, name)
        except OptionError as problem:
            if len(words.files) == 1:
                raise
            complain(OptionError(f"{one_line(name)}: {problem}"))
            status = max(status, BAD_WORDS)
    return status


def timelines(snapshot: Snapshot, device: int | None) -> Sequence[Timeline]:
    """The devices to tell of: one, or all that were used."""
    if device is not None:
        return [snapshot.timeline(device)]
    used = [one for one in snapshot.timelines if len(one.trace) or one.end_reserved]
    return used or snapshot.timelines
