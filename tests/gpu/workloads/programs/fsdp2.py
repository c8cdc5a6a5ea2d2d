"""FSDP2 in two processes: the parameters are sharded, and gathered for each layer.

Each process holds half of the optimizer state, which is the largest at the end.
"""

GPUS = 2
RANKS = 2
ANSWER = {"lines": "loss.backward()|optimizer.step()", "modules": "2", "who": "optimizer"}

# %%
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

large = torch.cuda.is_available()
rank = int(os.environ["RANK"])
device = torch.device("cuda", rank) if large else torch.device("cpu")
dist.init_process_group("nccl" if large else "gloo", device_id=device if large else None)
torch.manual_seed(0)
width = 4096 if large else 64
model = nn.Sequential(nn.Linear(256, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 16))
model.to(device)
for layer in (*model, model):
    fully_shard(layer)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
torch.manual_seed(rank)
inputs = torch.randn(256 if large else 8, 256, device=device)
result = []


# %%
def train_step():
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


# %% measured
for _ in range(3):
    result.append(train_step())
