"""Cache of the results of operations on fake tensors, because PyTorch takes long to compute the shapes of results.

Many blocks of a model have the same shapes, and optimizers process hundreds of tensors in one operation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

_VALUES = {bool, int, float, str, type(None)}


class _NotCacheableError(Exception):
    """Raised if the result of an operation depends on more than shapes, data types and numbers."""


class OperationCache:
    """Runs operations on fake tensors, and creates the results of repeated operations without running them.

    An operation is repeated if its arguments have the same shapes, strides and data types, and the same numbers. Only
    operations of PyTorch whose results are new tensors or views of the first argument are cached.

    Args:
        torch: The module torch.
        tensor_class: The class ``FakeTensor``.
        mode: The fake tensor mode, which is active when `run` is called.
    """

    def __init__(self, torch: Any, tensor_class: Any, mode: Any) -> None:
        self._torch, self._tensor_class, self._mode = torch, tensor_class, mode
        self._results: dict[Any, list[tuple[Any, ...]]] = {}
        self._is_cacheable: dict[Any, bool] = {}
        self._described_kinds = {torch.dtype, torch.device, torch.layout, torch.memory_format}
        self._item = torch.ops.aten._local_scalar_dense.default

    def run(self, function: Any, kernel: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the result of the operation ``function``, which ``kernel`` computes if it is not cached.

        In-place operations on lists of tensors are not run: they neither allocate memory nor change shapes.
        """
        if function is self._item and getattr(args[0], "constant", None) is not None:
            with self._torch._C._DisableTorchDispatch():
                return args[0].constant.item()
        cacheable = self._is_cacheable.get(function)
        if cacheable is None:
            cacheable = self._is_cacheable[function] = _is_cacheable(self._torch, function)
        try:
            with self._torch._C.DisableTorchFunction():
                keys = [*self._keys(function, args, kwargs)] if cacheable else None
        except (_NotCacheableError, IndexError):  # lists of tensors can have different lengths
            keys = None
        if keys is None:
            return kernel(*args, **kwargs)
        if _is_foreach(function) and function._schema.is_mutable:
            return None  # the operation neither allocates memory nor changes shapes
        if not all(key in self._results for key in keys):
            result = kernel(*args, **kwargs)
            self._add(function, keys, args, result)
            return result
        base = args[0] if function.is_view else None
        results = [self._created(base, self._results[key]) for key in keys]
        if _is_foreach(function):
            return [result for (result,) in results]
        return results[0][0] if len(function._schema.returns) == 1 else tuple(results[0])

    def _add(self, function: Any, keys: list[Any], args: Any, result: Any) -> None:
        tensors = result if isinstance(result, (list, tuple)) else [result]
        described = [item for item in (self._described_result(function, tensor, args) for tensor in tensors) if item]
        if len(described) < len(tensors):
            return
        if len({tensor.untyped_storage()._cdata for tensor in tensors}) < len(tensors):
            return
        parts = [[item] for item in described] if _is_foreach(function) else [described]
        if len(parts) == len(keys):
            self._results.update(zip(keys, parts, strict=True))

    def _keys(self, function: Any, args: Any, kwargs: Any) -> Iterator[Any]:
        """Yield the key of an operation, or a key for each element of the lists that a foreach operation processes."""
        if not _is_foreach(function):
            yield self._key(function, args, kwargs)
            return
        lists = [isinstance(value, (list, tuple)) for value in args]
        for index in range(len(args[0])):
            elements = [value[index] if is_list else value for value, is_list in zip(args, lists, strict=True)]
            yield self._key(function, elements, kwargs)

    def _key(self, function: Any, args: Any, kwargs: Any) -> Any:
        torch = self._torch
        options = tuple((name, self._described(value)) for name, value in kwargs.items())
        state = torch.get_default_dtype(), torch.is_inference_mode_enabled()
        return function, self._described(args), options, state

    def _described(self, value: Any) -> Any:
        kind = type(value)
        if kind is self._tensor_class:
            if value.constant is not None or value.layout is not self._torch.strided or value.is_complex():
                raise _NotCacheableError
            return value.shape, value.stride(), value.storage_offset(), value.dtype, value.fake_device
        if kind is list or kind is tuple:
            return tuple([self._described(item) for item in value])
        if kind in _VALUES:
            return kind, value
        if kind not in self._described_kinds:
            raise _NotCacheableError
        return value

    def _described_result(self, function: Any, tensor: Any, args: Any) -> tuple[Any, ...] | None:
        """Return what `_created` needs to create a tensor with the same shape, or None if this is impossible."""
        if type(tensor) is not self._tensor_class or tensor.constant is not None:
            return None
        if tensor.layout is not self._torch.strided or tensor.is_complex() or tensor.requires_grad:
            return None
        size, stride, offset, dtype = tensor.size(), tensor.stride(), tensor.storage_offset(), tensor.dtype
        storage = tensor.untyped_storage()
        if function.is_view:
            if storage._cdata != args[0].untyped_storage()._cdata:
                return None
        else:
            extent = sum((length - 1) * step for length, step in zip(size, stride, strict=True)) + 1
            if offset or storage.nbytes() != (extent * tensor.element_size() if tensor.numel() else 0):
                return None
        return function.is_view, size, stride, offset, dtype, tensor.fake_device

    def _created(self, base: Any, described: list[tuple[Any, ...]]) -> list[Any]:
        torch, result = self._torch, []
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            for is_view, size, stride, offset, dtype, device in described:
                if is_view:
                    elements = torch.empty(0, dtype=dtype, device="meta")
                    elements.set_(base.untyped_storage(), offset, size, stride)
                else:
                    elements = torch.empty_strided(size, stride, dtype=dtype, device="meta")
                result.append(self._tensor_class(self._mode, elements, device))
        return result


def _is_foreach(function: Any) -> bool:
    return bool(function.__name__.startswith("_foreach_"))


def _is_cacheable(torch: Any, function: Any) -> bool:
    if not isinstance(function, torch._ops.OpOverload) or function.namespace != "aten":
        return False
    unsuitable = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.inplace_view}
    schema = function._schema
    if unsuitable.intersection(function.tags):
        return False
    if _is_foreach(function):
        return str(schema.arguments[0].type) == "List[Tensor]" and all(
            str(item.type) == "List[Tensor]" for item in schema.returns
        )
    if schema.is_mutable or any(str(item.type) != "Tensor" for item in schema.returns) or not schema.returns:
        return False
    aliases = [item for item in schema.returns if item.alias_info is not None]
    return not aliases or (function.is_view and len(schema.returns) == 1 and schema.arguments[0].alias_info is not None)
