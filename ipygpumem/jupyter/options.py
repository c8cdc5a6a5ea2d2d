"""The options of ``%%gpumem`` and of ``%gpumem STATEMENT``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ipygpumem.core.errors import OptionError
from ipygpumem.features.commands.command import DEVICE, HELP, Option, parse_line
from ipygpumem.features.recordings.command import RECORDING

if TYPE_CHECKING:
    import argparse

_ARGUMENT = re.compile(r"""\s*((?:"[^"]*"?|'[^']*'?|[^\s"'])+)""")
"""An argument with its quotation marks."""
_QUIET = Option(("-q", "--quiet"), None, "show nothing; the report is in ipygpumem.last")
_VAR = Option(("-v", "--var"), "NAME", "store the report in this variable")
_TABLE = Option(("--table",), None, "show the full breakdown, too")
_SNAPSHOT = Option(
    ("--snapshot",),
    "PATH",
    "record allocation history and write it to PATH, also if the code fails; {name} expands to a variable, {host} to "
    "the machine, {time} to the start, {rank} to the rank or the number of the engine",
    path=True,
)
_VIEW = Option(
    ("--view",),
    None,
    "show the snapshot below the report: the viewer, or a picture where there is no front end; needs --snapshot",
)
_LINES = (
    Option(
        ("--lines",),
        None,
        "report memory by source line (level, peak, allocated, freed, held) of the cell and of functions of the "
        "notebook that ran",
    ),
    Option(
        ("-f", "--function"),
        "NAME",
        "report the lines of this function or method (train, Net.forward, model) instead of every function of the "
        "notebook; may be repeated",
        many=True,
    ),
)
_MODULES = Option(
    ("--modules",),
    "NAME",
    "report this model's memory by module and by phase (forward, backward, optimizer) of a step of training or "
    "inference",
)
_OUTSIDE = Option(
    ("--outside",),
    None,
    "report memory outside PyTorch by library, from CUPTI's records, and what CuPy, JAX and others count themselves; "
    "needs ipygpumem[outside]",
)
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
        "also if the code fails; https://ui.perfetto.dev and chrome://tracing open it",
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
_ENGINES = (
    Option(
        ("--engines",),
        None,
        "run the cell on the engines that %gpumem engines monitors, as %%px does, with these options there: "
        "--snapshot run_{rank}.pickle records on each, and the report names the engine and the line that differ",
    ),
    Option(("--collect",), "FOLDER", "with --engines --snapshot: copy the engines' snapshots into this local folder"),
)
_MEASURED = (_TABLE, _SNAPSHOT, _VIEW, *RECORDING, *_LINES, _MODULES, _OUTSIDE, *_PROFILE, *_LIMITS)
CELL = (*_MEASURED, *_ENGINES, DEVICE, _QUIET, _VAR, HELP)
STATEMENT = (*_MEASURED, DEVICE, _QUIET, _VAR, Option(("-o",), None, "return the report"), HELP)


def parse_options(program: str, options: tuple[Option, ...], line: str) -> argparse.Namespace:
    """Parse the options of ``%%gpumem`` or ``%gpumem STATEMENT``; OptionError also for options without effect."""
    arguments = parse_line(program, options, line)
    recorded = arguments.snapshot is not None or arguments.lines or arguments.function or arguments.modules
    if (arguments.stacks or arguments.max_entries or arguments.history) and not recorded:
        raise OptionError(
            "--stacks, --max-entries and --history need a recording: add --snapshot PATH, --lines or --modules"
        )
    if arguments.view and arguments.snapshot is None:
        raise OptionError("--view shows a recording: add --snapshot PATH")
    if getattr(arguments, "collect", None) is not None and (arguments.snapshot is None or not arguments.engines):
        raise OptionError("--collect copies the engines' snapshots: add --engines --snapshot run_{rank}.pickle")
    return arguments


def split_statement(options: tuple[Option, ...], line: str) -> tuple[str, str]:
    """Split a line into its leading options and the statement that follows them."""
    with_value = {flag for option in options for flag in option.flags if option.metavar is not None}
    flags = {flag for option in options for flag in option.flags}
    switches = {flag[1] for flag in flags - with_value if len(flag) == len("-q")}
    end = 0
    while (argument := _ARGUMENT.match(line, end)) is not None and argument[1].startswith("-"):
        flag = argument[1]
        if flag.split("=")[0] not in flags and not (len(flag) > 1 and set(flag[1:]) <= switches):
            if flag.startswith("--"):  # an unknown option gets an error message; -x and -1 are valid statements
                return line, ""
            break
        end = argument.end()
        value = _ARGUMENT.match(line, end) if flag in with_value else None
        end = end if value is None else value.end()
    return line[:end], line[end:].lstrip()
