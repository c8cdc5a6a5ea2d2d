"""Training and inference steps with models of libraries. No weights are downloaded: models have random weights."""

from __future__ import annotations

import importlib.util

import torch
from torch.nn import functional

from tests.gpu import fit_workloads
from tests.gpu.fit_workloads import Workload, scaled, trained


def missing(workload):
    """Return the names of the libraries that a workload requires and that are not installed."""
    return [name for name in workload.requires if importlib.util.find_spec(name) is None]


def _layers():
    return max(int(8 * fit_workloads.SCALE), 2)


def _tokens(batch, words=None, length=256):
    return torch.randint(words or scaled(16_384), (batch, scaled(length)), device=fit_workloads.DEVICE)


def _gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"vocab_size": scaled(16_384), "n_embd": scaled(768, 64), "n_layer": _layers(), "n_head": 8}
    return GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).to(fit_workloads.DEVICE).train()


def gpt2_autocast():
    model = _gpt2()

    def loss(batch):
        ids = _tokens(batch)
        return model(ids, labels=ids).loss

    return trained(model, loss, dtype=torch.bfloat16, scaler=fit_workloads.DEVICE == "cuda", clip=True)


def _bert():
    from transformers import BertConfig, BertForSequenceClassification

    width = scaled(768, 64)
    sizes = {"vocab_size": scaled(16_384), "hidden_size": width, "intermediate_size": 4 * width}
    config = BertConfig(**sizes, num_hidden_layers=_layers(), num_attention_heads=8)
    return BertForSequenceClassification(config).to(fit_workloads.DEVICE).train()


def _bert_loss(model, batch):
    """Return the loss of a batch of padded texts, all of which have padding."""
    ids = _tokens(batch)
    lengths = torch.randint(1, ids.shape[1], (batch, 1), device=ids.device)
    mask = (torch.arange(ids.shape[1], device=ids.device) < lengths).long()
    labels = torch.randint(2, (batch,), device=ids.device)
    return model(input_ids=ids, attention_mask=mask, labels=labels).loss


def bert_masks():
    model = _bert()
    return trained(model, lambda batch: _bert_loss(model, batch))


def accelerated():
    from accelerate import Accelerator
    from transformers import get_linear_schedule_with_warmup

    accelerator = Accelerator(cpu=fit_workloads.DEVICE == "cpu", mixed_precision="bf16", gradient_accumulation_steps=2)
    model = _bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    schedule = get_linear_schedule_with_warmup(optimizer, 10, 1000)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    losses = []

    def step(batch):
        for _ in range(2):
            with accelerator.accumulate(model):
                loss = _bert_loss(model, batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
            losses.append(loss.detach())

    return step


def _llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    width = scaled(768, 64)
    sizes = {"vocab_size": scaled(16_384), "hidden_size": width, "intermediate_size": 2 * width}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 4}
    return LlamaForCausalLM(LlamaConfig(**sizes, **heads, num_hidden_layers=_layers())).to(fit_workloads.DEVICE)


def lora():
    from peft import LoraConfig, get_peft_model

    model = get_peft_model(_llama(), LoraConfig(target_modules=["q_proj", "v_proj"], lora_dropout=0.1)).train()

    def loss(batch):
        ids = _tokens(batch)
        return model(input_ids=ids, labels=ids).loss

    return trained(model, loss)


def cached_forward():
    from transformers import DynamicCache

    model = _llama().eval()

    @torch.no_grad()
    def step(batch):
        cache = DynamicCache(config=model.config)
        ids = _tokens(batch, length=128)
        for _ in range(8):
            logits = model(ids, past_key_values=cache, use_cache=True, logits_to_keep=1).logits
            ids = logits[:, -1:].argmax(-1)

    return step


def generated():
    model = _llama().eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return lambda batch: model.generate(_tokens(batch, length=128), max_new_tokens=8, do_sample=False)


def timm_vit():
    import timm

    width, side = scaled(768, 64), scaled(224, 32)
    sizes = {"embed_dim": width, "depth": max(int(12 * fit_workloads.SCALE), 2), "num_heads": 8, "img_size": side}
    model = timm.create_model("vit_base_patch16_224", drop_path_rate=0.1, **sizes).to(fit_workloads.DEVICE).train()

    def loss(batch):
        images = torch.randn(batch, 3, side, side, device=fit_workloads.DEVICE)
        return functional.cross_entropy(model(images), torch.randint(1000, (batch,), device=images.device))

    return trained(model, loss)


def graph_convolutions():
    from torch_geometric.nn.models import GCN

    width = scaled(256)
    model = GCN(width, width, num_layers=3, dropout=0.1).to(fit_workloads.DEVICE).train()

    def loss(nodes):
        x = torch.randn(nodes, width, device=fit_workloads.DEVICE)
        return model(x, torch.randint(nodes, (2, 8 * nodes), device=x.device)).square().mean()

    return trained(model, loss)


def _classifier():
    import lightning
    from torchmetrics import MeanMetric
    from torchmetrics.classification import MulticlassAccuracy

    width = scaled(1024)

    class Classifier(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.save_hyperparameters()
            layers = [torch.nn.Linear(8 * width, width), torch.nn.ReLU(), torch.nn.Linear(width, 100)]
            self.body = torch.nn.Sequential(*layers)
            self.accuracy, self.mean = MulticlassAccuracy(100), MeanMetric()

        def training_step(self, batch, _):
            images, labels = batch
            scores = self.body(images)
            loss = functional.cross_entropy(scores, labels)
            self.accuracy(scores, labels)
            self.mean.update(loss.detach())
            return loss

        def configure_optimizers(self):
            optimizer = torch.optim.Adam(self.parameters(), lr=1e-3)
            return [optimizer], [torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)]

    def images(batch):
        samples = torch.randn(batch, 8 * width, device=fit_workloads.DEVICE)
        return samples, torch.randint(100, (batch,), device=samples.device)

    return Classifier().to(fit_workloads.DEVICE).train(), images


def lightning_module():
    module, images = _classifier()
    (optimizer,), (schedule,) = module.configure_optimizers()

    def step(batch):
        optimizer.zero_grad()
        module.training_step(images(batch), 0).backward()
        optimizer.step()
        schedule.step()

    return step


def lightning_fabric():
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator=fit_workloads.DEVICE, devices=1, precision="bf16-mixed")
    module, images = _classifier()
    module, optimizer = fabric.setup(module, module.configure_optimizers()[0][0])
    module.mark_forward_method("training_step")

    def step(batch):
        optimizer.zero_grad()
        fabric.backward(module.training_step(images(batch), 0))
        fabric.clip_gradients(module, optimizer, max_norm=1.0)
        optimizer.step()

    return step


WORKLOADS = {
    "transformers_gpt2": Workload(
        gpt2_autocast, "transformers GPT-2, bfloat16 autocast, `GradScaler`", requires=("transformers",)
    ),
    "transformers_bert": Workload(bert_masks, "transformers BERT, padded batches", requires=("transformers",)),
    "accelerate": Workload(
        accelerated, "accelerate, transformers BERT, accumulation", requires=("accelerate", "transformers")
    ),
    "peft": Workload(lora, "peft LoRA, transformers Llama", requires=("peft", "transformers")),
    "transformers_cache": Workload(cached_forward, "transformers Llama with a KV cache", requires=("transformers",)),
    "transformers_generate": Workload(
        generated, "`generate` of transformers, Llama", "either", requires=("transformers",)
    ),
    "timm": Workload(timm_vit, "timm ViT-B, AdamW", requires=("timm",)),
    "torch_geometric": Workload(
        graph_convolutions,
        "torch-geometric GCN, by nodes",
        "either",  # the number of self-loops is random
        last=1 << 24,
        minimum=1000,
        requires=("torch_geometric",),
    ),
    "lightning": Workload(
        lightning_module, "Lightning module with torchmetrics", last=1 << 22, requires=("lightning", "torchmetrics")
    ),
    "lightning_fabric": Workload(
        lightning_fabric, "Lightning Fabric, bfloat16", last=1 << 22, requires=("lightning", "torchmetrics")
    ),
}
