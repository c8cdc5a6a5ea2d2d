"""``%gpumem explain``: why nvidia-smi's number is not PyTorch's, now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.commands.answer import answer, answer_options
from ipygpumem.commands.command import Command
from ipygpumem.features.explain.collect import explain
from ipygpumem.jupyter import display as show
from ipygpumem.jupyter.options import parse

if TYPE_CHECKING:
    from ipygpumem.jupyter.magics import GPUMem

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
