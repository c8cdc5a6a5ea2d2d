"""The first kernels that every model uses, run once, so that no cell of the user's is blamed for loading them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["warm"]

_SIDE = 64
"""Rows and columns: large enough for the kernels that real sizes get, small enough to cost nothing."""


def warm(torch: Any, index: int) -> str:
    """Run float32 and bfloat16 matmul, softmax, layer norm, a reduction, relu and copies on one device.

    Touches neither random state nor gradients, whatever defaults and modes the user has set, and leaves no tensor; what
    cuBLAS keeps as workspace in PyTorch's allocator stays. A step that fails (bfloat16 on an old card, deterministic
    algorithms without a workspace setting) is passed over.

    Returns:
        The steps that failed, as text; empty when all ran.
    """
    failed = []
    modes = torch.utils._python_dispatch._disable_current_modes() if _has_modes(torch) else torch.no_grad()
    with (
        modes,
        torch._C.DisableTorchFunction(),
        torch.no_grad(),
        torch.autocast("cuda", enabled=False),
        torch.cuda.device(index),
    ):
        device = torch.device("cuda", index)
        for name, step in _steps(torch, device).items():
            try:
                step()
            except Exception as error:
                failed.append(f"{name} ({first_line(error)})")
        torch.cuda.synchronize(device)
    return ", ".join(failed)


def _has_modes(torch: Any) -> bool:
    return hasattr(torch.utils._python_dispatch, "_disable_current_modes")


def _steps(torch: Any, device: Any) -> dict[str, Callable[[], Any]]:
    def square(dtype: Any) -> Any:
        return torch.full((_SIDE, _SIDE), 0.5, dtype=dtype, device=device)

    def multiply(dtype: Any) -> Any:
        left = square(dtype)
        return left @ left

    def normalise() -> Any:
        return torch.nn.functional.layer_norm(square(torch.float32), (_SIDE,))

    def round_trip() -> Any:
        return square(torch.float32).cpu().to(device)

    return {
        "matmul float32": lambda: multiply(torch.float32),
        "matmul bfloat16": lambda: multiply(torch.bfloat16),
        "softmax": lambda: torch.softmax(square(torch.float32), dim=-1),
        "layer norm": normalise,
        "sum": lambda: square(torch.float32).sum().item(),
        "relu": lambda: torch.relu(square(torch.float32)),
        "copy": round_trip,
    }
