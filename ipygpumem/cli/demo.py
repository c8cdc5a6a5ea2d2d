"""``ipygpumem demo``: some commands, run on a small real snapshot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.cli import snapshots
from ipygpumem.features.commands.command import Command
from ipygpumem.features.commands.output import print_lines

if TYPE_CHECKING:
    import argparse

__all__ = ["DEMO"]


def _demo(arguments: argparse.Namespace) -> int:
    import argparse as argparse_module

    from ipygpumem.features.commands.command import add_shell_command
    from ipygpumem.snapshot import sample

    parser = argparse_module.ArgumentParser(prog="ipygpumem")
    subparsers = parser.add_subparsers(required=True)
    for command in snapshots.COMMANDS:
        add_shell_command(subparsers, command)
    file = str(sample())
    for line in (
        ["summary", file],
        ["peak", file, "--by", "function", "--top", "5"],
        ["fragmentation", file, "--need", "64MiB"],
    ):
        if not arguments.json:
            print_lines(f"$ ipygpumem {' '.join(line)}")
        parsed = parser.parse_args([*line, *(["--json"] if arguments.json else [])])
        status: int = parsed.run(parsed)
        if status:
            return status
    return 0


DEMO = Command("demo", "run some commands on a small real snapshot", shell=_demo)
