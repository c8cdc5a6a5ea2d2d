"""CPU tensors whose storages count as blocks of the fake device: real modules, autograd and optimizers on a fake GPU.

::

    with Traffic(gpu):              # every storage that an operator makes from here on takes a block of cuda:0
        model = torch.nn.Linear(4, 4)

A storage's death frees its block at once. `Traffic.places` says where the storages lie, for `Types.memory`.
"""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves


class Traffic(TorchDispatchMode):
    def __init__(self, gpu, device=0):
        super().__init__()
        self.gpu, self.device = gpu, device
        self.places = {}

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "cpu":
                self.count(leaf)
        return result

    def count(self, tensor):
        if tensor.layout is not torch.strided:
            return
        storage = tensor.untyped_storage()
        key = storage.data_ptr()
        if key in self.places or not storage.nbytes():
            return
        block = self.gpu.alloc(storage.nbytes(), self.device)
        self.places[key] = block
        weakref.finalize(storage, self._free, key)

    @staticmethod
    def paused():
        """Nothing is counted: for the compiler, which traces no dispatch modes."""
        return _disable_current_modes()

    def _free(self, key):
        block = self.places.pop(key)
        self.gpu.free(block)

    def memory(self, storage, address=None):
        """As `ipygpumem.sources.storages.Types.memory`, by our own book."""
        from ipygpumem.sources.storages import Memory

        block = self.places.get(storage.data_ptr() if address is None else address)
        return [] if block is None else [Memory(f"cuda:{self.device}", block.address, storage.nbytes(), storage._cdata)]
