"""A classifier trained with accelerate: mixed precision and gradient accumulation.

The output of the wide activation function is saved for the backward pass.
"""

REQUIRES = ("accelerate",)
ANSWER = {
    "lines": "accelerator.backward(loss)",
    "peak": "model(inputs)|accelerator.backward(loss)",
    "modules": "1",
    "who": "inputs|data",
}

# %%
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
accelerator = Accelerator(mixed_precision="bf16" if torch.cuda.is_available() else "no", gradient_accumulation_steps=2)
rows, width = (16384, 8192) if torch.cuda.is_available() else (512, 64)
data = TensorDataset(torch.randn(4 * rows, 256), torch.randint(0, 10, (4 * rows,)))
model = nn.Sequential(nn.Linear(256, width), nn.Sigmoid(), nn.Linear(width, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=rows, shuffle=True))
result = []

# %% measured
for inputs, labels in loader:
    with accelerator.accumulate(model):
        loss = nn.functional.cross_entropy(model(inputs), labels)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        result.append(accelerator.gather(loss.detach()).item())
