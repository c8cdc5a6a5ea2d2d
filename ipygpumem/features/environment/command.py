"""The command ``env``, which shows software versions, devices and the accuracy of measured values."""

from __future__ import annotations

import argparse

from ipygpumem.features.commands.command import HELP, Command, Notebook
from ipygpumem.features.commands.output import print_json, print_lines


def _magic(notebook: Notebook, arguments: argparse.Namespace) -> None:  # noqa: ARG001 (has no options)
    from ipygpumem.features.environment.collect import environment, environment_lines

    notebook.print(*environment_lines(environment(notebook.session)))


def _shell(arguments: argparse.Namespace) -> int:
    from ipygpumem.features.environment.collect import environment, environment_lines

    info = environment()
    if arguments.json:
        print_json(info.to_dict())
    else:
        print_lines(*environment_lines(info))
    return 0


ENV = Command("env", "show software versions, devices, and the accuracy of each value", (HELP,), _magic, _shell)
