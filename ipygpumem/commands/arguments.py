"""The commands' words: how each becomes a parser, and the arguments that several share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.units import parse_size
from ipygpumem.snapshot import KEYS

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["TOP", "Commands", "add_groups", "count", "size_word"]

TOP = 20
"""Groups that are shown where nobody says how many."""
_SNAPSHOT = "a snapshot: pickle or JSON, also as .gz or .xz"


class Commands:
    """The words of the command line."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._commands: Any = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(self, name: str, run: Callable[[argparse.Namespace], int], purpose: str) -> argparse.ArgumentParser:
        """A command; ``run`` gets its words and returns the exit status."""
        made: argparse.ArgumentParser = self._commands.add_parser(name, help=purpose, description=purpose)
        made.set_defaults(run=run)
        made.add_argument("--json", action="store_true", help="print JSON, one object per file and line")
        return made

    def over_files(self, name: str, run: Callable[[argparse.Namespace], int], purpose: str) -> argparse.ArgumentParser:
        """A command that takes any number of snapshots."""
        made = self.add(name, run, purpose)
        made.add_argument("files", nargs="+", metavar="FILE", help=_SNAPSHOT)
        made.add_argument("--device", type=int, metavar="N", help="this device only")
        return made

    def over_one(self, name: str, run: Callable[[argparse.Namespace], int], purpose: str) -> argparse.ArgumentParser:
        """A command that takes one snapshot, or several to see side by side."""
        made = self.add(name, run, purpose)
        made.add_argument("file", metavar="FILE", help=_SNAPSHOT)
        made.add_argument("others", metavar="OTHER", nargs="*", help="more, to compare with: up to eight in all")
        return made


def add_groups(made: argparse.ArgumentParser) -> None:
    """By what a command adds up, and how much of it is shown."""
    made.add_argument("--by", choices=sorted(KEYS), default="line", help="what to add up by (line)")
    made.add_argument("-n", "--top", type=count, metavar="N", help=f"how many groups ({TOP}; in JSON all)")


def count(word: str) -> int:
    """A number from 1 on.

    Raises:
        ArgumentTypeError: It is less.
        ValueError: It is none.
    """
    number = int(word)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def size_word(word: str) -> int:
    """A size in bytes.

    Raises:
        ArgumentTypeError: It is none, or nothing.
    """
    try:
        found = parse_size(word)
    except OptionError as problem:
        raise argparse.ArgumentTypeError(str(problem)) from None
    if found < 1:
        raise argparse.ArgumentTypeError("at least 1 byte")
    return found
