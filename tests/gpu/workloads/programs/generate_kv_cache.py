"""Text generation with a KV cache, sampled from a Llama model.

The cache of 32 sequences, which the result keeps, is larger than the model.
"""

REQUIRES = ("transformers",)
ANSWER = {
    "lines": "model.generate(",
    "peak": "model.generate(",
    "modules": "model.layers.*.self_attn*",
    "who": "output",
}

# %%
import torch
from transformers import LlamaConfig, LlamaForCausalLM

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.manual_seed(0)
config = LlamaConfig(
    vocab_size=1000,
    hidden_size=512 if large else 64,
    intermediate_size=512 if large else 64,
    num_hidden_layers=8 if large else 2,
    num_attention_heads=8 if large else 2,
    pad_token_id=0,
    eos_token_id=None,
    max_position_embeddings=1024,
)
model = LlamaForCausalLM(config).to(device).eval()
prompt = torch.randint(1, config.vocab_size, (32 if large else 16, 512 if large else 256), device=device)
result = []

# %% measured
output = model.generate(prompt, max_new_tokens=16, do_sample=True, use_cache=True, return_dict_in_generate=True)
result.append(output.sequences[:, -16:])
output.sequences.shape
