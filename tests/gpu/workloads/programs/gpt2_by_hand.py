"""GPT-2 trained by hand: autocast to bfloat16, gradient clipping, learning rate schedule.

The loss is computed in float32 from the logits of 16,384 tokens, which outweighs the activations of the blocks.
"""

REQUIRES = ("transformers",)
ANSWER = {
    "lines": "loss.backward()",
    "peak": "model(ids",
    "modules": "",
    "kind": "activations",
    "who": "optimizer",
}

# %%
import torch
from transformers import GPT2Config, GPT2LMHeadModel

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.manual_seed(0)
config = GPT2Config(n_embd=512 if large else 64, n_layer=4, n_head=8, vocab_size=8192 if large else 256)
model = GPT2LMHeadModel(config).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=100)
ids = torch.randint(0, config.vocab_size, (16 if large else 2, 1024 if large else 64), device=device)
result = []


# %%
def train_step():
    with torch.autocast(device, dtype=torch.bfloat16):
        loss = model(ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    optimizer.zero_grad()
    result.append(loss.item())


# %% measured
for _ in range(3):
    train_step()
