"""What shell commands print, and their exit status."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from ipygpumem.commands.progress import progress
from ipygpumem.core.errors import OptionError, ReportError, SnapshotError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Sequence

    from ipygpumem.snapshot import Snapshot
    from ipygpumem.snapshot.model.timeline import Timeline

__all__ = [
    "BAD_ARGUMENTS",
    "BAD_FILE",
    "INTERRUPTED",
    "for_each_snapshot",
    "print_error",
    "print_json",
    "print_lines",
    "print_skipped",
    "timelines",
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


def for_each_snapshot(arguments: argparse.Namespace, show: Callable[[Snapshot, str], None]) -> int:
    """Show each file, and print an error for those that cannot be read or shown.

    Raises:
        OptionError: The only file does not contain what is requested.
    """
    from ipygpumem.snapshot import Snapshot
    from ipygpumem.snapshot.reader.load import one_line

    if not arguments.files:
        raise OptionError("name at least one snapshot FILE")
    status = 0
    for name in arguments.files:
        try:
            with progress(f"reading {name}"):
                snapshot = Snapshot.load(name)
        except SnapshotError as error:
            print_error(error)
            status = BAD_FILE
            continue
        try:
            show(snapshot, name)
        except OptionError as error:
            if len(arguments.files) == 1:
                raise
            print_error(OptionError(f"{one_line(name)}: {error}"))
            status = max(status, BAD_ARGUMENTS)
    return status


def timelines(snapshot: Snapshot, device: int | None) -> Sequence[Timeline]:
    """The timeline of one device, or those of all devices that were used."""
    if device is not None:
        return [snapshot.timeline(device)]
    used = [timeline for timeline in snapshot.timelines if len(timeline.trace) or timeline.end_reserved]
    return used or snapshot.timelines
