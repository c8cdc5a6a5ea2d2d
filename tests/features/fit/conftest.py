"""A fake GPU on which the storages of CPU tensors are allocated."""

from __future__ import annotations

import gc

import pytest
import torch
import torch._dynamo  # binds names of torch._C, which must happen before a fake device replaces them

from fakes.allocation_mode import AllocationMode


@pytest.fixture
def allocations(fake_gpu):
    torch.cuda.init()
    with AllocationMode(fake_gpu) as mode:
        yield mode
    gc.collect()
