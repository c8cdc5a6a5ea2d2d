"""A convolutional network with batch normalization in half precision, with GradScaler.

The images are larger than the model; at the peak, the outputs of the layers at full resolution are the largest.
"""

ANSWER = {
    "lines": "scaler.scale(loss).backward()",
    "peak": "model(images)|backward()",
    "modules": "0|1",
    "who": "images",
}

# %%
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
dtype = torch.float16 if device == "cuda" else torch.bfloat16
model = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1, bias=False),
    nn.BatchNorm2d(64),
    nn.ReLU(inplace=True),
    nn.MaxPool2d(4),
    nn.Conv2d(64, 64, 3, padding=1),
    nn.ReLU(inplace=True),
    nn.AdaptiveAvgPool2d(1),
    nn.Flatten(),
    nn.Linear(64, 10),
).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
scaler = torch.amp.GradScaler(device)
images = torch.randn(64 if device == "cuda" else 8, 3, 128, 128, device=device)
labels = torch.randint(0, 10, (len(images),), device=device)
result = []

# %% measured
for _ in range(3):
    with torch.autocast(device, dtype=dtype):
        loss = nn.functional.cross_entropy(model(images), labels)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    result.append([loss.item(), scaler.get_scale()])
    del loss
