"""The state that optimizer updates create in runs on fake tensors."""

from __future__ import annotations

from typing import Any

from ipygpumem.features.fit.optimizer_updates import optimizer_state, state_ids


class OptimizerStateTracker:
    """Finds the state that optimizer updates create. It replaces `OptimizerUpdateReplacer` in runs on fake tensors.

    Attributes:
        run: Empty, because updates of fake tensors need not be computed separately.
        skipped: False, because runs on fake tensors use no GPU memory.
    """

    skipped = False

    def __init__(self) -> None:
        self.run: set[str] = set()
        self._optimizers: dict[int, tuple[Any, set[int]]] = {}

    def prepare(self, optimizer: Any) -> None:
        """Add an optimizer whose state `states` returns."""
        self._optimizers[id(optimizer)] = optimizer, state_ids(optimizer)

    def states(self) -> dict[int, tuple[list[Any], list[Any]]]:
        """Return, by optimizer ID, two lists: the tensors of its state, and those that its first update created."""
        return {key: optimizer_state(optimizer, ids) for key, (optimizer, ids) in self._optimizers.items()}
