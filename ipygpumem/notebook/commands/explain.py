"""``%gpumem explain``: why nvidia-smi's number is not PyTorch's, now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.notebook import show
from ipygpumem.notebook.commands.answer import answer, answer_options
from ipygpumem.notebook.commands.command import Command
from ipygpumem.notebook.options import parse
from ipygpumem.session.explain import explain

if TYPE_CHECKING:
    from ipygpumem.notebook.magics import GPUMem

__all__ = ["EXPLAIN"]

_OPTIONS = answer_options("the explanation")


def _run(magics: GPUMem, rest: str) -> Any:
    words = parse("%gpumem explain", _OPTIONS, rest)
    found = explain(device=words.device)
    return answer(magics, words, found, lambda: show.show_object(magics.shell, found))


EXPLAIN = Command(
    "explain",
    "every byte between nvidia-smi's number and memory_allocated(), and what can be done",
    _run,
    options=_OPTIONS,
)
