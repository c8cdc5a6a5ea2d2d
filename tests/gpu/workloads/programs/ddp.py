"""DistributedDataParallel in two processes, with one GPU each.

The buckets of the gradients are as large as the parameters; the optimizer state is twice as large.
"""

GPUS = 2
RANKS = 2
ANSWER = {"lines": "loss.backward()|optimizer.step()", "modules": "module.2", "who": "optimizer"}

# %%
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

large = torch.cuda.is_available()
rank = int(os.environ["RANK"])
device = torch.device("cuda", rank) if large else torch.device("cpu")
dist.init_process_group("nccl" if large else "gloo", device_id=device if large else None)
torch.manual_seed(0)
width = 4096 if large else 64
model = nn.Sequential(nn.Linear(256, width), nn.GELU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, 16))
model.to(device)
model = DistributedDataParallel(model)
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
