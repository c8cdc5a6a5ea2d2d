"""Kernels that most models use, run once at the start so that their loading is not attributed to a cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import first_line

if TYPE_CHECKING:
    from collections.abc import Callable

_SIZE = 64
"""Rows and columns: large enough for the kernels that real models use, small enough to cost nothing."""


def run_first_kernels(torch: Any, index: int) -> str:
    """Run float32 and bfloat16 matmul, softmax, layer norm, a reduction, relu and copies on one device.

    Independent of the user's defaults and modes; changes neither random state nor gradients and leaves no tensor. The
    workspace of cuBLAS stays allocated. Returns the steps that failed, for example bfloat16 on an old GPU, or
    deterministic algorithms without a workspace setting; empty if there are none.
    """
    failed = []
    dispatch = torch.utils._python_dispatch
    has_modes = hasattr(dispatch, "_disable_current_modes")
    with (
        dispatch._disable_current_modes() if has_modes else torch.no_grad(),
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


def _steps(torch: Any, device: Any) -> dict[str, Callable[[], Any]]:
    def square(dtype: Any) -> Any:
        return torch.full((_SIZE, _SIZE), 0.5, dtype=dtype, device=device)

    def multiply(dtype: Any) -> Any:
        matrix = square(dtype)
        return matrix @ matrix

    return {
        "matmul float32": lambda: multiply(torch.float32),
        "matmul bfloat16": lambda: multiply(torch.bfloat16),
        "softmax": lambda: torch.softmax(square(torch.float32), dim=-1),
        "layer norm": lambda: torch.nn.functional.layer_norm(square(torch.float32), (_SIZE,)),
        "sum": lambda: square(torch.float32).sum().item(),
        "relu": lambda: torch.relu(square(torch.float32)),
        "copy": lambda: square(torch.float32).cpu().to(device),
    }
