"""Inference in four threads that share a model, as in a server.

The combined outputs hold the most memory.
"""

VARIES = {"counters": "the threads overlap differently in each run"}
ANSWER = {"lines": "torch.cat(outputs)", "who": "combined"}

# %%
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
width = 2048 if device == "cuda" else 64
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, width)).to(device).eval()
requests = torch.randn(8, 8192 if device == "cuda" else 256, 64, device=device)
result = []


def infer(request):
    with torch.inference_mode():
        return model(request)


# %% measured
with ThreadPoolExecutor(4) as pool:
    outputs = list(pool.map(infer, requests))
combined = torch.cat(outputs)
del outputs
result.append(combined.sum().item())
