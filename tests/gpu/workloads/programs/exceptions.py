"""Exceptions in a custom autograd function, in hooks and in the forward pass, which end their cells.

The traceback of the last exception keeps the local variables of its frames, including a large batch.
"""

MODEL = None
RAISES = True
ANSWER = {"who": "last exception: *"}

# %%
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
rows = 1 << 16 if device == "cuda" else 1 << 10
weight = torch.randn(64, 64, device=device, requires_grad=True)
result = []


class Failing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        raise ValueError(f"no gradient for {tuple(x.shape)}")


# %% measured once


def step():
    return Failing.apply(weight).sum().backward()


step()

# %% measured once


def refuse(gradient):
    raise RuntimeError(f"the hook refuses a gradient of shape {tuple(gradient.shape)}")


def hooked():
    handle = weight.register_hook(refuse)
    try:
        (weight @ weight).sum().backward()
    finally:
        handle.remove()


hooked()

# %% measured once


class Network(nn.Module):
    def forward(self, x):
        if x.shape[1] != 3:
            raise ValueError(f"3 channels expected, not {x.shape[1]}") from KeyError("channels")
        return x


def train(count):
    batch = torch.zeros(count, 64, device=device)
    result.append(float(batch.sum()))
    return Network()(batch)


train(rows)
