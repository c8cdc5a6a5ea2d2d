"""An autoencoder trained by Lightning's Trainer, with validation after each epoch.

Lightning moves the model back to the CPU at the end, so the data holds the most memory then.
"""

REQUIRES = ("lightning",)
ANSWER = {
    "lines": "trainer.fit(",
    "peak": "self.decoder(self.encoder(inputs))|trainer.fit(",
    "modules": "encoder.1",
    "who": "data",
}

# %%
import logging
import warnings

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
warnings.filterwarnings("ignore", ".*does not have many workers.*")
lightning.seed_everything(0, verbose=False)
device = "cuda" if torch.cuda.is_available() else "cpu"
rows, width = (8192, 8192) if device == "cuda" else (64, 16)


class Autoencoder(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(256, width), nn.Tanh(), nn.Linear(width, 16))
        self.decoder = nn.Linear(16, 256)

    def reconstruct(self, inputs):
        return self.decoder(self.encoder(inputs))

    def training_step(self, batch, _):
        loss = nn.functional.mse_loss(self.reconstruct(batch[0]), batch[0])
        result.append(loss.item())
        return loss

    def validation_step(self, batch, _):
        result.append(nn.functional.mse_loss(self.reconstruct(batch[0]), batch[0]).item())

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


# %%
data = torch.randn(4 * rows, 256, device=device)
model = Autoencoder()
result = []


def loader():
    return DataLoader(TensorDataset(data), batch_size=rows)


# %% measured
trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="gpu" if device == "cuda" else "cpu",
    devices=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(model, loader(), loader())
