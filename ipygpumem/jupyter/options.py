"""The options of the magics, once: the parser, the help text and the completion are all made of these tables."""

from __future__ import annotations

import argparse
import ast
import keyword
import os
import shlex
from dataclasses import dataclass
from typing import Any, NoReturn

from IPython.core.error import UsageError

from ipygpumem.features.holders.roots import is_ipython_name
from ipygpumem.measurement.allocation_history import HistoryOptions

__all__ = [
    "CELL",
    "RECORD",
    "STATEMENT",
    "Option",
    "history_options",
    "parse",
    "split_statement",
    "split_words",
]


@dataclass(frozen=True, slots=True)
class Option:
    """One option: its flags, the name of its value (None for a switch), what it says in the help.

    A flag without a dash is an operand: ``Option(("file",), "FILE", "the snapshot", path=True)``; with `many` there may
    be any number, otherwise there has to be one. ``usage`` stands for it in the help where the command takes fewer.
    """

    flags: tuple[str, ...]
    value: str | None
    help: str
    choices: tuple[str, ...] = ()
    default: Any = None
    many: bool = False
    path: bool = False
    usage: str = ""

    @property
    def operand(self) -> bool:
        """Whether it is told by its place, not by a flag."""
        return not self.flags[0].startswith("-")


_DEVICE = Option(("-d", "--device"), "DEVICE", "report on this device only (cuda:0, 0); may be repeated", many=True)
_QUIET = Option(("-q", "--quiet"), None, "show nothing; the report is in ipygpumem.last")
_VAR = Option(("-v", "--var"), "NAME", "store the report in this variable")
_HELP = Option(("-h", "--help"), None, "show this help; nothing runs")
_RECORDING = (
    Option(
        ("--stacks",),
        "{python,all,none}",
        "stacks to record: python (default), all (C++ too, slow to save), none",
        choices=("python", "all", "none"),
    ),
    Option(("--max-entries",), "N", "bound of the history, in events per device (default 1000000)"),
    Option(
        ("--history",),
        "KEY=VALUE",
        "a further option of torch's _record_memory_history, as in --history compile_context=True; may be repeated",
        many=True,
    ),
)
_SNAPSHOT = Option(
    ("--snapshot",),
    "PATH",
    "record allocation history and write it to PATH, also when the code fails; {name} expands to a variable, "
    "{host} to the machine, {time} to the start, {rank} to the rank or the number of the engine",
    path=True,
)

_VIEW = Option(
    ("--view",),
    None,
    "show the snapshot below the report: the viewer, or its still picture where nobody watches; needs --snapshot",
)

_LINES = (
    Option(
        ("--lines",),
        None,
        "list the code line by line: level, peak, what each line allocated, freed and kept; the cell, and functions of "
        "the notebook that ran",
    ),
    Option(
        ("-f", "--function"),
        "NAME",
        "list this function or method (train, Net.forward, model) instead of every function of the notebook; may be "
        "repeated",
        many=True,
    ),
)
_MODULES = Option(
    ("--modules",),
    "NAME",
    "tell this model's memory by module and by phase (forward, backward, optimizer): a step of training or inference",
)
_OUTSIDE = Option(
    ("--outside",),
    None,
    "tell memory outside PyTorch by library, from CUPTI's records, and what CuPy, JAX and others count themselves; "
    "needs ipygpumem[outside]; by library and not by line, for that would take CUPTI away from torch.profiler",
)
_TABLE = Option(("--table",), None, "show the full breakdown, too")
_LIMITS = (
    Option(("--limit",), "SIZE", "fail if the peak on any GPU is higher than this: 2GiB, 500MiB"),
    Option(("--limit-held",), "SIZE", "fail if more than this is still held at the end: 0"),
    Option(("--limit-outside",), "SIZE", "fail if memory outside PyTorch grows by more than this"),
    Option(("--limit-host",), "SIZE", "fail if the peak of this process's resident memory is higher than this"),
)
_PROFILE = (
    Option(
        ("--trace",),
        "PATH",
        "profile the code with torch.profiler (memory, shapes, stacks) and write the trace to PATH (.json.gz, .json), "
        "also when the code fails; https://ui.perfetto.dev and chrome://tracing open it",
        path=True,
    ),
    Option(
        ("--timeline",),
        "PATH",
        "profile the code and write PATH (.html): memory over time by category (parameter, gradient, optimizer state, "
        "activation, input, temporary), of GPUs and of tensors on the host",
        path=True,
    ),
)
_QUESTIONS = (*_LINES, _MODULES, _OUTSIDE, *_PROFILE, *_LIMITS)

_ENGINES = (
    Option(
        ("--engines",),
        None,
        "run the cell on the engines that %gpumem engines watches, as %%px does, with these options there: "
        "--snapshot run_{rank}.pickle records on each and tells which one differs, and by which line",
    ),
    Option(("--collect",), "FOLDER", "with --engines --snapshot: copy the engines' snapshots into this folder here"),
)

CELL = (_TABLE, _SNAPSHOT, _VIEW, *_RECORDING, *_QUESTIONS, *_ENGINES, _DEVICE, _QUIET, _VAR, _HELP)
STATEMENT = (
    _TABLE,
    _SNAPSHOT,
    _VIEW,
    *_RECORDING,
    *_QUESTIONS,
    _DEVICE,
    _QUIET,
    _VAR,
    Option(("-o",), None, "return the report"),
    _HELP,
)
RECORD = (*_RECORDING, _HELP)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}")


class _Once(argparse.Action):
    """A value that is given once: of two, one would be forgotten unsaid."""

    def __call__(
        self, parser: argparse.ArgumentParser, words: argparse.Namespace, values: Any, flag: str | None = None
    ) -> None:
        given = vars(words).setdefault("_given", set())
        if self.dest in given:
            parser.error(f"{flag} is given twice")
        given.add(self.dest)
        setattr(words, self.dest, values)


def parse(prog: str, options: tuple[Option, ...], line: str) -> argparse.Namespace:
    """The options of a magic's line.

    Raises:
        UsageError: A word that means nothing here.
    """
    parser = _Parser(prog=prog, add_help=False, allow_abbrev=False)
    for option in options:
        parser.add_argument(*option.flags, **_arguments(option))
    words = parser.parse_args(split_words(prog, line))
    if hasattr(words, "max_entries"):
        given = words.stacks or words.max_entries or words.history
        words.stacks = words.stacks or "python"
        words.max_entries = _count(prog, words.max_entries or "1000000")
        words.history = dict(_key_value(prog, text) for text in words.history)
        if given and not _records(words):
            raise UsageError(
                f"{prog}: --stacks, --max-entries and --history are of a recording: add --snapshot PATH, --lines or "
                "--modules"
            )
    if getattr(words, "view", False) and getattr(words, "snapshot", "") is None:
        raise UsageError(f"{prog}: --view shows what was recorded: add --snapshot PATH")
    if getattr(words, "collect", None) is not None and (words.snapshot is None or not words.engines):
        raise UsageError(f"{prog}: --collect is of snapshots on engines: add --engines --snapshot run_{{rank}}.pickle")
    name = getattr(words, "var", None)
    if name is not None and (not name.isidentifier() or keyword.iskeyword(name)):
        raise UsageError(f"{prog}: {name!r} is no name for a variable")
    if name is not None and (is_ipython_name(name) or (name.startswith("__") and name.endswith("__"))):
        whose = "IPython" if is_ipython_name(name) else "Python"
        raise UsageError(f"{prog}: {name!r} is {whose}'s own: nothing is stored there")
    if hasattr(words, "device"):
        words.device = [part for text in words.device for part in text.split(",")] or None
    return words


def _records(words: argparse.Namespace) -> bool:
    """Whether these words ask for a recording."""
    return (
        getattr(words, "snapshot", "") is not None or words.lines or bool(words.function) or words.modules is not None
    )


def _arguments(option: Option) -> dict[str, Any]:
    """An option as argparse wants it described."""
    if option.value is None:
        return {"action": "store_true"}
    arguments: dict[str, Any] = {"metavar": option.value}
    if option.operand:
        arguments["nargs"] = "*" if option.many else None
    elif option.many:
        arguments |= {"action": "append", "default": []}
    else:
        arguments |= {"default": option.default, "action": _Once}
    if option.choices:
        arguments["choices"] = option.choices
    return arguments


def history_options(words: argparse.Namespace) -> HistoryOptions:
    """The recording that parsed words ask for."""
    return HistoryOptions(stacks=words.stacks, max_entries=words.max_entries, extra=words.history)


def split_words(prog: str, line: str) -> list[str]:
    """A line as the shell would split it; on Windows a backslash is part of a path.

    Raises:
        UsageError: A quotation mark without its partner.
    """
    try:
        if os.name == "nt":
            return [word.strip("\"'") for word in shlex.split(line, posix=False)]
        return shlex.split(line)
    except ValueError as error:
        raise UsageError(f"{prog}: {error} in {line!r}") from error


def _count(prog: str, text: str) -> int:
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count < 1:
        raise UsageError(f"{prog}: --max-entries is a number of events from 1 on, not {text!r}")
    return count


def _key_value(prog: str, text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not key.isidentifier():
        raise UsageError(f"{prog}: --history takes KEY=VALUE, not {text!r}")
    try:
        return key, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return key, value


def split_statement(options: tuple[Option, ...], line: str) -> tuple[str, str]:
    """A line as its leading options and the statement behind them; ``--`` ends the options."""
    takes_value = {flag for option in options for flag in option.flags if option.value is not None}
    known = {flag for option in options for flag in option.flags}
    switches = {flag[1] for flag in known - takes_value if len(flag) == len("-q")}
    rest = line.lstrip()
    end = 0
    while rest.startswith("-"):
        word = rest.split(maxsplit=1)[0]
        if word == "--":
            return line[:end], rest[2:].lstrip()
        if word.split("=")[0] not in known and not (len(word) > 1 and set(word[1:]) <= switches):
            # -x and -1 are good Python; --words are ours, and a wrong one is to be told
            return (line, "") if word.startswith("--") else (line[:end], rest)
        end = len(line) - len(rest) + len(word)
        rest = rest[len(word) :].lstrip()
        if word in takes_value and rest:
            value = _first_word(rest)
            end = len(line) - len(rest) + len(value)
            rest = rest[len(value) :].lstrip()
    return line[:end], rest


def _first_word(text: str) -> str:
    """The first word with its quotation marks."""
    quote = ""
    for i, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character.isspace():
            return text[:i]
    return text
