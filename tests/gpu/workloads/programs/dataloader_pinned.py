"""A DataLoader with two worker processes and pinned memory, and non-blocking copies to the device.

The images of the last batch hold the most memory at the end.
"""

ANSWER = {"lines": "loss.backward()", "peak": "model(images)|loss.backward()", "modules": "0|1", "who": "images"}

# %%
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
batch_size = 64 if device == "cuda" else 4


class Images(Dataset):
    def __len__(self):
        return 3 * batch_size

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        return torch.rand(3, 96, 96, generator=generator), index % 10


model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
result = []

# %% measured
loader = DataLoader(Images(), batch_size, shuffle=True, num_workers=2, pin_memory=device == "cuda")
for images, labels in loader:
    images, labels = images.to(device, non_blocking=True), labels.to(device, non_blocking=True)
    loss = nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    result.append(loss.item())
    del loss
