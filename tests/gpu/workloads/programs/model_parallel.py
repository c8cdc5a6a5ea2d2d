"""A model whose halves are on two GPUs, in one process.

The activations of the first half, on the first GPU, are the largest consumer.
"""

GPUS = 2
CUDA = True
ANSWER = {"lines": "loss.backward()", "modules": "first.0|first.2", "who": "optimizer"}

# %%
import torch
from torch import nn

torch.manual_seed(0)


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(1024, 16384), nn.Tanh(), nn.Linear(16384, 1024)).to("cuda:0")
        self.second = nn.Sequential(nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 16)).to("cuda:1")

    def forward(self, x):
        return self.second(self.first(x).to("cuda:1"))


model = Halves()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
inputs = torch.randn(2048, 1024, device="cuda:0")
result = []

# %% measured
for _ in range(3):
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    result.append(loss.item())
    del loss
