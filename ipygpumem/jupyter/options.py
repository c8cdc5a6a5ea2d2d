"""Options of ``%%gpumem`` and ``%gpumem STATEMENT``, and the input transformer for ``%%gpumem``.

The transformer replaces the first line of the cell with a call to a line magic, because an ordinary cell magic would
have to run the body itself. Then IPython would regard a failed cell as successful, ``await`` would not work, and the
value of the last expression and the line numbers in tracebacks would be lost. IPython removes prompts and indentation
only from cells whose first line has them. Both are therefore removed from the body here.
"""

from __future__ import annotations

import argparse
import re

from IPython.core.inputtransformer2 import cell_magic, classic_prompt, ipython_prompt, leading_indent

from ipygpumem.core.errors import OptionError
from ipygpumem.features.commands.command import DEVICE, HELP, Option, parse_line, split_line
from ipygpumem.features.recordings.command import RECORDING

_ARGUMENT = re.compile(r"""\s*((?:"[^"]*"?|'[^']*'?|[^\s"'])+)""")
"""Pattern of an argument, including its quotation marks."""
_QUIET = Option(("-q", "--quiet"), None, "show nothing; the report is in ipygpumem.last")
_VAR = Option(("-v", "--var"), "NAME", "store the report in this variable")
_TABLE = Option(("--table",), None, "also show the full memory breakdown")
_SNAPSHOT = Option(
    ("--snapshot",),
    "PATH",
    "record the allocation history and write it to PATH, even if the code fails; {name} expands to the value of a "
    "variable, {host} to the host name, {time} to the start time, and {rank} to the rank or engine ID",
    is_path=True,
)
_VIEW = Option(("--view",), None, "show the snapshot below the report (viewer or image); requires --snapshot")
_LINES = (
    Option(("--lines",), None, "report memory usage by line, for the cell and the notebook's functions that it calls"),
    Option(
        ("-f", "--function"),
        "NAME",
        "report memory usage line by line for this function or method (such as train, Net.forward or model) instead of "
        "all functions of the notebook; can be repeated",
        accepts_many=True,
    ),
)
_MODULES = Option(
    ("--modules",),
    "NAME",
    "report this model's memory usage by module and phase (forward, backward, optimizer) of training and inference",
)
_OUTSIDE = Option(
    ("--outside",),
    None,
    "report memory outside PyTorch by library, from CUPTI records and the counters of CuPy, JAX and other libraries; "
    "requires ipygpumem[outside]",
)
_LIMITS = (
    Option(("--limit",), "SIZE", "fail if the peak on any GPU, relative to the start, exceeds SIZE, such as 2GiB"),
    Option(("--limit-held",), "SIZE", "fail if allocated memory grows by more than SIZE, such as 0"),
    Option(("--limit-outside",), "SIZE", "fail if memory outside PyTorch grows by more than SIZE"),
    Option(("--limit-host",), "SIZE", "fail if the peak resident memory, relative to the start, exceeds SIZE"),
)
_PROFILE = (
    Option(
        ("--trace",),
        "PATH",
        "profile the code with torch.profiler (memory, shapes, stacks) and write the trace to PATH (.json.gz, .json), "
        "even if the code fails; open it at https://ui.perfetto.dev or chrome://tracing",
        is_path=True,
    ),
    Option(
        ("--timeline",),
        "PATH",
        "profile the code and write memory usage over time by category (parameter, gradient, optimizer state, "
        "activation, input, temporary), for GPUs and for tensors in host memory, to PATH (.html)",
        is_path=True,
    ),
)
_ENGINES = (
    Option(
        ("--engines",),
        None,
        'run the cell, as %%px does, on the engines monitored by "%gpumem engines"; with --snapshot '
        "run_{rank}.pickle, the report compares a typical engine with the engine that differs most, line by line",
    ),
    Option(("--collect",), "DIRECTORY", "copy engine snapshots to this local path; requires --engines and --snapshot"),
)
_MEASURED = (_TABLE, _SNAPSHOT, _VIEW, *RECORDING, *_LINES, _MODULES, _OUTSIDE, *_PROFILE, *_LIMITS)
CELL = (*_MEASURED, *_ENGINES, DEVICE, _QUIET, _VAR, HELP)
_RETURN = Option(("-o",), None, "return the report instead of the value of the statement")
STATEMENT = (*_MEASURED, DEVICE, _QUIET, _VAR, _RETURN, HELP)


def flag_for_measurements(line: str) -> str:
    """Return the first flag that applies only to measured code, such as ``--lines``, or an empty string."""
    flags = {flag for option in _MEASURED if option is not _TABLE for flag in option.flags}
    return next((flag for word in split_line(line) if (flag := word.partition("=")[0]) in flags), "")


def parse_options(program: str, options: tuple[Option, ...], line: str) -> argparse.Namespace:
    arguments = parse_line(program, options, line)
    is_recorded = arguments.snapshot is not None or arguments.lines or arguments.function or arguments.modules
    if (arguments.stacks or arguments.max_entries or arguments.history) and not is_recorded:
        raise OptionError(
            "--stacks, --max-entries and --history require --snapshot PATH, --lines, --function or --modules"
        )
    if arguments.view and arguments.snapshot is None:
        raise OptionError("--view requires a snapshot: add --snapshot PATH")
    if getattr(arguments, "collect", None) is not None and (arguments.snapshot is None or not arguments.engines):
        raise OptionError("--collect requires snapshots from engines: add --engines --snapshot run_{rank}.pickle")
    return arguments


def split_statement(options: tuple[Option, ...], line: str, variable: re.Pattern[str] | None = None) -> tuple[str, str]:
    """Split a line into its leading options and the statement. A semicolon at the end is part of the statement.

    Arguments that match ``variable`` may precede or follow options. They are returned at the start of the statement.
    """
    text = line.rstrip("; ")
    with_value = {flag for option in options for flag in option.flags if option.metavar is not None}
    flags = {flag for option in options for flag in option.flags}
    switches = {flag[1] for flag in flags - with_value if len(flag) == len("-q")}
    end, leading, variables = 0, "", []
    while (argument := _ARGUMENT.match(text, end)) is not None:
        flag = argument[1]
        if variable is not None and variable.fullmatch(flag):
            variables.append(flag)
            end = argument.end()
            continue
        if not flag.startswith("-"):
            break
        if flag.split("=")[0] not in flags and not (len(flag) > 1 and set(flag[1:]) <= switches):
            if flag.startswith("--"):  # the parser rejects unknown options, whereas -x and -1 are valid statements
                return text, ""
            break
        end = argument.end()
        value = _ARGUMENT.match(text, end) if flag in with_value else None
        end = end if value is None else value.end()
        leading += text[argument.start() : end]
    return leading, " ".join([*variables, line[end:].lstrip() if end < len(text) else ""])


NAME = "gpumem"

_FIRST_LINE = re.compile(rf"%%{NAME}(?:\s+(?P<options>.*))?", re.DOTALL)
_HELP = {"-h", "--help"}


def rewrite(lines: list[str]) -> list[str]:
    """Return the lines of a cell, with a call to a line magic in place of a ``%%gpumem`` line at the start.

    With ``--help``, the body is omitted. With ``--engines``, the lines are returned unchanged.
    """
    match = _FIRST_LINE.fullmatch(lines[0].rstrip()) if lines else None
    if match is None:
        return lines
    options = match["options"] or ""
    if _HELP & set(options.split()):
        return [_line_magic(NAME, "--help")]
    if "--engines" in options.split():  # the body runs on other processes, so the ordinary cell magic is used
        return lines
    return [_line_magic("_gpumem_begin", options), *_body(lines[1:])]


# prevents IPython's check_complete from calling this function: a terminal would run the rewritten first line alone
rewrite.has_side_effects = True  # type: ignore[attr-defined]


def _body(lines: list[str]) -> list[str]:
    first = next((index for index, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return lines
    for transform in (leading_indent, classic_prompt, ipython_prompt):
        lines = [*lines[:first], *transform(lines[first:])]
    return [*lines[:first], *cell_magic(rewrite(lines[first:]))]


def _line_magic(name: str, options: str) -> str:
    return f"get_ipython().run_line_magic({name!r}, {options!r})\n"
