"""Tensors on the fake device: CPU tensors that report another device and whose deletion frees a block.

Supports ``torch.ones/zeros/full/empty(..., device="cuda")``, ``.to("cuda")``, ``.cuda()``, ``.cpu()`` and a matmul.
Large tensors are expanded from one element, so that they need almost no host memory.
"""

from __future__ import annotations

import math
import weakref

import numpy as np
import torch
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _disable_current_modes

_MAX_COPIED = 1 << 20


class FakeTensor(torch.Tensor):
    """A tensor or view on the device with index ``_index`` of the machine ``_gpu``."""

    _index = 0

    @property
    def device(self):
        return torch.device("cuda", self._index)

    @property
    def is_cuda(self):
        return True

    def to(self, *arguments, **options):
        device = options.get("device", arguments[0] if arguments else None)
        if isinstance(device, (str, torch.device)) and torch.device(device).type == "cpu":
            return self.cpu()
        return self

    def copy_(self, source, non_blocking=False):
        return self if 0 in self.stride() else super().copy_(source, non_blocking)  # a large, expanded tensor

    def cpu(self):
        return self.as_subclass(torch.Tensor)

    def __matmul__(self, other):
        _first_matmul(self._gpu, self._index)
        return self.as_subclass(torch.Tensor) @ other.as_subclass(torch.Tensor)


def _first_matmul(gpu, index):
    from fakes.cuda import KERNELS, WORKSPACE

    device = gpu.devices[index]
    if not device.warm:
        device.warm = True
        gpu.outside(KERNELS, index)
        gpu.alloc(WORKSPACE, index)


def _move(gpu, cpu_tensor, index):
    block = gpu.alloc(max(1, cpu_tensor.numel() * cpu_tensor.element_size()), index)
    # As in PyTorch, the block is freed with the data of the storage, which views keep alive. The object of the storage
    # can exist longer, for example while there is a StorageWeakRef in PyTorch 2.4. An array is deleted with the data.
    source = cpu_tensor.untyped_storage()
    data = np.zeros(source.nbytes(), np.uint8)
    storage = torch.from_numpy(data).untyped_storage()
    storage.copy_(source, non_blocking=False)
    with torch.no_grad():
        cpu_tensor.data = cpu_tensor.data.new_empty(0).set_(
            storage, cpu_tensor.storage_offset(), cpu_tensor.shape, cpu_tensor.stride()
        )
    gpu.storages[storage._cdata] = (index, block)
    weakref.finalize(data, _free, gpu, storage._cdata)
    with _disable_current_modes():  # with PyTorch 2.4, the result of a dispatch mode cannot become a subclass
        tensor = cpu_tensor.as_subclass(FakeTensor)
    tensor._gpu, tensor._index = gpu, index
    return tensor


def _free(gpu, storage):
    _, block = gpu.storages.pop(storage)
    gpu.free(block)


def _attribute(gpu, name, fake):
    """Return a replacement for a method or property of storages that calls ``fake`` on the fake device."""
    real = getattr(torch.UntypedStorage, name)

    def replacement(self):
        location = gpu.storages.get(self._cdata)
        if location is not None:
            return fake(*location)
        return real(self) if callable(real) else real.__get__(self)

    return replacement if callable(real) else property(replacement)


def _copy(cpu_tensor):
    """Copy a tensor; large tensors are expanded from one element."""
    return (
        cpu_tensor.clone() if cpu_tensor.numel() < _MAX_COPIED else cpu_tensor.new_zeros((1,)).expand(cpu_tensor.shape)
    )


def _index(gpu, device):
    device = torch.device(device)
    if device.type != "cuda":
        return None
    return gpu.current if device.index is None else device.index


def replacements(gpu):
    """Return a tuple ``(owner, name, value)`` for each attribute that `FakeGpu.install` replaces."""

    def factory(name):
        original = getattr(torch, name)

        def make(*size, device=None, **options):
            index = None if device is None else _index(gpu, device)
            if index is None:
                return original(*size, **options) if device is None else original(*size, device=device, **options)
            shape, *fill = size if name == "full" or isinstance(size[0], (tuple, list)) else (size,)
            if name != "empty":
                gpu.load_fill_kernel(index)
            value = original((1,), *fill, **options)
            return _move(gpu, value.expand(tuple(shape)) if math.prod(shape) else original((0,), **options), index)

        return make

    def to(self, *arguments, **options):
        device = options.get("device", arguments[0] if arguments else None)
        index = _index(gpu, device) if isinstance(device, (str, torch.device)) else None
        return plain_to(self, *arguments, **options) if index is None else _move(gpu, _copy(self), index)

    def cuda(self, device="cuda"):
        return _move(gpu, _copy(self), _index(gpu, device))

    plain_to = torch.Tensor.to
    # PyTorch stores these functions at the first use of `torch.device` as a context, which would then have no effect on
    # the original functions in later tests
    _device_constructors()
    return [
        *((torch, name, factory(name)) for name in ("ones", "zeros", "full", "empty")),
        (torch.Tensor, "to", to),
        (torch.Tensor, "cuda", cuda),
        (
            torch.UntypedStorage,
            "device",
            _attribute(gpu, "device", lambda index, _: torch.device("cuda", index)),
        ),
        (torch.UntypedStorage, "data_ptr", _attribute(gpu, "data_ptr", lambda _, block: block.address)),
        (torch.UntypedStorage, "nbytes", _attribute(gpu, "nbytes", lambda _, block: block.requested)),
    ]
