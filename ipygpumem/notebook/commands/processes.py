"""``%gpumem processes``: everybody on the cards, whose they are, and what they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.notebook import show
from ipygpumem.notebook.commands.answer import answer, answer_options
from ipygpumem.notebook.commands.command import Command
from ipygpumem.notebook.options import parse
from ipygpumem.session.processes import processes

if TYPE_CHECKING:
    from ipygpumem.notebook.magics import GPUMem

__all__ = ["PROCESSES"]

_OPTIONS = answer_options("what was found")


def _run(magics: GPUMem, rest: str) -> Any:
    words = parse("%gpumem processes", _OPTIONS, rest)
    found = processes(device=words.device)
    return answer(magics, words, found, lambda: show.show_object(magics.shell, found))


PROCESSES = Command("processes", "everybody on the cards: whose they are, and what they run", _run, options=_OPTIONS)
