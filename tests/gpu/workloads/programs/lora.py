"""LoRA adapters for GPT-2 with peft: the pretrained weights are frozen.

The logits are the largest consumer at the peak, and the frozen weights at the end.
"""

REQUIRES = ("transformers", "peft")
ANSWER = {
    "lines": "loss.backward()",
    "peak": "model(input_ids=ids",
    "modules": "base_model.model|base_model.model.lm_head",
    "who": "model",
}

# %%
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.manual_seed(0)
base = GPT2Config(n_embd=512 if large else 64, n_layer=4, n_head=8, vocab_size=50_257 if large else 500)
adapters = LoraConfig(r=8, lora_alpha=16, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
model = get_peft_model(GPT2LMHeadModel(base), adapters).to(device)
model.print_trainable_parameters()
trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
optimizer = torch.optim.AdamW(trainable, lr=1e-3)
ids = torch.randint(0, base.vocab_size, (4, 256 if large else 16), device=device)
result = []

# %% measured
model.train()
for _ in range(3):
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    result.append(loss.item())
    del loss
