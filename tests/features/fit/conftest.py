"""A fake GPU on which the storages of CPU tensors are allocated."""

from __future__ import annotations

import gc

import pytest
import torch
import torch._dynamo  # binds names of torch._C, which must happen before a fake device replaces them

from fakes.allocation_mode import AllocationMode
from ipygpumem.sources.storages import StorageInspector


@pytest.fixture
def allocations(fake_gpu, monkeypatch):
    torch.cuda.init()
    with AllocationMode(fake_gpu) as mode:
        monkeypatch.setattr(StorageInspector, "storage_locations", lambda _, *storage: mode.storage_locations(*storage))
        yield mode
    gc.collect()
