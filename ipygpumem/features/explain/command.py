"""The command ``%gpumem explain``."""

from __future__ import annotations

from typing import Any

from ipygpumem.features.commands.command import result_command


def _explain(device: list[str] | None) -> Any:
    from ipygpumem.features.explain.collect import explain

    return explain(device=device)


EXPLAIN = result_command(
    "explain",
    "explain why nvidia-smi shows more memory than torch.cuda.memory_allocated(), with advice",
    "the explanation",
    _explain,
)
