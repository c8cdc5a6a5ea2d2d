"""The words of ``%gpumem``, one module each."""

from __future__ import annotations

from ipygpumem.notebook.commands.command import Command, Verb
from ipygpumem.notebook.commands.free import FREE
from ipygpumem.notebook.commands.record import RECORD_COMMAND
from ipygpumem.notebook.commands.switch import OFF, ON
from ipygpumem.notebook.commands.view import VIEW
from ipygpumem.notebook.commands.who import WHO

__all__ = ["COMMANDS", "Command", "Verb", "command_of"]

COMMANDS = (ON, OFF, RECORD_COMMAND, WHO, FREE, VIEW)


def command_of(line: str) -> tuple[Command, str] | None:
    """A line that begins with a command's word, parted there; None for a statement."""
    first, _, rest = line.strip().partition(" ")
    command = next((one for one in COMMANDS if one.word == first), None)
    return None if command is None else (command, rest.strip())
