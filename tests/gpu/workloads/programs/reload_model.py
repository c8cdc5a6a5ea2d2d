"""Saving a model, deleting it, and loading it again.

While the weights are loaded, two copies of them are on the device.
"""

ANSWER = {"lines": "torch.load(", "peak": "torch.load(|build()", "who": "model"}

# %%
import gc
import io

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
width = 2048 if device == "cuda" else 64


def build():
    return nn.Sequential(*[nn.Linear(width, width) for _ in range(4)]).to(device)


model = build()
inputs = torch.randn(8, width, device=device)
result = []

# %% measured
with torch.no_grad():
    result.append(model(inputs).sum().item())
buffer = io.BytesIO()
torch.save(model.state_dict(), buffer)
del model
gc.collect()
if device == "cuda":
    torch.cuda.empty_cache()
buffer.seek(0)
model = build()
weights = torch.load(buffer, map_location=device)
model.load_state_dict(weights)
del weights
with torch.no_grad():
    result.append(model(inputs).sum().item())
result[-1] == result[-2]
