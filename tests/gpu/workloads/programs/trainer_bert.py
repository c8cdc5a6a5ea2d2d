"""BERT for sequence classification, trained by Hugging Face's Trainer.

The batches are small, so the embedding of 30,522 words, its gradient and its optimizer state use the most memory.
"""

REQUIRES = ("transformers", "accelerate")
ANSWER = {
    "lines": "trainer.train()",
    "peak": "trainer.train()",
    "modules": "bert.embeddings.word_embeddings",
    "kind": "optimizer state",
    "who": "trainer",
}

# %%
import torch
from transformers import BertConfig, BertForSequenceClassification, PrinterCallback, Trainer, TrainingArguments

large = torch.cuda.is_available()
torch.manual_seed(0)
config = BertConfig(
    vocab_size=30_522 if large else 1000,
    hidden_size=512 if large else 32,
    num_hidden_layers=2,
    num_attention_heads=8,
    intermediate_size=1024 if large else 64,
    num_labels=2,
)
model = BertForSequenceClassification(config)


class Reviews(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        generator = torch.Generator().manual_seed(index)
        ids = torch.randint(0, config.vocab_size, (64,), generator=generator)
        return {"input_ids": ids, "labels": index % 2}


# %%
arguments = TrainingArguments(
    "trainer",
    max_steps=4,
    per_device_train_batch_size=4,
    learning_rate=1e-3,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    disable_tqdm=True,
)
trainer = Trainer(model, arguments, train_dataset=Reviews())
trainer.remove_callback(PrinterCallback)

# %% measured
trainer.train()
result = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
