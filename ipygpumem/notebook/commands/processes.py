"""``%gpumem processes``: everybody on the cards, whose they are, and what they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.notebook import show
from ipygpumem.notebook.commands.command import Command
from ipygpumem.notebook.options import Option, parse
from ipygpumem.session.processes import processes

if TYPE_CHECKING:
    from ipygpumem.notebook.magics import GPUMem

__all__ = ["PROCESSES"]

_OPTIONS = (
    Option(("-d", "--device"), "DEVICE", "this device only (cuda:0, 0); may be repeated", many=True),
    Option(("-v", "--var"), "NAME", "store what was found in this variable"),
    Option(("-q", "--quiet"), None, "show nothing"),
    Option(("-o",), None, "return what was found"),
    Option(("-h", "--help"), None, "show this help"),
)


def _run(magics: GPUMem, rest: str) -> Any:
    words = parse("%gpumem processes", _OPTIONS, rest)
    found = processes(device=words.device)
    magics.cells.claim()
    if words.var is not None:
        magics.shell.user_ns[words.var] = found
    if not words.quiet:
        show.show_object(magics.shell, found)
    return found if words.o else None


PROCESSES = Command("processes", "everybody on the cards: whose they are, and what they run", _run, options=_OPTIONS)
