"""Tensors on the fake device: CPU tensors that say they are elsewhere and whose death frees a block.

Enough for ``torch.ones/zeros/full/empty(..., device="cuda")``, ``.to("cuda")``, ``.cuda()``, ``.cpu()`` and a matmul.
The numbers lie once in main memory however large the tensor says it is.
"""

from __future__ import annotations

import math
import weakref

import torch

_LITTLE = 1 << 20


class FakeTensor(torch.Tensor):
    """A tensor of the fake device; ``_gpu`` and ``_index`` say where, of its views as well."""

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


def _place(gpu, plain, index):
    block = gpu.alloc(max(1, plain.numel() * plain.element_size()), index)
    tensor = plain.as_subclass(FakeTensor)
    tensor._gpu, tensor._index = gpu, index
    # the block belongs to the storage, as in PyTorch: views keep it
    storage = plain.untyped_storage()
    gpu.storages[storage._cdata] = (index, block)
    weakref.finalize(storage, _gone, gpu, storage._cdata)
    return tensor


def _gone(gpu, storage):
    _, block = gpu.storages.pop(storage)
    gpu.free(block)


def _of_storage(gpu, name, fake):
    """What a storage says of itself, on the fake device or on the real one."""
    real = getattr(torch.UntypedStorage, name)

    def answer(self):
        place = gpu.storages.get(self._cdata)
        if place is not None:
            return fake(*place)
        return real(self) if callable(real) else real.__get__(self)

    return answer if callable(real) else property(answer)


def _copy(plain):
    """A storage of its own; once for every element only where that is little."""
    return plain.clone() if plain.numel() < _LITTLE else plain.new_zeros((1,)).expand(plain.shape)


def _index(gpu, device):
    device = torch.device(device)
    if device.type != "cuda":
        return None
    return gpu.current if device.index is None else device.index


def replacements(gpu):
    """(owner, name, value) for `FakeGpu.install`."""

    def factory(name):
        original = getattr(torch, name)

        def make(*size, device=None, **options):
            index = None if device is None else _index(gpu, device)
            if index is None:
                return original(*size, **options) if device is None else original(*size, device=device, **options)
            shape, *fill = size if name == "full" or isinstance(size[0], (tuple, list)) else (size,)
            value = original((1,), *fill, **options)
            return _place(gpu, value.expand(tuple(shape)) if math.prod(shape) else original((0,), **options), index)

        return make

    def to(self, *arguments, **options):
        device = options.get("device", arguments[0] if arguments else None)
        index = _index(gpu, device) if isinstance(device, (str, torch.device)) else None
        return plain_to(self, *arguments, **options) if index is None else _place(gpu, _copy(self), index)

    def cuda(self, device="cuda"):
        return _place(gpu, _copy(self), _index(gpu, device))

    plain_to = torch.Tensor.to
    return [
        *((torch, name, factory(name)) for name in ("ones", "zeros", "full", "empty")),
        (torch.Tensor, "to", to),
        (torch.Tensor, "cuda", cuda),
        (torch.UntypedStorage, "device", _of_storage(gpu, "device", lambda index, _: torch.device("cuda", index))),
        (torch.UntypedStorage, "data_ptr", _of_storage(gpu, "data_ptr", lambda _, block: block.address)),
        (torch.UntypedStorage, "nbytes", _of_storage(gpu, "nbytes", lambda _, block: block.requested)),
    ]
