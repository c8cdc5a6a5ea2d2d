"""Nested non-reentrant checkpointing, and a stage that keeps random numbers for dropout.

The inner blocks are recomputed twice, and the hidden layer of one of them is the largest consumer.
"""

ANSWER = {"lines": "loss.backward()", "modules": "*hidden.*", "kind": "recomputed", "who": "model"}

# %%
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
rows, width = (8192, 1024) if device == "cuda" else (32, 64)


class Stage(nn.Module):
    def __init__(self, depth):
        super().__init__()
        inner = [Stage(depth - 1), Stage(depth - 1)] if depth else []
        self.inner = nn.ModuleList(inner)
        self.hidden = nn.Sequential(
            nn.Linear(width, 8 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(8 * width, width)
        )

    def forward(self, x):
        for stage in self.inner:
            x = checkpoint(stage, x, use_reentrant=False)
        return x + self.hidden(x)


model = Stage(1).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(rows, width, device=device)
result = []

# %% measured
for _ in range(3):
    loss = checkpoint(model, inputs, use_reentrant=False).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    result.append(loss.item())
    del loss
