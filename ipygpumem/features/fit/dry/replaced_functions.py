"""Replacements for functions of PyTorch in the current thread while code runs on fake tensors."""

from __future__ import annotations

import contextlib
import functools
import threading
import unittest.mock
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

_STORAGE_METHODS = ("__getitem__", "__setitem__", "copy_", "fill_", "resize_", "share_memory_")
"""Methods of storages that bypass PyTorch's dispatcher and would therefore access data of the program."""


class DataRequiredError(RuntimeError):
    """Raised when code performs an operation that requires data, or that is not supported on fake tensors."""

    suggestion = "remove this code from the step, or run without --dry"
    """The instruction at the end of the message to the user."""


class DisabledAutocastError(DataRequiredError):
    """Raised when code enters an autocast context that may be disabled only because there is no GPU."""

    suggestion = "create the context in the step"


@contextlib.contextmanager
def refused_access(torch: Any) -> Iterator[None]:
    """Raise `DataRequiredError` in calls that would save, swap or access the data of tensors."""
    storage, own_thread = torch.UntypedStorage, threading.get_ident()

    def call(function: Any, message: str, first: Any, *args: Any, **kwargs: Any) -> Any:
        is_fake = isinstance(first, storage) and first.device.type == "meta"
        if threading.get_ident() == own_thread and not is_fake:
            raise DataRequiredError(message)
        return function(first, *args, **kwargs)

    functions: list[tuple[Any, str, str]] = [
        (import_module("torch.serialization"), "_check_save_filelike", "saves tensors that have no data"),
        (torch.utils, "swap_tensors", "swaps tensors"),
    ]
    functions += [(storage, name, "accesses the storage of a tensor") for name in _STORAGE_METHODS]
    with contextlib.ExitStack() as stack:
        for owner, name, message in functions:
            function = functools.partial(call, getattr(owner, name), message)
            method = functools.partialmethod(function) if owner is storage else function
            stack.enter_context(unittest.mock.patch.object(owner, name, method))
        yield


@contextlib.contextmanager
def autocast_on_host(torch: Any) -> Iterator[None]:
    """Apply autocast contexts for CUDA to tensors in host memory.

    Contexts that were created earlier are changed when they are entered, and restored at the end. Entering such a
    context raises `DisabledAutocastError` if it is disabled, because PyTorch may have disabled it only because there is
    no GPU.
    """
    autocast: Any = import_module("torch.amp.autocast_mode").autocast
    create, enter, own_thread, earlier = autocast.__init__, autocast.__enter__, threading.get_ident(), []

    def create_on_host(self: Any, device_type: str, dtype: Any = None, *args: Any, **options: Any) -> None:
        if device_type == "cuda" and threading.get_ident() == own_thread:
            device_type, dtype = "cpu", torch.get_autocast_dtype("cuda") if dtype is None else dtype
        create(self, device_type, dtype, *args, **options)

    def enter_on_host(self: Any) -> Any:
        if self.device == "cuda" and threading.get_ident() == own_thread:
            if not self._enabled:
                problem = "enters a disabled autocast context that was created outside the step"
                raise DisabledAutocastError(f"{problem}; PyTorch may have disabled it because there is no GPU")
            self.device = "cpu"
            earlier.append(self)
        return enter(self)

    with (
        unittest.mock.patch.object(autocast, "__init__", create_on_host),
        unittest.mock.patch.object(autocast, "__enter__", enter_on_host),
    ):
        try:
            yield
        finally:
            for context in earlier:
                context.device = "cuda"


def grouped_copies(torch: Any, copy: Callable[[Any], Any]) -> Any:
    """Return a context manager in which optimizers group fake copies of tensors by device and data type."""
    owner, name = torch.optim.Optimizer, "_group_tensors_by_device_and_dtype"
    group, own_thread = getattr(owner, name), threading.get_ident()

    def group_copies(lists: Any, *args: Any, **options: Any) -> Any:
        if threading.get_ident() == own_thread:
            lists = [[copy(tensor) for tensor in tensors] for tensors in lists]
        return group(lists, *args, **options)

    return unittest.mock.patch.object(owner, name, staticmethod(group_copies))


def is_sparse(tensor: Any) -> bool:
    return str(tensor.layout).startswith("torch.sparse")


def refuse_sparse(tensor: Any) -> None:
    if is_sparse(tensor):
        raise DataRequiredError("uses a sparse tensor, whose memory usage cannot be estimated")
