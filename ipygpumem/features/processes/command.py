"""The command ``%gpumem processes``."""

from __future__ import annotations

from typing import Any

from ipygpumem.features.commands.command import result_command


def _processes(device: list[str] | None) -> Any:
    from ipygpumem.features.processes.collect import processes

    return processes(device=device)


PROCESSES = result_command(
    "processes", "list the processes on each GPU with user, memory usage and command line", "the processes", _processes
)
