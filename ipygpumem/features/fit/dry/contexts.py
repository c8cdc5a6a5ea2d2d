"""Context managers that apply changes to a step while it runs on fake tensors, to predict their effect."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from typing import Any

from ipygpumem.features.fit.advice.contexts import OFFLOADING, ContextManagerChange
from ipygpumem.features.fit.dry.storage_log import map_tensors


def _without_saved_data(runner: Any) -> Any:
    """Return a context manager in which tensors that autograd saves use no device memory until the backward pass."""
    torch = runner.torch

    def pack(tensor: Any) -> tuple[Any, ...]:
        return tensor.size(), tensor.dtype, "cpu" if tensor.is_meta else tensor.device

    def unpack(packed: tuple[Any, ...]) -> Any:
        size, dtype, device = packed
        return torch.empty(size, dtype=dtype, device=device)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


@contextlib.contextmanager
def _bf16_tensors(runner: Any) -> Iterator[None]:
    """Replace tensor arguments of operations with the results of `FakeDevice.bf16_copy`.

    The results of operations without tensor arguments are converted from float32 to bfloat16, except for scalars and
    if a data type is given.

    The tensors of the program, their gradients and the state of optimizers are not changed.
    """
    torch, device = runner.torch, runner.device
    base: Any = import_module("torch.overrides").TorchFunctionMode

    class Bf16CopiesMode(base):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            is_new = True

            def copy(tensor: Any) -> Any:
                nonlocal is_new
                is_new = False
                return device.bf16_copy(tensor)

            args, kwargs = map_tensors(torch, copy, (args, kwargs or {}))
            result = function(*args, **kwargs)
            if is_new and "dtype" not in kwargs and isinstance(result, torch.Tensor) and result.dim():
                return result.to(torch.bfloat16) if result.dtype == torch.float32 else result
            return result

    device.convert_to_bf16()
    with Bf16CopiesMode():
        yield


DRY_OFFLOADING = replace(OFFLOADING, manager=_without_saved_data)
BF16 = ContextManagerChange(
    "bf16 parameters",
    "precision",
    "model.to(torch.bfloat16)  # before the optimizer is created; also convert floating-point inputs",
    "rounds updates of parameters, which can change training",
    _bf16_tensors,
)
