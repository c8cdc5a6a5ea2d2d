"""Every notebook cell says where the GPU's memory went.

After ``%load_ext ipygpumem`` each cell that moves memory is followed by one line: PyTorch tensors, PyTorch's cache,
memory outside PyTorch, other processes. Nothing is imported before it is used.
"""

__version__ = "0.1.0"
