"""The command line: ``ipygpumem summary FILE``, ``peak``, ``diff``, ``html``, ``view``, ``history`` and more.

It needs numpy and nothing else: a laptop without torch and GPU opens a colleague's file. Exit status: 0, 1 for a file
that cannot be read, 2 for words that mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from typing import TYPE_CHECKING

from ipygpumem.cli import events, pages, snapshots
from ipygpumem.commands.arguments import Commands
from ipygpumem.commands.output import BAD_FILE, BAD_WORDS, INTERRUPTED, complain
from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.features.environment import shell_command as machine
from ipygpumem.features.history import shell_command as history
from ipygpumem.features.ranks import shell_command as ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "parser"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        arguments: The words; without them those of the command line.

    Returns:
        The exit status.
    """
    words = parser().parse_args(arguments)
    if sys.stdout is None:
        complain(OptionError("the standard output is closed"))
        return BAD_FILE
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a name in a file may hold half a character
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status: int = words.run(words)
        sys.stdout.flush()
    except OptionError as problem:
        complain(problem)
        return BAD_WORDS
    except BrokenPipeError:
        _drop_output()  # the reader, such as head, has seen enough
        return 0
    except OSError as problem:
        complain(OptionError(f"{problem.filename or 'the output'}: {problem.strerror or first_line(problem)}"))
        _drop_output()
        return BAD_FILE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _drop_output() -> None:
    """What Python would still flush goes nowhere."""
    with contextlib.suppress(OSError):  # no file, as in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser() -> argparse.ArgumentParser:
    """All commands with their words."""
    purpose = "Understand PyTorch's memory: snapshots, and the cells of a session."
    all_words = argparse.ArgumentParser(prog="ipygpumem", description=purpose)
    commands = Commands(all_words)
    for group in (snapshots, events, pages, history, ranks, machine):
        group.add(commands)
    return all_words
