"""A dispatch mode that allocates a block of a fake GPU for each new storage of a CPU tensor.

::

    with AllocationMode(gpu):
        model = torch.nn.Linear(4, 4)  # the parameters are allocated on cuda:0

A block is freed when its storage is deleted.
"""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves


class AllocationMode(TorchDispatchMode):
    def __init__(self, gpu, device=0):
        super().__init__()
        self.gpu, self.device = gpu, device
        self.blocks = {}

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
        address = storage.data_ptr()
        if address in self.blocks or not storage.nbytes():
            return
        self.blocks[address] = self.gpu.alloc(storage.nbytes(), self.device)
        weakref.finalize(storage, self._free, address)

    @staticmethod
    def paused():
        """Return a context manager that disables the mode, because torch.compile cannot trace dispatch modes."""
        return _disable_current_modes()

    def _free(self, address):
        self.gpu.free(self.blocks.pop(address))

    def storage_locations(self, storage, address=None):
        """Return the locations as `ipygpumem.sources.storages.StorageInspector.storage_locations` does."""
        from ipygpumem.sources.storages import StorageLocation

        block = self.blocks.get(storage.data_ptr() if address is None else address)
        if block is None:
            return []
        return [StorageLocation(f"cuda:{self.device}", block.address, storage.nbytes(), storage._cdata)]
