"""FlexAttention with a sliding window, without torch.compile.

Without a compiled kernel, the scores of all pairs of tokens are materialized.
"""

MODEL = None
VARIES = {
    "timeline: counters": "the same call under torch.profiler with profile_memory=True has a peak that is 32 MiB higher"
}
ANSWER = {"lines": "flex_attention(", "peak": "flex_attention(", "who": "query|key|value"}

# %%
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

device = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
length = 1024 if device == "cuda" else 128
query, key, value = (torch.randn(4, 8, length, 64, device=device) for _ in range(3))
result = []


def window(batch, head, i, j):
    return (i - j).abs() < 64


# %% measured
with torch.no_grad():
    mask = create_block_mask(window, None, None, length, length, device=device)
    attended = flex_attention(query, key, value, block_mask=mask)
    result.append(attended.sum().item())
del attended
