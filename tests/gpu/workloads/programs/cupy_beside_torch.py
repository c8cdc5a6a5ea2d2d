"""CuPy and PyTorch in the same process, sharing memory through DLPack.

The PyTorch tensor from which CuPy reads uses the most of PyTorch's memory. It is still allocated when the mean, which
requires a few kilobytes more, is computed.
"""

REQUIRES = ("cupy",)
CUDA = True
MODEL = None
VARIES = {
    "timeline: state": "torch.profiler imports torch._dynamo, which looks up the files of all modules; cupyx then "
    "imports SciPy, which adds a filter of warnings"
}
ANSWER = {"lines": ".double().mean()", "peak": "torch.sigmoid(tensor)", "who": "tensor"}

# %%
import cupy
import torch

torch.manual_seed(0)
tensor = torch.randn(8192, 4096, device="cuda")
result = []

# %% measured
shared = cupy.from_dlpack(torch.sigmoid(tensor))
rows = cupy.square(shared).sum(axis=1)
result.append(float(torch.from_dlpack(rows).double().mean()))
del shared, rows
