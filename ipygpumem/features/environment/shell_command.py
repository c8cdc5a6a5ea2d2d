"""``env`` and ``demo``: what this machine allows, and the commands at work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.commands.output import print_json, say
from ipygpumem.features.environment.collect import environment, environment_lines
from ipygpumem.snapshot import sample

if TYPE_CHECKING:
    import argparse

    from ipygpumem.commands.arguments import Commands

__all__ = ["add"]


def add(commands: Commands) -> None:
    """Put the commands in."""
    commands.add("env", _env, "What this machine allows, and how far each number can be trusted.")
    commands.add("demo", _demo, "The commands at work on a small real snapshot.")


def _env(words: argparse.Namespace) -> int:
    facts = environment()
    if words.json:
        print_json(facts.to_dict())
    else:
        say(*environment_lines(facts))
    return 0


def _demo(words: argparse.Namespace) -> int:
    from ipygpumem.cli.parser import main

    file = str(sample())
    form = ["--json"] if words.json else []
    for command in (
        ["summary", file],
        ["peak", file, "--by", "function", "--top", "5"],
        ["fragmentation", file, "--need", "64MiB"],
    ):
        if not words.json:
            say(f"$ ipygpumem {' '.join(command)}")
        status = main([*command, *form])
        if status:
            return status
    return 0
