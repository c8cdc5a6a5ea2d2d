"""The command ``%gpumem fit``."""

from __future__ import annotations

import argparse
from typing import Any

from ipygpumem.core.errors import OptionError
from ipygpumem.core.units import parse_size
from ipygpumem.features.commands.command import HELP, Command, Notebook, Option, show_result
from ipygpumem.features.commands.output import print_json
from ipygpumem.features.fit.axes import AXIS, parse_axes


def _magic(notebook: Notebook, arguments: argparse.Namespace) -> Any:
    from ipygpumem.features.fit.collect import fit_step
    from ipygpumem.features.fit.step_code import statement_step

    __tracebackhide__ = True  # omit this function from tracebacks of errors in the statement
    axes, statement = parse_axes(arguments.statement)
    _check_end(statement)
    codes, run = notebook.compiled(statement)
    code = statement_step(statement, axes, codes, notebook.shell.user_ns, run)
    notebook.claim_cell()
    tries = vars(arguments)["try"]
    if arguments.dry and tries:
        raise OptionError("--try requires runs on a GPU, and cannot be combined with --dry")
    options = {"margin": arguments.margin, "on": arguments.on, "most": arguments.most}
    result = fit_step(code, **options, try_changes=tries, dry=arguments.dry)
    advises = arguments.advise or tries or not result.fits
    advice = result.advice() if advises and not result.refusal else None

    def show() -> None:
        if arguments.json:
            print_json(result.to_dict() | ({} if advice is None else {"advice": advice.to_dict()}))
        else:
            notebook.show_tables([*result.tables(), *(advice.tables() if advice is not None else ())])

    return show_result(notebook, arguments, result, show)


def _check_end(statement: str) -> None:
    """Raise `OptionError` if options follow the statement, because ``--dry`` would be the expression ``-(-dry)``."""
    end = statement.rpartition(")")[2].strip()
    words = end.split()
    flags = {flag for option in FIT.options for flag in option.flags}
    if words and words[0].partition("=")[0] in flags and (words[0].startswith("--") or len(words) > 1):
        raise OptionError(f"the options must be before the statement: {end}")


def _share(text: str) -> float:
    number, percent = text.strip().removesuffix("%"), text.strip().endswith("%")
    try:
        return float(number) / (100 if percent else 1)
    except ValueError:
        raise OptionError(f"the value must be a share such as 2% or 0.02, but got {text!r}") from None


def _memory_size(text: str) -> str:
    parse_size(text)
    return text


FIT = Command(
    "fit",
    "predict the largest size of a step that fits into GPU memory",
    (
        Option(
            ("statement",),
            "NAME=FIRST..LAST STATEMENT",
            "one or two variables of the statement with their ranges, such as batch=1..4096, followed by the statement "
            "that runs one step, such as step(batch). Options must precede the statement. The state that the step "
            "changes is restored afterwards",
            accepts_many=True,
            usage="NAME=FIRST..LAST STATEMENT",
        ),
        Option(("--on",), "SIZE", 'predict for a GPU with this much memory, such as "24 GiB"', type=_memory_size),
        Option(
            ("--margin",),
            "SHARE",
            "share of the memory that remains free at the recommended size (default: 2%)",
            default=0.02,
            type=_share,
        ),
        Option(
            ("--most",),
            "SHARE",
            "share of the free memory that a run may use, up to 50% (default: 25%)",
            default=0.25,
            type=_share,
        ),
        Option(
            ("--dry",), None, "estimate without running the step on the GPU, also for a GPU that is not in this machine"
        ),
        Option(("--advise",), None, "show changes to the program that reduce the memory usage of the step"),
        Option(("--try",), None, "also run the step with some of the changes of --advise, to check their predictions"),
        Option(("--json",), None, "print the result as JSON"),
        Option(("-v", "--var"), "NAME", "store the result in this variable"),
        Option(("-q", "--quiet"), None, "show nothing"),
        Option(("-o",), None, "return the result"),
        HELP,
    ),
    magic=_magic,
    statement=True,
    variable=AXIS,
)
