"""Shell command ``ipygpumem`` with its subcommands, such as ``summary``, ``peak``, ``diff``, ``view`` and ``history``.

Commands for snapshots require only numpy, so they also run on machines without PyTorch or a GPU. The exit status is 0
on success, 1 if a file cannot be read or the output cannot be written, 2 if the arguments are invalid, and 130 after an
interrupt (Ctrl+C).
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from ipygpumem.cli import snapshots
from ipygpumem.core.errors import OptionError, ReportError, SnapshotError, first_line
from ipygpumem.core.files import check_path
from ipygpumem.core.text import error_line, printable
from ipygpumem.core.units import size
from ipygpumem.features.commands import registry
from ipygpumem.features.commands.command import Command, Option, OptionParser, add_shell_command
from ipygpumem.features.commands.output import (
    BAD_ARGUMENTS,
    BAD_FILE,
    INTERRUPTED,
    print_error,
    print_json,
    print_lines,
    progress,
)
from ipygpumem.features.recordings.command import VIEW
from ipygpumem.snapshot import Snapshot


def _load(arguments: argparse.Namespace) -> list[Snapshot]:
    from ipygpumem.viewer.write import check_snapshot_count

    check_snapshot_count(len(arguments.files))
    with progress("reading"):
        return [Snapshot.load(name) for name in arguments.files]


def _page_options(arguments: argparse.Namespace) -> dict[str, Any]:
    return {
        "source": not arguments.no_source,
        "paths": not arguments.strip_paths,
        "theme": arguments.theme,
        "settings": arguments.set,
    }


def _html(arguments: argparse.Namespace) -> int:
    from ipygpumem.viewer.write import write_page

    target = arguments.output
    if target is None:
        name = Path(arguments.files[0]).name.split(".")[0]
        target = f"{name or 'snapshot'}.html"
    check_path(target, "page", "snapshot.html")
    snapshots = _load(arguments)
    with progress("writing"):
        path = write_page(target, snapshots, **_page_options(arguments))
    nbytes = path.stat().st_size
    if arguments.json:
        print_json({"page": str(path), "bytes": nbytes})
    else:
        print_lines(f"{printable(str(target))}: {size(nbytes)}")
    return 0


def _view(arguments: argparse.Namespace) -> int:
    from ipygpumem.viewer.write import open_page

    snapshots = _load(arguments)
    with progress("writing"):
        path, opened = open_page(snapshots, **_page_options(arguments))
    if arguments.json:
        print_json({"page": str(path), "opened": opened})
    else:
        print_lines(*([] if opened else ["no browser was found: open this temporary file manually"]), str(path))
    return 0


_OPTIONS = (
    Option(("--no-source",), None, "omit the source code of recorded cells"),
    Option(("--strip-paths",), None, "omit directory names, the file name of FILE and strings in allocator settings"),
    Option(("--theme",), "THEME", "color theme: auto (default), light or dark", ("auto", "light", "dark"), "auto"),
)
PAGE_COMMANDS = (
    Command(
        "html",
        "write the viewer to a single HTML file that works offline",
        (
            *VIEW.options,
            *_OPTIONS,
            Option(
                ("-o", "--output"),
                "OUT",
                "output file (default: FILE with the extension .html, in the current directory)",
            ),
        ),
        shell=_html,
    ),
    replace(VIEW, options=(*VIEW.options, *_OPTIONS), shell=_view),
)


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


class _Parser(OptionParser):
    def error(self, message: str) -> NoReturn:
        super().error(error_line(message))


COMMANDS = (
    *snapshots.COMMANDS,
    *PAGE_COMMANDS,
    *(command for command in registry.COMMANDS if command.shell is not None),
    Command("demo", "run example commands on a small sample snapshot", shell=_demo),
)
"""Shell commands in the order in which the help lists them."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand and return its exit status. If ``arguments`` is None, those of the command line are used."""
    try:
        parsed = parser().parse_args(arguments)
        if sys.stdout is None:
            print_error(OptionError("the output cannot be written because stdout is closed"))
            return BAD_FILE
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="backslashreplace")  # names in files can contain surrogates
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
    result = _Parser(
        prog="ipygpumem",
        description="Analyze PyTorch memory snapshots and the memory reports of notebooks and distributed programs.",
    )
    subparsers = result.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        add_shell_command(subparsers, command)
    return result
