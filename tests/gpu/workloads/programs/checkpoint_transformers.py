"""Gradient checkpointing of a Llama model, as transformers enables it (non-reentrant, stopping early).

The recomputation of a block is stopped by an exception that PyTorch raises and catches.
"""

REQUIRES = ("transformers",)
ANSWER = {"lines": "loss.backward()", "modules": "model.layers.*.mlp*", "kind": "optimizer state", "who": "optimizer"}

# %%
import torch
from transformers import LlamaConfig, LlamaForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=512,
    hidden_size=512 if large else 64,
    intermediate_size=4096 if large else 128,
    num_hidden_layers=6 if large else 2,
    num_attention_heads=8 if large else 2,
)
model = LlamaForCausalLM(config).to(device)
model.gradient_checkpointing_enable()
model.train()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
ids = torch.randint(0, 512, (8 if large else 2, 512 if large else 32), device=device)
result = []

# %% measured
for _ in range(3):
    loss = model(input_ids=ids, labels=ids, use_cache=False).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    result.append(loss.item())
    del loss
