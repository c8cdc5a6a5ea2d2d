"""PyTorch's global hooks of modules: ours among those of others."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["HOOKS", "GlobalHooks"]


class GlobalHooks:
    """Our global hooks among those of others.

    torch.compile warns of global hooks, and what it compiles under them it compiles again once they are gone. Of ours
    it sees nothing: while it compiles they are not there.
    """

    _ASKED = "_has_any_global_hook"
    _TABLES = (
        "_global_backward_pre_hooks",
        "_global_backward_hooks",
        "_global_forward_hooks",
        "_global_forward_pre_hooks",
    )

    _OURS = ("_global_forward_pre_hooks", "_global_forward_hooks", "_global_forward_hooks_always_called")

    def __init__(self) -> None:
        self._ids: set[int] = set()
        self._theirs: Any = None
        self._compiler: Any = None
        self._hidden: list[tuple[Any, int, Any]] = []

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
        self._meet_compiler()
        return handles

    def remove(self, handles: list[Any]) -> None:
        """Take them back."""
        home: Any = sys.modules["torch.nn.modules.module"]
        for handle in handles:
            handle.remove()
            self._ids.discard(handle.id)
        if not self._ids and self._compiler is not None:
            self._compiler.remove_start_callback(self._hide)
            self._compiler.remove_end_callback(self._show)
            self._compiler = None
        if not self._ids and self._theirs is not None and getattr(home, self._ASKED) == self._any_other:
            setattr(home, self._ASKED, self._theirs)
            self._theirs = None

    def _meet_compiler(self) -> None:
        """Be told of compilations, where this torch tells of them and somebody has called torch.compile."""
        callbacks: Any = sys.modules.get("torch._dynamo.callback")
        handler: Any = getattr(callbacks, "callback_handler", None)
        if self._compiler is None and hasattr(handler, "remove_end_callback"):
            handler.register_start_callback(self._hide)
            handler.register_end_callback(self._show)
            self._compiler = handler

    def _hide(self, *_: Any) -> None:
        home: Any = sys.modules["torch.nn.modules.module"]
        for table in (getattr(home, name, {}) for name in self._OURS):
            self._hidden += [(table, key, table.pop(key)) for key in list(table) if key in self._ids]

    def _show(self, *_: Any) -> None:
        hidden, self._hidden = self._hidden, []
        for table, key, hook in hidden:
            if key in self._ids:
                table[key] = hook

    def _any_other(self) -> bool:
        home = sys.modules["torch.nn.modules.module"]
        return any(key not in self._ids for name in self._TABLES for key in getattr(home, name, ()))


HOOKS = GlobalHooks()
"""The process's one."""
