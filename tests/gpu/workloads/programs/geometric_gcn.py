"""A graph convolution network from torch-geometric: training, then evaluation of all nodes.

Evaluation is measured: the messages along 400,000 edges in the first, wide layer use the most memory.
"""

REQUIRES = ("torch_geometric",)
ANSWER = {"lines": "self.first(", "peak": "self.first(", "modules": "first*", "who": "graph"}

# %%
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.manual_seed(0)
nodes, edges, width = (20_000, 400_000, 512) if large else (200, 2000, 32)


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = GCNConv(64, width)
        self.second = GCNConv(width, 8)

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).relu()
        return self.second(x, edge_index)


graph = Data(
    x=torch.randn(nodes, 64), edge_index=torch.randint(0, nodes, (2, edges)), y=torch.randint(0, 8, (nodes,))
).to(device)
model = Network().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
result = []

# %%
for _ in range(2):
    loss = torch.nn.functional.cross_entropy(model(graph.x, graph.edge_index), graph.y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    result.append(loss.item())
del loss

# %% measured
with torch.no_grad():
    accuracy = (model(graph.x, graph.edge_index).argmax(1) == graph.y).float().mean().item()
result.append(accuracy)
