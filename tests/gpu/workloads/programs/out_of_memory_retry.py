"""A loop that halves the batch size until a training step fits into a limited memory.

A tensor that the notebook forgot holds half of the memory.
"""

CUDA = True
ANSWER = {"lines": "loss.backward()|model(inputs)", "modules": "0|1", "who": "forgotten"}

# %%
import torch
from torch import nn

torch.manual_seed(0)
torch.cuda.set_per_process_memory_fraction((3 << 30) / torch.cuda.get_device_properties(0).total_memory)
forgotten = torch.zeros(1536, 1 << 20, dtype=torch.uint8, device="cuda")
model = nn.Sequential(nn.Linear(256, 8192), nn.Sigmoid(), nn.Linear(8192, 16)).cuda()
result = []


# %%
def train_step(batch_size):
    inputs = torch.randn(batch_size, 256, device="cuda")
    loss = model(inputs).square().mean()
    loss.backward()
    model.zero_grad()
    return loss.item()


# %% measured
batch_size = 1 << 17
while True:
    try:
        result.append([batch_size, train_step(batch_size)])
        break
    except torch.cuda.OutOfMemoryError as error:
        print(type(error).__name__, batch_size)
    batch_size //= 2
