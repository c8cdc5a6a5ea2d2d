"""Specifications of commands and options, and functions that parse arguments and show results."""

from __future__ import annotations

import argparse
import difflib
import keyword
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.errors import OptionError
from ipygpumem.core.introspection import is_ipython_name
from ipygpumem.core.units import parse_size

if TYPE_CHECKING:
    from ipygpumem.jupyter.magics import GPUMem

Interface = Literal["magic", "shell"]
Notebook: TypeAlias = "GPUMem"  # type of the first argument of `Command.magic`


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command or, if its flag has no leading dash, a positional argument.

    Attributes:
        flags: Flags such as ``("-n", "--top")``, or the name of a positional argument, such as ``("file",)``.
        metavar: Name of the value in the help; None for a switch without a value.
        choices: Accepted values; empty if all are accepted.
        default: Value of an omitted option; ignored for arguments, switches and options that can be repeated.
        accepts_many: Whether the option can be repeated or the argument accepts several values.
        is_path: Whether the value is a path. If so, tab completion lists files and directories.
        type: Function that converts a string to the value; it raises `OptionError` for invalid strings. For an option
            that can be repeated, the function returns a list, and the lists are concatenated.
        value_count: Number of values that follow the flag.
        only_interface: The only interface (``magic`` or ``shell``) that supports the option; None if both do.
        usage: Text for a positional argument in the usage line; if it is empty, the ``metavar`` is shown.
    """

    flags: tuple[str, ...]
    metavar: str | None
    help: str
    choices: tuple[str, ...] = ()
    default: Any = None
    accepts_many: bool = False
    is_path: bool = False
    type: Callable[[str], Any] | None = None
    value_count: int = 1
    only_interface: Interface | None = None
    usage: str = ""

    @property
    def is_argument(self) -> bool:
        return not self.flags[0].startswith("-")


@dataclass(frozen=True, slots=True)
class Command:
    """A command of ``%gpumem``, of the shell command ``ipygpumem``, or of both.

    Attributes:
        magic: Function that runs the command in a notebook and returns the magic's value; None if it is shell-only.
        shell: Function that runs the command in a shell and returns the exit status; None if it is notebook-only.
        subcommands: Subcommands, one of which must follow the name, as in ``%gpumem record start``.
        statement: Whether the text after the options is Python code, which is passed in the argument ``statement``
            without being split.
        variable: Pattern of arguments, such as ``batch=1..4096``, with which the statement starts. They may also
            precede the options or be between them.
    """

    name: str
    help: str
    options: tuple[Option, ...] = ()
    magic: Callable[[Notebook, argparse.Namespace], Any] | None = None
    shell: Callable[[argparse.Namespace], int] | None = None
    subcommands: tuple[Command, ...] = ()
    statement: bool = False
    variable: re.Pattern[str] | None = None

    def options_of(self, interface: Interface) -> tuple[Option, ...]:
        return tuple(option for option in self.options if option.only_interface in {None, interface})


HELP = Option(("-h", "--help"), None, "show this help", only_interface="magic")
DEVICE = Option(
    ("-d", "--device"),
    "DEVICE",
    "include only this device, such as cuda:0 or 0; can be repeated",
    accepts_many=True,
    type=lambda text: text.split(","),
)


def result_options(noun: str) -> tuple[Option, ...]:
    """``noun`` is the name of the result in the help text."""
    return (
        DEVICE,
        Option(("-v", "--var"), "NAME", f"store {noun} in this variable"),
        Option(("-q", "--quiet"), None, "show nothing"),
        Option(("-o",), None, f"return {noun}"),
        HELP,
    )


def show_result(notebook: Notebook, arguments: argparse.Namespace, value: Any, show: Callable[[], None]) -> Any:
    notebook.claim_cell()
    if arguments.var is not None:
        notebook.shell.user_ns[arguments.var] = value
    if not arguments.quiet:
        show()
    return value if arguments.o else None


def result_command(name: str, description: str, noun: str, read: Callable[[list[str] | None], Any]) -> Command:
    """``read(devices)`` returns the result to show. ``noun`` is the same as in `result_options`."""

    def run(notebook: Notebook, arguments: argparse.Namespace) -> Any:
        value = read(arguments.device or None)
        return show_result(notebook, arguments, value, lambda: notebook.show_object(value))

    return Command(name, description, result_options(noun), magic=run)


ASSIGNMENT = re.compile(r"(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=)")


def split_command(commands: Iterable[Command], line: str) -> tuple[Command, str] | None:
    name, _, arguments = line.strip().rstrip("; ").partition(" ")
    arguments = arguments.strip()
    for command in commands:
        if command.name == name and not ASSIGNMENT.match(arguments):
            return command, arguments
    return None


class OptionParser(argparse.ArgumentParser):
    """Argument parser that rejects the option value ``--``, which older versions of Python replace with ``[]``."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        arguments = sys.argv[1:] if args is None else list(args)
        for argument in arguments:
            if argument == "--":
                break
            if argument.startswith("-") and argument.endswith("=--"):
                self.error(f"argument {argument.removesuffix('=--')}: '--' is not a valid value")
        return super().parse_known_args(arguments, namespace)


class _MagicLineParser(OptionParser):
    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (--[\w-]+)", message)
        similar_flags = difflib.get_close_matches(unknown[1], self._option_string_actions, 1, 0.7) if unknown else []
        raise OptionError(f"{message}. Did you mean {similar_flags[0]}?" if similar_flags else message)


class _SingleValueAction(argparse.Action):
    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, flag: str | None = None
    ) -> None:
        stored = vars(namespace).setdefault("_stored", set())
        if self.dest in stored:
            parser.error(f"{flag} is specified more than once")
        stored.add(self.dest)
        setattr(namespace, self.dest, values)


def parse_line(program: str, options: Iterable[Option], line: str) -> argparse.Namespace:
    parser = _MagicLineParser(prog=program, add_help=False, allow_abbrev=False)
    for option in options:
        parser.add_argument(*option.flags, **_argparse_options(option, "*"))
    arguments = parser.parse_args(split_line(line))
    if getattr(arguments, "var", None) is not None:
        _check_variable(arguments.var)
    return arguments


def _check_variable(name: str) -> None:
    if not name.isidentifier() or keyword.iskeyword(name):
        raise OptionError(f"{name!r} is not a valid variable name")
    if is_ipython_name(name) or (name.startswith("__") and name.endswith("__")):
        owner = "IPython" if is_ipython_name(name) else "Python"
        raise OptionError(f"{name!r} is reserved by {owner}: choose another variable name")


def add_shell_command(subparsers: Any, command: Command) -> None:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        command.name, help=command.help, description=f"{command.help[0].upper()}{command.help[1:]}."
    )
    parser.set_defaults(run=command.shell)
    for option in command.options_of("shell"):
        parser.add_argument(*option.flags, **_argparse_options(option, "+"))
    parser.add_argument("--json", action="store_true", help="print JSON instead of text, one object per line")


def _argparse_options(option: Option, many: str) -> dict[str, Any]:
    description = option.help.replace("%", "%%")  # argparse expands percent signs
    if option.metavar is None:
        return {"action": "store_true", "help": description}
    settings: dict[str, Any] = {"metavar": option.metavar, "help": description}
    if option.is_argument:
        settings["nargs"] = many if option.accepts_many else None
    elif option.accepts_many:
        settings |= {"action": "append" if option.type is None else "extend", "default": []}
    else:
        settings |= {"action": _SingleValueAction, "default": option.default}
    if option.value_count > 1:
        settings |= {"nargs": option.value_count, "metavar": tuple(option.metavar.split())}
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


def split_line(line: str) -> list[str]:
    """Split a line into arguments. On Windows, backslashes are not escape characters.

    Raises `OptionError` if a closing quotation mark, or the character after a backslash, is missing.
    """
    try:
        if os.name == "nt":
            return [argument.strip("\"'") for argument in shlex.split(line, posix=False)]
        return shlex.split(line)
    except ValueError as error:
        raise OptionError(f"{error} in {line!r}") from error


def positive(text: str) -> int:
    if not text.isdecimal() or not text.isascii() or int(text[:9]) < 1:
        raise OptionError(f"the value must be a positive integer, but got {text!r}")
    return int(text[:9])


def byte_count(text: str) -> int:
    nbytes = parse_size(text)
    if nbytes < 1:
        raise OptionError(f"the size must be at least 1 byte, but got {text!r}")
    return nbytes
