"""BERT features and a probe on top, with torchmetrics evaluation between the training steps.

The evaluation keeps the features of all batches in a list on the device, a common mistake.
"""

REQUIRES = ("transformers", "torchmetrics")
ANSWER = {"lines": "model(**batch).last_hidden_state", "modules": "encoder.layer.1.output*", "who": "features"}

# %%
import torch
import torchmetrics
from transformers import BertConfig, BertModel

device = "cuda" if torch.cuda.is_available() else "cpu"
large = device == "cuda"
torch.manual_seed(0)
width = 256 if large else 32
config = BertConfig(
    vocab_size=1000, hidden_size=width, num_hidden_layers=2, num_attention_heads=4, intermediate_size=2 * width
)
model = BertModel(config, add_pooling_layer=False).to(device)
head = torch.nn.Linear(width, 3).to(device)
optimizer = torch.optim.AdamW([*model.parameters(), *head.parameters()], lr=1e-3)
accuracy = torchmetrics.classification.MulticlassAccuracy(num_classes=3).to(device)
batches = [
    {"input_ids": torch.randint(0, 1000, (64 if large else 16, 128 if large else 64), device=device)} for _ in range(8)
]
labels = torch.randint(0, 3, (8, len(batches[0]["input_ids"])), device=device)
result = []


# %%
def evaluate():
    model.eval()
    kept = []
    with torch.no_grad():
        for batch, label in zip(batches, labels, strict=True):
            kept.append(model(**batch).last_hidden_state)
            accuracy.update(head(kept[-1][:, 0]), label)
    result.append(accuracy.compute().item())
    accuracy.reset()
    return kept


def train_step(batch, label):
    model.train()
    loss = torch.nn.functional.cross_entropy(head(model(**batch).last_hidden_state[:, 0]), label)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    result.append(loss.item())


# %% measured
features = []
for step in range(2):
    train_step({"input_ids": batches[step]["input_ids"][:2]}, labels[step, :2])
    features = evaluate()
