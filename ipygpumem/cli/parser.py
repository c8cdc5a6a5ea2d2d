"""Shell command ``ipygpumem`` with its subcommands, such as ``summary``, ``peak``, ``diff``, ``view`` and ``history``.

Commands for snapshots require only numpy, so they also run on machines without PyTorch or a GPU. The exit status is 0
on success, 1 if a file cannot be read, and 2 if the arguments are invalid.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from ipygpumem.cli import pages, snapshots
from ipygpumem.core.errors import OptionError, ReportError, SnapshotError, first_line
from ipygpumem.core.text import printable
from ipygpumem.features.commands import registry
from ipygpumem.features.commands.command import Command, add_shell_command
from ipygpumem.features.commands.output import BAD_ARGUMENTS, BAD_FILE, INTERRUPTED, print_error, print_lines


def _demo(arguments: argparse.Namespace) -> int:
    from ipygpumem.snapshot import sample

    file = str(sample())
    for line in (
        ["summary", file],
        ["peak", file, "--by", "function", "--top", "5"],
        ["fragmentation", file, "--need", "64MiB"],
    ):
        if not arguments.json:
            print_lines(f"$ ipygpumem {' '.join(line)}")
        parsed = parser().parse_args([*line, "--json"] if arguments.json else line)
        status: int = parsed.run(parsed)
        if status:
            return status
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        super().error(printable(message))


COMMANDS = (
    *snapshots.COMMANDS,
    *pages.COMMANDS,
    *(command for command in registry.COMMANDS if command.shell is not None),
    Command("demo", "run example commands on a small sample snapshot", shell=_demo),
)
"""Shell commands in the order in which the help lists them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status. By default, the arguments are those of the command line."""
    parsed = parser().parse_args(arguments)
    if sys.stdout is None:
        print_error(OptionError("the output cannot be written because stdout is closed"))
        return BAD_FILE
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # names in files can contain surrogates
    try:
        status: int = parsed.run(parsed)
        sys.stdout.flush()
    except (OptionError, ReportError, SnapshotError, MemoryError) as error:
        print_error(ReportError("not enough memory to run the command") if isinstance(error, MemoryError) else error)
        return BAD_ARGUMENTS if isinstance(error, OptionError) else BAD_FILE
    except BrokenPipeError:
        _discard_output()  # the reader, such as head, has closed the pipe
        return 0
    except OSError as error:
        print_error(OptionError(f"{error.filename or 'the output'}: {error.strerror or first_line(error)}"))
        _discard_output()
        return BAD_FILE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _discard_output() -> None:
    """Redirect stdout to the null device, so that Python discards the buffered output at exit."""
    with contextlib.suppress(OSError):  # the output is not a file, as in tests
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser() -> argparse.ArgumentParser:
    """Return the argument parser with all subcommands."""
    result = _Parser(
        prog="ipygpumem", description="Analyze PyTorch memory snapshots and the memory reports of notebooks and ranks."
    )
    subparsers = result.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        add_shell_command(subparsers, command)
    return result
