"""The words of ``%gpumem``, one module each."""

from __future__ import annotations

import re

from ipygpumem.notebook.commands.command import Command, Verb
from ipygpumem.notebook.commands.compare import COMPARE
from ipygpumem.notebook.commands.engines import ENGINES
from ipygpumem.notebook.commands.env import ENV
from ipygpumem.notebook.commands.explain import EXPLAIN
from ipygpumem.notebook.commands.free import FREE
from ipygpumem.notebook.commands.history import HISTORY
from ipygpumem.notebook.commands.monitor import MONITOR
from ipygpumem.notebook.commands.processes import PROCESSES
from ipygpumem.notebook.commands.ranks import RANKS
from ipygpumem.notebook.commands.record import RECORD_COMMAND
from ipygpumem.notebook.commands.switch import OFF, ON
from ipygpumem.notebook.commands.view import VIEW
from ipygpumem.notebook.commands.who import WHO

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
