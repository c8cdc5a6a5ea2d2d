"""Activation checkpointing of the reentrant kind, with dropout.

The recomputed activations of one block, and their gradients, are the largest consumers.
"""

ANSWER = {
    "lines": "loss.backward()",
    "peak": "self.down(|loss.backward()",
    "modules": "blocks.*",
    "kind": "recomputed|backward",
    "who": "model",
}

# %%
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
rows, width = (4096, 1024) if device == "cuda" else (32, 64)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(width, 8 * width), nn.Linear(8 * width, width)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.down(nn.functional.gelu(self.up(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=True)
        return x


model = Model().to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(rows, width, device=device, requires_grad=True)
result = []


# %%
def train_step():
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    result.append(loss.item())


# %% measured
for _ in range(3):
    train_step()
    inputs.grad = None
