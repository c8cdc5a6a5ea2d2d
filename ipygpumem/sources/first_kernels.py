"""Run common kernels before the first measurement, so that the memory for these kernels is not attributed to a cell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipygpumem.core.errors import first_line

_SIZE = 64  # size of the square matrices, large enough that PyTorch selects the same kernels as for typical models


def run_first_kernels(torch: Any, index: int) -> str:
    """Run float32 and bfloat16 matmul, softmax, layer norm, a reduction, relu and copies on one device.

    Autocast, function modes and dispatch modes are disabled, and random number generators and gradients do not change.
    All tensors are freed, but the cuBLAS workspace remains allocated. Returns the names and errors of failed operations
    (for example, of bfloat16 on an old GPU) as text, which is empty if no operation failed.
    """
    failures = []
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
        for name, operation in _operations(torch, device).items():
            try:
                operation()
            except Exception as error:
                failures.append(f"{name} ({first_line(error)})")
        torch.cuda.synchronize(device)
    return ", ".join(failures)


def _operations(torch: Any, device: Any) -> dict[str, Callable[[], Any]]:
    def square(dtype: Any) -> Any:
        return torch.full((_SIZE, _SIZE), 0.5, dtype=dtype, device=device)

    return {
        "float32 matmul": lambda: square(torch.float32) @ square(torch.float32),
        "bfloat16 matmul": lambda: square(torch.bfloat16) @ square(torch.bfloat16),
        "softmax": lambda: torch.softmax(square(torch.float32), dim=-1),
        "layer norm": lambda: torch.nn.functional.layer_norm(square(torch.float32), (_SIZE,)),
        "sum": lambda: square(torch.float32).sum().item(),
        "relu": lambda: torch.relu(square(torch.float32)),
        "copy": lambda: square(torch.float32).cpu().to(device),
    }
