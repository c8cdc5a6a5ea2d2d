"""Replace operations on fake tensors, so that they allocate the same memory as on a GPU.

Attention, dropout, recurrent networks and autocast save different tensors on the CPU than on a GPU. While
`cuda_kernels` is active, the current thread uses the operations that PyTorch selects for tensors on a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import math
import operator
import threading
import unittest.mock
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from ipygpumem.core.introspection import attempt
from ipygpumem.features.fit.dry.replaced_functions import autocast_on_host

_FLOAT32_OPERATIONS = (
    "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal", "rsqrt", "sinh", "tan", "pow", "softplus",
    "layer_norm", "native_layer_norm", "group_norm", "norm", "cosine_similarity", "nll_loss", "nll_loss2d",
    "nll_loss_nd", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss", "binary_cross_entropy_with_logits",
    "cdist", "renorm", "logsumexp", "prod", "softmax", "log_softmax", "cumprod", "cumsum", "sum",
)  # fmt: skip
"""Operations that autocast runs in float32 on a GPU (``aten/src/ATen/autocast_mode.h``)."""
_CONVERTING = {"prod", "softmax", "log_softmax", "cumprod", "cumsum", "sum"}
"""Operations in `_FLOAT32_OPERATIONS` for which autocast sets the ``dtype`` argument instead of casting the input.

``prod`` and ``sum`` allocate no converted copy. ``softmax`` and ``log_softmax`` allocate one unless the input is
float16, and ``cumsum`` and ``cumprod`` allocate one while they run (``impl_func_cum_ops`` in ATen).
"""
_DECOMPOSED = (
    "matmul", "native_batch_norm", "hardshrink", "softshrink", "one_hot", "multi_margin_loss",
    *(f"upsample_{kind}{dimensions}d" for kind in ("nearest", "linear", "bilinear", "bicubic", "trilinear")
      for dimensions in (1, 2, 3)),
    *(f"_upsample_nearest_exact{dimensions}d" for dimensions in (1, 2, 3)),
)  # fmt: skip
"""Operations that PyTorch's Python dispatcher must not decompose, because this would change their memory usage."""
_MAX_FLASH_HEAD = 256
_GATES = {0: 1, 1: 1, 2: 4, 3: 3}
"""Number of gates by cuDNN's RNN mode: RNN with ReLU, RNN with tanh, LSTM, and GRU."""
_LSTM = 2
_FLAGS = 3  # index of the first argument of recurrent networks after the input, the hidden state and the parameters


@contextlib.contextmanager
def cuda_kernels(torch: Any) -> Iterator[None]:
    """Use the operations for a GPU, and create tensors for the devices ``cuda`` and ``meta`` in host memory."""
    optimizers: Any = import_module("torch.optim.optimizer")
    foreach = optimizers._get_foreach_kernels_supported_devices
    own_thread = threading.get_ident()

    def is_step() -> bool:
        return threading.get_ident() == own_thread  # the patches must not affect other threads

    def supported_devices() -> list[str]:
        return [*foreach(), *(("cpu", "meta") if is_step() else ())]

    kernels = _gpu_kernels(torch)
    with contextlib.ExitStack() as stack:
        stack.enter_context(unittest.mock.patch.object(optimizers, foreach.__name__, supported_devices))
        stack.enter_context(autocast_on_host(torch))
        for operation, key, kernel in kernels:
            stack.callback(_set_kernel, operation, key, operation.py_kernels.get(key))
            _set_kernel(operation, key, kernel)
        stack.enter_context(import_module("torch._dispatch.python").enable_python_dispatcher())
        stack.enter_context(_device_mode(torch))
        yield


def _gpu_kernels(torch: Any) -> list[tuple[Any, Any, Any]]:
    """Return tuples of an operation, a dispatch key, and the Python kernel to set for them, or None to remove it."""
    aten, keys = torch.ops.aten, torch._C.DispatchKey
    composite = keys.CompositeImplicitAutograd
    resolve_key: Any = import_module("torch._ops").resolve_key
    loss = aten.cross_entropy_loss.default
    kernels: list[tuple[Any, Any, Any]] = [
        (aten.dropout.default, composite, _dropout(aten)),
        (aten.scaled_dot_product_attention.default, composite, _attention(torch)),
        (aten.lstm.input, composite, _recurrent(torch, _LSTM)),
        (aten.gru.input, composite, _recurrent(torch, 3)),
        (aten.rnn_relu.input, composite, _recurrent(torch, 0)),
        (aten.rnn_tanh.input, composite, _recurrent(torch, 1)),
        # on a GPU, autocast converts the inputs of the operations of which the loss consists
        (loss, keys.AutocastCPU, functools.partial(loss._op_dk, composite)),
    ]
    for packet in filter(None, (getattr(aten, name, None) for name in _DECOMPOSED)):
        overloads = [getattr(packet, overload) for overload in packet.overloads()]
        kernels += [(operation, key, None) for operation in overloads for key in (composite, keys.Autograd)]
    for name in _FLOAT32_OPERATIONS:
        packet = getattr(aten, name, None)
        for overload in () if packet is None else packet.overloads():
            operation = getattr(packet, overload)
            schema = operation._schema
            if not schema.is_mutable and str(schema.arguments[0].type) == "Tensor":
                key = resolve_key(operation, keys.AutogradCPU)
                kernels.append((operation, key, _in_float32(torch, operation, key)))
    return kernels


def _set_kernel(operation: Any, key: Any, kernel: Any) -> None:
    if kernel is None:
        operation.py_kernels.pop(key, None)
    else:
        operation.py_kernels[key] = kernel
    operation._dispatch_cache.clear()


def _device_mode(torch: Any) -> Any:
    """Return a PyTorch function mode that creates tensors for the devices ``cuda`` and ``meta`` in host memory."""
    overrides: Any = import_module("torch.overrides")
    cpu = torch.device("cpu")

    def on_host(value: Any) -> Any:
        if isinstance(value, torch.device):
            return cpu if value.type in {"cuda", "meta"} else value
        return cpu if isinstance(value, str) and value.split(":")[0] in {"cuda", "meta"} else value

    class HostDeviceMode(overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            name = getattr(function, "__name__", "")
            if name in {"cuda", "pin_memory"} and args and isinstance(args[0], torch.Tensor):
                return args[0]
            if name == "to" and len(args) > 1 and type(args[1]) is int:
                args = (args[0], cpu, *args[2:])
            options = {key: on_host(value) for key, value in (kwargs or {}).items() if key != "pin_memory"}
            return function(*map(on_host, args), **options)

    return HostDeviceMode()


def _in_float32(torch: Any, operation: Any, key: Any) -> Callable[..., Any]:
    """Return a kernel that computes in float32 if autocast is enabled, as on a GPU."""
    tree_map: Any = import_module("torch.utils._pytree").tree_map
    kernel = operation.py_kernels.get(key) or functools.partial(operation._op_dk, key)

    def convert(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype in {torch.float16, torch.bfloat16}:
            return value.to(torch.float32)
        return value

    name = operation._schema.name.partition("::")[2]
    converts = name in _CONVERTING and any(argument.name == "dtype" for argument in operation._schema.arguments)
    without_copy = {"softmax": torch.ops.aten._softmax, "log_softmax": torch.ops.aten._log_softmax}.get(name)

    def in_float32(*args: Any, **options: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            half = args[0].dtype == torch.float16
            if converts and without_copy is not None and half and args[2:] in {(), (None,), (torch.float16,)}:
                return without_copy(args[0], args[1], True)
            if converts and without_copy is None and args[0].is_floating_point() and options.get("dtype") is None:
                copy = args[0].detach().float() if name.startswith("cum") else None
                result = kernel(*args, **{**options, "dtype": torch.float32})
                del copy
                return result
            args, options = tree_map(convert, (args, options))
        return kernel(*args, **options)

    return in_float32


def _dropout(aten: Any) -> Callable[..., Any]:
    def dropout(x: Any, p: float, train: bool) -> Any:
        return aten.native_dropout(x, p, train)[0] if train and p > 0 and x.numel() else x.view_as(x)

    return dropout


def _attention(torch: Any) -> Callable[..., Any]:
    """Return an implementation of scaled dot product attention that calls the operations for a GPU."""
    aten = torch.ops.aten

    def attention(
        query: Any, key: Any, value: Any, attn_mask: Any = None, dropout_p: float = 0.0, *causal: bool, **options: Any
    ) -> Any:
        is_causal = causal[0] if causal else options.pop("is_causal", False)
        batched = query.dim() == len(("batch", "head", "position", "channel"))
        half = query.dtype in {torch.float16, torch.bfloat16}
        if batched and half and attn_mask is None and query.size(-1) <= _MAX_FLASH_HEAD:
            scale = options.get("scale")
            flash = aten._scaled_dot_product_flash_attention
            return flash(query, key, value, dropout_p, is_causal, False, scale=scale)[0]
        if not batched or options.get("enable_gqa") or not (half or query.dtype == torch.float32):
            math_attention = aten._scaled_dot_product_attention_math
            return math_attention(query, key, value, attn_mask, dropout_p, is_causal, **options)[0]
        if attn_mask is not None:
            if attn_mask.dtype == torch.bool:
                attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(attn_mask, -math.inf)
            attn_mask = attn_mask.expand(*query.shape[:-1], key.size(-2))
        saves = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value))
        efficient = aten._scaled_dot_product_efficient_attention
        arguments = (attn_mask, saves, dropout_p, is_causal)
        return efficient(query, key, value, *arguments, scale=options.get("scale"))[0]

    return attention


def _recurrent(torch: Any, mode: int) -> Callable[..., Any]:
    """Return an implementation of a recurrent network that calls the cuDNN operation. ``mode`` is cuDNN's RNN mode."""
    aten = torch.ops.aten

    def recurrent(x: Any, hx: Any, params: Any, has_biases: bool, num_layers: int, *options: Any) -> Any:
        dropout, train, bidirectional, batch_first = options
        hidden_state, cell = hx if mode == _LSTM else (hx, None)
        size = params[0].size(0) // _GATES[mode]
        projected = hidden_state.size(-1) if hidden_state.size(-1) != size else 0
        stride = 2 + 2 * has_biases + bool(projected)
        network: tuple[Any, ...] = (
            mode,
            size,
            projected,
            num_layers,
            batch_first,
            dropout,
            train,
            bidirectional,
            [],
            None,
        )
        result = aten._cudnn_rnn(x, params, stride, None, hidden_state, cell, *network)
        return result[:3] if mode == _LSTM else result[:2]

    return recurrent


def recurrent_on_gpu(torch: Any) -> Any:
    """Return a context manager in which recurrent networks on a GPU call the cuDNN operation directly.

    Otherwise, PyTorch would access the storages of the parameters before it calls an operation that can be replaced.
    """
    base: Any = import_module("torch.overrides").TorchFunctionMode
    tree_map: Any = import_module("torch.utils._pytree").tree_map
    functions = torch._C._VariableFunctions
    modes = {functions.rnn_relu: 0, functions.rnn_tanh: 1, functions.lstm: _LSTM, functions.gru: 3}

    class CudnnRecurrentMode(base):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            is_packed = len(args) <= _FLAGS or not isinstance(args[_FLAGS], bool)  # has another argument: batch sizes
            mode = None if is_packed else modes.get(function)
            if mode is None or not torch.backends.cudnn.is_acceptable(args[0]):
                return function(*args, **(kwargs or {}))
            if not torch.is_autocast_enabled("cuda"):
                return _recurrent(torch, mode)(*args)
            convert = operator.methodcaller("to", torch.get_autocast_dtype("cuda"))
            with torch.autocast("cuda", enabled=False):
                return _recurrent(torch, mode)(*tree_map(convert, args[:_FLAGS]), *args[_FLAGS:])

    return CudnnRecurrentMode()


def rnn_kernels(torch: Any) -> dict[Any, Callable[..., Any]]:
    """Return functions that replace the cuDNN operations of recurrent networks and allocate the same tensors."""
    aten = torch.ops.aten

    def forward(x: Any, weight: Any, _: int, buffer: Any, hx: Any, *others: Any) -> Any:
        cx, mode, size, projected, layers = others[:5]
        dropout, train, bidirectional = others[6:9]
        directions = 2 if bidirectional else 1
        output = x.new_empty(*x.shape[:-1], (projected or size) * directions)
        hidden = torch.empty_like(hx)
        cell = hx.new_empty(0) if cx is None else torch.empty_like(cx)
        # for each layer, the values of all gates, of the cell and its activation, and the input of the next layer
        values = layers * (_GATES[mode] + (2 if mode == _LSTM else 1)) + (layers - 1) * (1 + (dropout > 0))
        nbytes = math.prod(x.shape[:-1]) * directions * size * values * x.element_size()
        reserve = x.new_empty(nbytes if train else 0, dtype=torch.uint8)
        is_flat = len({tensor.untyped_storage()._cdata for tensor in weight}) == 1  # so that cuDNN need not copy it
        weights = x.new_empty(0 if is_flat else sum(map(torch.numel, weight))) if buffer is None else buffer
        return output, hidden, cell, reserve, weights

    def backward(x: Any, weight: Any, _: int, __: Any, hx: Any, *others: Any) -> Any:
        cx, mask = others[0], others[-1]
        inputs = (x, hx, cx)
        gradients = [
            torch.empty_like(tensor) if needs_gradient and tensor is not None else None
            for tensor, needs_gradient in zip(inputs, mask, strict=False)
        ]
        return *gradients, [torch.empty_like(tensor) if mask[-1] else None for tensor in weight]

    return {aten._cudnn_rnn.default: forward, aten._cudnn_rnn_backward.default: backward}


def convolution_workspace(torch: Any, y: Any, x: Any, weight: Any, _: Any, stride: Any, *options: Any) -> int:
    """Return the estimated size in bytes of the workspace that cuDNN uses for a convolution or its backward pass.

    Kernels for tensor cores convert contiguous tensors to the memory format ``channels_last``. Convolutions with a
    kernel size and stride of 1, and depthwise convolutions, need no conversion. ``options`` are the remaining arguments
    of ``aten.convolution``.
    """
    has_kernel, is_depthwise = max(*weight.shape[2:], *stride) > 1, 1 < options[4] == x.shape[1]
    tensor_cores = x.dtype != torch.float32 or attempt(lambda: torch.backends.cudnn.allow_tf32)
    if is_depthwise or not (has_kernel and tensor_cores and x.is_contiguous() and weight.is_contiguous()):
        return 0
    return sum(tensor.numel() * tensor.element_size() for tensor in (x, y, weight))
