"""Capture of a CUDA graph, and its replay with new inputs.

The hidden layer of the model, in the private pool of the graph, is the largest consumer.
"""

CUDA = True
ANSWER = {"lines": "model(static_input)", "modules": "0|1", "who": "static_input"}

# %%
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(512, 8192), nn.ReLU(), nn.Linear(8192, 16)).cuda().eval()
static_input = torch.randn(16384, 512, device="cuda")
batches = torch.randn(4, 1024, 512)
result = []


# %% measured
side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side), torch.no_grad():
    model(static_input)
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph), torch.no_grad():
    static_output = model(static_input)
for batch in batches:
    static_input[:1024].copy_(batch)
    graph.replay()
    result.append(static_output.sum().item())
