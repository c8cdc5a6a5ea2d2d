"""``%gpumem processes``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.features.commands.command import Command, result_options, show_result

if TYPE_CHECKING:
    import argparse

    from ipygpumem.features.commands.notebook import Notebook

__all__ = ["PROCESSES"]


def _run(notebook: Notebook, arguments: argparse.Namespace) -> Any:
    from ipygpumem.features.processes.collect import processes

    listed = processes(device=arguments.device)
    return show_result(notebook, arguments, listed, lambda: notebook.show_object(listed))


PROCESSES = Command(
    "processes",
    "all processes on the devices: owner, memory and command line",
    result_options("the processes"),
    magic=_run,
)
