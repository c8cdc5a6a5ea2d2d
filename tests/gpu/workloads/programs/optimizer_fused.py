"""AdamW with ``fused=True`` on a model with one large layer.

The step needs no temporary tensors, so gradients and optimizer state are the largest.
"""

ANSWER = {
    "lines": "loss.backward()|optimizer.step()",
    "peak": "optimizer.step()",
    "modules": "large",
    "kind": "optimizer state",
    "who": "optimizer",
}

# %%
from collections import OrderedDict

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
width = 4096 if device == "cuda" else 128
model = nn.Sequential(OrderedDict(small=nn.Linear(64, width), gelu=nn.GELU(), large=nn.Linear(width, width))).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
inputs = torch.randn(16, 64, device=device)
result = []


# %%
def train_step():
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


# %% measured
for _ in range(5):
    result.append(train_step())
