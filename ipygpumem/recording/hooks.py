"""PyTorch's global hooks of modules: ours among those of others."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["HOOKS", "GlobalHooks"]


class GlobalHooks:
    """Our global hooks among those of others. torch.compile warns of global hooks: not of ours, which it never sees."""

    _ASKED = "_has_any_global_hook"
    _TABLES = (
        "_global_backward_pre_hooks",
        "_global_backward_hooks",
        "_global_forward_hooks",
        "_global_forward_pre_hooks",
    )

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._theirs: Any = None

    def add(self, before: Any, after: Any) -> list[Any]:
        """Put two hooks in place; their handles take them back."""
        home: Any = sys.modules["torch.nn.modules.module"]
        handles = [
            home.register_module_forward_pre_hook(before),
            home.register_module_forward_hook(after, always_call=True),
        ]
        self._ids.update(handle.id for handle in handles)
        if self._theirs is None and hasattr(home, self._ASKED):
            self._theirs = getattr(home, self._ASKED)
            setattr(home, self._ASKED, self._any_other)
        return handles

    def remove(self, handles: list[Any]) -> None:
        """Take them back."""
        home: Any = sys.modules["torch.nn.modules.module"]
        for handle in handles:
            handle.remove()
            self._ids.discard(handle.id)
        if not self._ids and self._theirs is not None and getattr(home, self._ASKED) == self._any_other:
            setattr(home, self._ASKED, self._theirs)
            self._theirs = None

    def _any_other(self) -> bool:
        home = sys.modules["torch.nn.modules.module"]
        return any(key not in self._ids for name in self._TABLES for key in getattr(home, name, ()))


HOOKS = GlobalHooks()
"""The process's one."""
