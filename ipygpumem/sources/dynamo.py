"""Exclude functions from compilation by torch.compile."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def without_dynamo(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a wrapper of a function. torch.compile compiles neither the wrapper nor the functions that it calls."""
    frames = _eval_frame()
    if frames is None:
        return function

    def wrapper(*arguments: Any, **options: Any) -> Any:
        callback = frames.set_eval_frame(None)
        try:
            return function(*arguments, **options)
        finally:
            frames.set_eval_frame(callback)

    wrapper._torchdynamo_disable = True  # type: ignore[attr-defined]
    skip_in_dynamo(wrapper)
    return wrapper


def skip_in_dynamo(function: Any) -> None:
    """Exclude a function, but not the functions that it calls, from compilation."""
    frames = _eval_frame()
    if hasattr(frames, "set_code_exec_strategy"):
        action = frames._FrameAction
        frames.set_code_exec_strategy(function.__code__, frames._FrameExecStrategy(action.SKIP, action.DEFAULT))
    elif hasattr(frames, "skip_code"):  # PyTorch 2.5 and earlier
        frames.skip_code(function.__code__)


def _eval_frame() -> Any:
    modules = getattr(sys.modules.get("torch"), "_C", None)
    return getattr(getattr(modules, "_dynamo", None), "eval_frame", None)
