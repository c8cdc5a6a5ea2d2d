"""The command ``%gpumem explain``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.features.commands.command import result_command

if TYPE_CHECKING:
    from ipygpumem.features.explain.collect import Explanation


def _explain(device: list[str] | None) -> Explanation:
    from ipygpumem.features.explain.collect import explain

    return explain(device=device)


EXPLAIN = result_command(
    "explain",
    "explain why nvidia-smi shows more memory than torch.cuda.memory_allocated(), with advice",
    "the explanation",
    _explain,
)
