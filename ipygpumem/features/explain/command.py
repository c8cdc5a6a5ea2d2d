"""``%gpumem explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.features.commands.command import Command, result_options, show_result

if TYPE_CHECKING:
    import argparse

    from ipygpumem.features.commands.notebook import Notebook

__all__ = ["EXPLAIN"]


def _run(notebook: Notebook, arguments: argparse.Namespace) -> Any:
    from ipygpumem.features.explain.collect import explain

    explanation = explain(device=arguments.device)
    return show_result(notebook, arguments, explanation, lambda: notebook.show_object(explanation))


EXPLAIN = Command(
    "explain",
    "the difference between nvidia-smi and memory_allocated(), and what can be done about it",
    result_options("the explanation"),
    magic=_run,
)
