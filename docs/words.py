"""Pages made from the program's own tables: the magics, the settings, the command line, the formats."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def pages() -> dict[str, str]:
    """Text of each page by its name."""
    return {
        "magics.md": magics(),
        "settings.md": settings(),
        "command_line.md": command_line(),
        "reports_format.md": document("ipygpumem/core/FORMAT.md"),
        "snapshots_format.md": document("ipygpumem/snapshot/FORMAT.md"),
    }


def magics() -> str:
    """What ``%gpumem?`` shows."""
    from ipygpumem.jupyter.commands import help_text

    return f"# The magics\n\nThis is what `%gpumem?` and `%%gpumem --help` show.\n\n```text\n{help_text()}\n```\n"


def settings() -> str:
    """The traits of ``GPUMem``, with values, default and help."""
    from ipygpumem.jupyter.settings import Settings

    lines = [
        "# Settings",
        "",
        'In a notebook: `%config GPUMem.min_change = "4 MiB"`. For every session: `c.GPUMem.min_change = "4 MiB"` in',
        "`ipython_config.py` (`ipython profile create` makes one). `%config GPUMem` lists them with their values. A",
        "value that means nothing is refused in one line and changes nothing.",
        "",
    ]
    for name, trait in sorted(Settings.class_traits(config=True).items()):
        values = " or ".join(f"`{value!r}`" for value in getattr(trait, "values", ())) or trait.info()
        default = trait.default_value if trait.default_value is not trait.default_value.__class__ else None
        lines += [f"## {name}", "", trait.help, "", f"Values: {values}. Default: `{_default(name, default)!r}`.", ""]
    return "\n".join(lines)


def _default(name: str, value: object) -> object:
    from ipygpumem.core.units import size

    return size(value) if name == "min_change" and isinstance(value, int) else value


def command_line() -> str:
    """What each command's ``--help`` shows."""
    from ipygpumem.cli.parser import parser

    lines = [
        "# The command line",
        "",
        "Commands about snapshots need numpy and nothing else: a laptop without PyTorch and GPU opens a colleague's",
        "file. Exit status: 0; 1 for a file that cannot be read, with one line on the standard error; 2 for words that",
        "mean nothing.",
        "",
    ]
    for action in parser()._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                lines += [f"## ipygpumem {name}", "", "```text", command.format_help().rstrip(), "```", ""]
    return "\n".join(lines)


def document(path: str) -> str:
    """A document that lies beside its code; links within the repository become words."""
    text = (ROOT / path).read_text(encoding="utf-8")
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)[^)]*\)", r"\1", text)
