"""JAX and PyTorch in the same process, with arrays exchanged through NumPy.

PyTorch's weights hold the most memory; JAX's arrays are outside PyTorch.
"""

REQUIRES = ("jax",)
MODEL = None
ANSWER = {"lines": "torch.tanh(hidden @ weights)", "peak": "torch.tanh(hidden @ weights)", "who": "weights"}

# %%
import jax
import jax.numpy as jnp
import torch

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
width = 4096 if device == "cuda" else 64
weights = torch.randn(width, width, device=device) / width
inputs = torch.randn(width // 2, width, device=device)
result = []


@jax.jit
def energy(values):
    return jnp.mean(values**2)


# %% measured
hidden = torch.tanh(inputs @ weights)
hidden = torch.tanh(hidden @ weights)
array = jnp.asarray(hidden.cpu().numpy())
result.append(float(energy(array)))
result.append(float(jax.grad(energy)(array).sum()))
del hidden
