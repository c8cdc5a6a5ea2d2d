"""Differences between the CPU build and the CUDA build of PyTorch on a machine without a GPU; tests pass with both."""

import torch

NO_GPU = "torch finds no NVIDIA GPU" if torch.version.cuda else f"torch {torch.__version__} was built without CUDA"
"""The package's reason why it monitors no GPU."""
