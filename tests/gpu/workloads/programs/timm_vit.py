"""A vision transformer from timm, trained on random images.

The activations of the MLPs are the largest at the peak; at the end, the optimizer state is.
"""

REQUIRES = ("timm",)
ANSWER = {
    "lines": "loss.backward()",
    "peak": "model(images)",
    "modules": "blocks.*.mlp.*",
    "kind": "activations",
    "who": "optimizer",
}

# %%
import timm
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
size = 224 if device == "cuda" else 32
model = timm.create_model("vit_tiny_patch16_224", num_classes=10, img_size=size).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
images = torch.randn(32 if device == "cuda" else 2, 3, size, size, device=device)
labels = torch.randint(0, 10, (len(images),), device=device)
result = []


# %%
def train_step():
    loss = torch.nn.functional.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


# %% measured
for _ in range(3):
    result.append(train_step())
result[-1]
