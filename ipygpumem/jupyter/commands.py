"""The words of ``%gpumem``, one module each."""

from __future__ import annotations

import re

from ipygpumem.commands.command import Command, Verb
from ipygpumem.features.environment.command import ENV
from ipygpumem.features.explain.command import EXPLAIN
from ipygpumem.features.history.command import HISTORY
from ipygpumem.features.history.compare_command import COMPARE
from ipygpumem.features.holders.command import WHO
from ipygpumem.features.live.command import MONITOR
from ipygpumem.features.processes.command import PROCESSES
from ipygpumem.features.ranks.command import RANKS
from ipygpumem.features.ranks.engines.command import ENGINES
from ipygpumem.features.recordings.command import RECORD_COMMAND
from ipygpumem.features.recordings.view_command import VIEW
from ipygpumem.features.release.command import FREE
from ipygpumem.jupyter.switch_command import OFF, ON

__all__ = ["COMMANDS", "Command", "Verb", "command_of"]

_NOW = (ON, OFF, ENV, RECORD_COMMAND, WHO, FREE, EXPLAIN, PROCESSES, MONITOR, VIEW)
COMMANDS = (*_NOW, HISTORY, COMPARE, ENGINES, RANKS)

_ASSIGNS = re.compile(r"(?:[-+*/%@&|^]|//|\*\*|<<|>>)?=(?!=)")


def command_of(line: str) -> tuple[Command, str] | None:
    """A line that begins with a command's word, parted there; None for a statement, as in ``history = fit(x)``."""
    first, _, rest = line.strip().partition(" ")
    command = next((one for one in COMMANDS if one.word == first), None)
    rest = rest.strip()
    return None if command is None or _ASSIGNS.match(rest) else (command, rest)
