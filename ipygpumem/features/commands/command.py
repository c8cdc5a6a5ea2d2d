"""The specification of a command, the parser of its arguments, and what is done with its result."""

from __future__ import annotations

import argparse
import keyword
import os
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from ipygpumem.core.errors import OptionError
from ipygpumem.core.interpreter import is_ipython_name
from ipygpumem.core.units import parse_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ipygpumem.jupyter.magics import GPUMem

Interface = Literal["magic", "shell"]


@dataclass(frozen=True, slots=True)
class Option:
    """An option or, if its name has no dash, an argument.

    Attributes:
        flags: ``("-n", "--top")``, or ``("file",)`` for an argument.
        metavar: Name of its value in the help; None for a switch.
        choices: The allowed values; empty for any.
        many: It may be repeated; as an argument, any number may be given; in a shell at least one.
        path: Its value is a path, for completion.
        type: Converts the text of the value; raises `OptionError` if it is invalid.
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
        magic: Runs it in a notebook; the value it returns is the value of the line. None if there is no such magic.
        shell: Runs it in a shell, and returns the exit status. None if there is no such shell command.
        subcommands: The commands one of which must follow, as in ``%gpumem record start``.
    """

    name: str
    help: str
    options: tuple[Option, ...] = ()
    magic: Callable[[GPUMem, argparse.Namespace], Any] | None = None
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


def show_result(notebook: GPUMem, arguments: argparse.Namespace, value: Any, show: Callable[[], None]) -> Any:
    """Store, show and return the result of a command according to its options. The cell then has no report."""
    notebook.cells.claim()
    if arguments.var is not None:
        notebook.shell.user_ns[arguments.var] = value
    if not arguments.quiet:
        show()
    return value if arguments.o else None


def result_command(name: str, description: str, noun: str, read: Callable[[list[str] | None], Any]) -> Command:
    """A magic that shows what ``read(devices)`` returns, an object that has a text form and an HTML form.

    The result is called ``noun`` in the help.
    """

    def run(notebook: GPUMem, arguments: argparse.Namespace) -> Any:
        value = read(arguments.device)
        return show_result(notebook, arguments, value, lambda: notebook.show_object(value))

    return Command(name, description, result_options(noun), magic=run)


ASSIGNMENT = re.compile(r"(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=)")
"""The operator of an assignment."""


def split_command(commands: Iterable[Command], line: str) -> tuple[Command, str] | None:
    """Split a line into a command and its arguments; None for a statement, such as ``history = fit(x)``."""
    name, _, arguments = line.strip().partition(" ")
    arguments = arguments.strip()
    for command in commands:
        if command.name == name and not ASSIGNMENT.match(arguments):
            return command, arguments
    return None


class _LineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise OptionError(message)


class _Once(argparse.Action):
    """Stores a value. A second one is an error, as it would silently replace the first."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, flag: str | None = None
    ) -> None:
        stored = vars(namespace).setdefault("_stored", set())
        if self.dest in stored:
            parser.error(f"{flag} is given twice")
        stored.add(self.dest)
        setattr(namespace, self.dest, values)


def parse_line(program: str, options: Iterable[Option], line: str) -> argparse.Namespace:
    """Parse the arguments of a magic; an OptionError says what is invalid."""
    parser = _LineParser(prog=program, add_help=False, allow_abbrev=False)
    for option in options:
        parser.add_argument(*option.flags, **_argparse_options(option, "*"))
    arguments = parser.parse_args(split_line(line))
    _split_devices(arguments)
    if getattr(arguments, "var", None) is not None:
        _check_variable(arguments.var)
    return arguments


def _check_variable(name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise OptionError(f"{name!r} is not a valid variable name")
    if is_ipython_name(name) or (name.startswith("__") and name.endswith("__")):
        owner = "IPython" if is_ipython_name(name) else "Python"
        raise OptionError(f"{owner} uses the name {name!r} itself: choose another variable")


def add_shell_command(subparsers: Any, command: Command) -> None:
    """Add a command to the subparsers of a shell command."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        command.name, help=command.help, description=f"{command.help[0].upper()}{command.help[1:]}."
    )

    def run(arguments: argparse.Namespace) -> int:
        _split_devices(arguments)
        assert command.shell is not None  # noqa: S101 (only such commands are added)
        return command.shell(arguments)

    parser.set_defaults(run=run)
    for option in command.options_of("shell"):
        parser.add_argument(*option.flags, **_argparse_options(option, "+"))
    parser.add_argument("--json", action="store_true", help="print JSON, one object per file and line")


def _argparse_options(option: Option, many: str) -> dict[str, Any]:
    if option.metavar is None:
        return {"action": "store_true", "help": option.help}
    settings: dict[str, Any] = {"metavar": option.metavar, "help": option.help}
    if option.is_argument:
        settings["nargs"] = many if option.many else None
    elif option.many:
        settings |= {"action": "append", "default": []}
    else:
        settings |= {"action": _Once, "default": option.default}
    if option.values > 1:
        settings |= {"nargs": option.values, "metavar": tuple(option.metavar.split())}
    if option.choices:
        settings["choices"] = option.choices
    if option.type is not None:
        settings["type"] = _argparse_type(option.type)
    return settings


def _argparse_type(convert: Any) -> Any:
    def read(text: str) -> Any:
        try:
            return convert(text)
        except OptionError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def _split_devices(arguments: argparse.Namespace) -> None:
    if isinstance(getattr(arguments, "device", None), list):
        arguments.device = [name for text in arguments.device for name in text.split(",")] or None


def split_line(line: str) -> list[str]:
    """Split a line as a shell does; on Windows a backslash is part of a path."""
    try:
        if os.name == "nt":
            return [argument.strip("\"'") for argument in shlex.split(line, posix=False)]
        return shlex.split(line)
    except ValueError as error:
        raise OptionError(f"{error} in {line!r}") from error


def positive(text: str) -> int:
    """Convert a text to a positive integer."""
    if not text.isdecimal() or not text.isascii() or int(text[:9]) < 1:
        raise OptionError(f"must be a number, 1 or more, not {text!r}")
    return int(text[:9])


def byte_count(text: str) -> int:
    """Convert a size such as ``64MiB`` to bytes, at least 1."""
    nbytes = parse_size(text)
    if nbytes < 1:
        raise OptionError(f"must be at least 1 byte, not {text!r}")
    return nbytes
