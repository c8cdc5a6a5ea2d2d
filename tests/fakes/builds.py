"""Differences between versions and builds of PyTorch; tests pass with all supported ones."""

import gzip
import inspect
import json

import pytest
import torch

NO_GPU = "torch finds no NVIDIA GPU" if torch.version.cuda else f"torch {torch.__version__} was built without CUDA"
"""The package's reason why it monitors no GPU."""

needs_skip_actions = pytest.mark.skipif(
    "skip_actions" not in inspect.signature(torch.cuda.memory._record_memory_history).parameters,
    reason="recordings without some actions (skip_actions) need PyTorch 2.11",
)

needs_metadata = pytest.mark.skipif(
    not hasattr(torch.cuda.memory, "_set_memory_metadata"), reason="PyTorch 2.10 added user metadata"
)

SAVED_TENSORS_ARE_READABLE = hasattr(torch._C._autograd.SavedTensor, "data")

needs_saved_tensors = pytest.mark.skipif(
    not SAVED_TENSORS_ARE_READABLE,
    reason="old versions of PyTorch, such as 2.4, do not show which tensors autograd has saved (SavedTensor.data)",
)


def trace_of_profiler(path):
    """Read a trace that PyTorch wrote. PyTorch 2.4 sometimes writes invalid characters in names of functions."""
    data = path.read_bytes()
    return json.loads((gzip.decompress(data) if path.suffix == ".gz" else data).decode(errors="replace"), strict=False)
