"""A U-Net trained to predict noise, as diffusion models are.

The concatenation of the skip connection has twice the channels of all other tensors at full resolution.
"""

ANSWER = {"lines": "loss.backward()", "peak": "self.|model(", "modules": "", "kind": "activations", "who": "optimizer"}

# %%
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
size, channels = (128, 64) if device == "cuda" else (16, 8)


def block(inputs, outputs):
    return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.SiLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = block(4, channels)
        self.down = block(channels, 4 * channels)
        self.middle = block(4 * channels, 4 * channels)
        self.up = block(4 * channels, channels)
        self.decode = nn.Conv2d(2 * channels, 3, 3, padding=1)

    def forward(self, noisy, time):
        time = time.view(-1, 1, 1, 1).expand(-1, 1, *noisy.shape[2:])
        skip = self.encode(torch.cat([noisy, time], dim=1))
        x = self.middle(self.down(nn.functional.avg_pool2d(skip, 4)))
        x = nn.functional.interpolate(self.up(x), scale_factor=4)
        return self.decode(torch.cat([x, skip], dim=1))


model = UNet().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
images = torch.randn(16 if device == "cuda" else 2, 3, size, size, device=device)
result = []


# %%
def train_step():
    time = torch.rand(len(images), device=device)
    noise = torch.randn_like(images)
    share = time.view(-1, 1, 1, 1)
    loss = nn.functional.mse_loss(model((1 - share) * images + share * noise, time), noise)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()


# %% measured
for _ in range(3):
    result.append(train_step())
