"""Training a compiled model, by inductor on a GPU.

The hidden layer of the model is the largest consumer at the peak, and the optimizer state at the end.
"""

ANSWER = {"lines": "loss.backward()|model(inputs)", "who": "optimizer"}

# %%
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
rows, width = (8192, 4096) if device == "cuda" else (16, 64)
model = nn.Sequential(nn.Linear(256, width), nn.GELU(), nn.LayerNorm(width), nn.Linear(width, 16)).to(device)
model.compile(backend="inductor" if device == "cuda" else "aot_eager")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
inputs = torch.randn(rows, 256, device=device)
result = []


# %%
def train_step():
    loss = model(inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


train_step()

# %% measured
for _ in range(3):
    result.append(train_step())
