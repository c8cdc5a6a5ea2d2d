"""Cells with await, displayed objects, warnings, log messages, a progress bar and output of subprocesses.

A dictionary of tensors holds the most memory.
"""

REQUIRES = ("pandas", "tqdm")
MODEL = None
ANSWER = {"lines": "squares[step] =", "peak": "squares[step] =", "who": "squares"}

# %%
import asyncio
import logging
import warnings

import pandas as pd
import torch
from IPython.display import HTML, display
from tqdm import tqdm

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
rows = 1 << 22 if device == "cuda" else 1 << 12
squares, result = {}, []
pd.DataFrame({"rows": [rows], "device": [device]})

# %% measured
await asyncio.sleep(0)
for step in tqdm(range(4)):
    squares[step] = torch.arange(rows, device=device, dtype=torch.float32) * step
    result.append(squares[step].sum().item())
warnings.warn("the scale of the inputs is unusual", stacklevel=1)
logging.getLogger("training").warning("step %d", step)
display(HTML("<b>trained</b>"), pd.DataFrame({"sum": result[:4]}))
squares[1][:3]

# %%
get_ipython().system("echo from a subprocess")

# %%
_

# %%
In[-1], len(Out) > 3
