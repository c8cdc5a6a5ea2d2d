"""The specification of a command and of its options."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from ipygpumem.commands.notebook import Notebook

__all__ = ["DEVICE", "HELP", "Command", "Interface", "Option", "result_options"]

Interface = Literal["magic", "shell"]


@dataclass(frozen=True, slots=True)
class Option:
    """An option or, if its name has no dash, an argument.

    Attributes:
        flags: ``("-n", "--top")``, or ``("file",)`` for an argument.
        metavar: Name of its value in the help; None for a switch.
        help: What it does.
        choices: The allowed values; empty for any.
        default: Value if it is omitted.
        many: It may be repeated; as an argument, any number may be given; in a shell at least one.
        path: Its value is a path, for completion.
        type: Converts the text of the value; raises `OptionError` if it is invalid.
        values: Number of values.
        only: The only interface that has it; None for both.
        usage: How it appears in the usage, if that is not its metavar.
    """

    flags: tuple[str, ...]
    metavar: str | None
    help: str
    choices: tuple[str, ...] = ()
    default: Any = None
    many: bool = False
    path: bool = False
    type: Callable[[str], Any] | None = None
    values: int = 1
    only: Interface | None = None
    usage: str = ""

    @property
    def is_argument(self) -> bool:
        """Whether it is identified by its position, not by a flag."""
        return not self.flags[0].startswith("-")


@dataclass(frozen=True, slots=True)
class Command:
    """A command of ``%gpumem``, of the shell command ``ipygpumem``, or of both.

    Attributes:
        name: Its name.
        help: What it does.
        options: Its options and arguments.
        magic: Runs it in a notebook; the value it returns is the value of the line. None if there is no such magic.
        shell: Runs it in a shell, and returns the exit status. None if there is no such shell command.
        subcommands: The commands one of which must follow, as in ``%gpumem record start``.
    """

    name: str
    help: str
    options: tuple[Option, ...] = ()
    magic: Callable[[Notebook, argparse.Namespace], Any] | None = None
    shell: Callable[[argparse.Namespace], int] | None = None
    subcommands: tuple[Command, ...] = ()

    def options_of(self, interface: Interface) -> tuple[Option, ...]:
        """The options that the command has in one interface."""
        return tuple(option for option in self.options if option.only in {None, interface})


HELP = Option(("-h", "--help"), None, "show this help", only="magic")
DEVICE = Option(("-d", "--device"), "DEVICE", "only this device (cuda:0, 0); may be repeated", many=True)


def result_options(noun: str) -> tuple[Option, ...]:
    """The options of a magic that shows a result, which is called ``noun`` in the help."""
    return (
        DEVICE,
        Option(("-v", "--var"), "NAME", f"store {noun} in this variable"),
        Option(("-q", "--quiet"), None, "show nothing"),
        Option(("-o",), None, f"return {noun}"),
        HELP,
    )
