"""``%gpumem processes``: everybody on the cards, whose they are, and what they run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.commands.answer import answer, answer_options
from ipygpumem.commands.command import Command
from ipygpumem.features.processes.collect import processes
from ipygpumem.jupyter import display as show
from ipygpumem.jupyter.options import parse

if TYPE_CHECKING:
    from ipygpumem.jupyter.magics import GPUMem

__all__ = ["PROCESSES"]

_OPTIONS = answer_options("what was found")


def _run(magics: GPUMem, rest: str) -> Any:
    words = parse("%gpumem processes", _OPTIONS, rest)
    found = processes(device=words.device)
    return answer(magics, words, found, lambda: show.show_object(magics.shell, found))


PROCESSES = Command("processes", "everybody on the cards: whose they are, and what they run", _run, options=_OPTIONS)
