"""Weight-only quantization to 8 bits with torchao, before and after inference.

The activations of the wide layers are the largest consumer at the peak, and the quantized model at the end.
"""

REQUIRES = ("torchao",)
ANSWER = {"lines": "model(inputs)|quantize_(", "modules": "0|2", "who": "model"}

# %%
import torch
from torch import nn
from torchao.quantization import Int8WeightOnlyConfig, quantize_

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
width = 4096 if device == "cuda" else 256
model = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width)).to(device).eval()
inputs = torch.randn(8, width, device=device)
result = []

# %% measured once
with torch.no_grad():
    result.append(model(inputs).sum().item())
quantize_(model, Int8WeightOnlyConfig())
with torch.no_grad():
    result.append(model(inputs).sum().item())
