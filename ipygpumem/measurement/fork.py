"""A forked child must not touch its parent's CUDA or NVML: in it, everything here is inert."""

from __future__ import annotations

import os

__all__ = ["inert", "register"]

_registered = False
_in_child = False


def _after_fork() -> None:
    global _in_child  # noqa: PLW0603 (the one fact that a fork changes)
    _in_child = True


def register() -> None:
    """Install the at-fork hook, once per process: Python has no way to take one back."""
    global _registered  # noqa: PLW0603 (once per process is what it says)
    if not _registered and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork)
        _registered = True


def inert() -> bool:
    """Whether this process was forked from one that measured."""
    return _in_child
