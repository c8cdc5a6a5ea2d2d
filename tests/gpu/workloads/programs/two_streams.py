"""Matrix products on two streams, synchronized by events, with tensors that cross streams.

The list of the results holds the most memory.
"""

CUDA = True
MODEL = None
ANSWER = {"lines": "outputs.append(", "peak": "outputs.append(", "who": "outputs"}

# %%
import torch

torch.manual_seed(0)
left, right = torch.randn(2, 1024, 1024, device="cuda")
streams = [torch.cuda.Stream(), torch.cuda.Stream()]
result, outputs = [], []

# %% measured
outputs.clear()
torch.cuda.synchronize()
for step in range(16):
    stream = streams[step % 2]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        outputs.append((left @ right).repeat(8, 1))
    ready = stream.record_event()
    torch.cuda.current_stream().wait_event(ready)
    outputs[-1].record_stream(torch.cuda.current_stream())
    result.append(outputs[-1][0, :4].sum())
torch.cuda.synchronize()
result = [float(value) for value in result]
