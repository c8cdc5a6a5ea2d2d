"""An LSTM language model, with cuDNN on a GPU.

cuDNN's reserve space for the backward pass is the largest consumer.
"""

VARIES = {"values": "cuDNN's LSTM is not deterministic", "printed text": "cuDNN's LSTM is not deterministic"}
ANSWER = {
    "lines": "loss.backward()|self.rnn(",
    "peak": "self.rnn(|loss.backward()",
    "modules": "rnn",
    "kind": "activations",
    "who": "optimizer",
}

# %%
import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.manual_seed(0)
vocabulary, width = (256, 512) if large else (50, 32)


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.rnn = nn.LSTM(width, width, num_layers=2, dropout=0.1, batch_first=True)
        self.decoder = nn.Linear(width, vocabulary)

    def forward(self, ids):
        output, _ = self.rnn(self.embedding(ids))
        return self.decoder(output)


model = LanguageModel().to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
ids = torch.randint(0, vocabulary, (64 if large else 4, 257 if large else 17), device=device)
result = []

# %% measured
for _ in range(3):
    logits = model(ids[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    result.append(loss.item())
    del logits, loss
print(f"{result[-1]:.6f}")
