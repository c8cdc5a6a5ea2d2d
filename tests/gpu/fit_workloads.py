"""Training and inference steps for predictions. Each function returns a step that is called with its size.

``SCALE`` is 1 for an H200. Small values make all models tiny, for runs on the CPU.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

DEVICE = "cuda"
SCALE = 1.0


@dataclass(frozen=True)
class Workload:
    """A program, the expected result (``"prediction"``, ``"refusal"`` or ``"either"``) and the required libraries."""

    make: object
    text: str
    expected: str = "prediction"
    last: int = 16_384
    minimum: int = 1
    requires: tuple[str, ...] = ()


def scaled(value, multiple=8):
    return max(int(value * SCALE) // multiple * multiple, multiple)


class Block(nn.Module):
    def __init__(self, width, heads=8):
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x, mask=None, cache=None):
        b, t, c = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        if cache is not None:
            k, v = (
                torch.cat([old, new], 2) for old, new in zip(cache or (k[:, :, :0], v[:, :, :0]), (k, v), strict=True)
            )
            cache[:] = k, v
        causal = mask is None and t > 1
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.norm2(x))


class Transformer(nn.Module):
    def __init__(self, words=16_384, width=768, layers=8, checkpointed=None):
        super().__init__()
        width = scaled(width, 64)
        self.words, self.places = nn.Embedding(scaled(words), width), nn.Embedding(1024, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(max(int(layers * SCALE), 2)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, scaled(words), bias=False)
        self.checkpointed = checkpointed

    def forward(self, ids, mask=None, caches=None, start=0):
        x = self.words(ids) + self.places.weight[start : start + ids.shape[1]]
        for number, block in enumerate(self.blocks):
            if self.checkpointed:
                x = checkpoint(block, x, use_reentrant=self.checkpointed == "reentrant")
            else:
                x = block(x, mask, None if caches is None else caches[number])
        return self.head(self.norm(x))

    def tokens(self, batch, length):
        return torch.randint(self.words.num_embeddings, (batch, length), device=DEVICE)


def language_loss(model, batch, length=256, **options):
    ids = model.tokens(batch, scaled(length))
    return functional.cross_entropy(model(ids, **options).float().flatten(0, 1), ids.flatten())


def trained(model, loss, optimizer=torch.optim.AdamW, *, dtype=None, scaler=False, clip=False, **options):
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    updates = optimizer(parameters, lr=1e-4, **options)
    scaling = torch.amp.GradScaler(DEVICE, enabled=scaler)

    def step(size):
        with torch.autocast(DEVICE, dtype or torch.bfloat16, enabled=dtype is not None):
            value = loss(size)
        updates.zero_grad()
        scaling.scale(value).backward()
        if clip:
            nn.utils.clip_grad_norm_(parameters, 1.0)
        scaling.step(updates)
        scaling.update()

    return step


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()

        def conv(a, b, size, step=1):
            return nn.Sequential(nn.Conv2d(a, b, size, step, size // 2, bias=False), nn.BatchNorm2d(b))

        relu = nn.ReLU(inplace=True)
        self.body = nn.Sequential(
            *(conv(inputs, width, 1), relu, conv(width, width, 3, stride), relu, conv(width, 4 * width, 1))
        )
        self.shortcut = conv(inputs, 4 * width, 1, stride) if stride > 1 or inputs != 4 * width else nn.Identity()

    def forward(self, x):
        return functional.relu(self.body(x) + self.shortcut(x), inplace=True)


def resnet(*, channels_last=False, benchmark=False):
    torch.backends.cudnn.benchmark = benchmark
    width = scaled(64)
    layers = [
        nn.Conv2d(3, width, 7, 2, 3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, 2, 1),
    ]
    inputs = width
    for number, count in enumerate((3, 4, 6, 3)):
        for index in range(max(int(count * SCALE), 1)):
            layers.append(Bottleneck(inputs, width << number, 2 if number and not index else 1))
            inputs = 4 * width << number
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)).to(DEVICE)
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model = model.to(memory_format=layout)

    def loss(batch):
        images = torch.randn(batch, 3, scaled(224, 32), scaled(224, 32), device=DEVICE).to(memory_format=layout)
        return functional.cross_entropy(model(images), torch.randint(1000, (batch,), device=DEVICE))

    return trained(model, loss, torch.optim.SGD, momentum=0.9)


def gpt():
    model = Transformer().to(DEVICE)
    return trained(model, lambda batch: language_loss(model, batch))


def gpt_length():
    model = Transformer().to(DEVICE)
    return trained(model, lambda length: language_loss_of_length(model, length))


def language_loss_of_length(model, length):
    ids = model.tokens(8, length)
    positions = model.places.weight.repeat(-(-length // 1024), 1)[:length]
    x = model.words(ids) + positions
    for block in model.blocks:
        x = block(x)
    return functional.cross_entropy(model.head(model.norm(x)).flatten(0, 1), ids.flatten())


def gpt_autocast():
    model = Transformer().to(DEVICE)
    return trained(model, lambda batch: language_loss(model, batch), dtype=torch.bfloat16, scaler=DEVICE == "cuda")


def bert():
    model = Transformer().to(DEVICE)

    def loss(batch):
        length = scaled(256)
        lengths = torch.full((batch, 1), length - 3, device=DEVICE)  # padded to one length
        mask = (torch.arange(length, device=DEVICE) < lengths)[:, None, None, :]
        return language_loss(model, batch, mask=mask)

    return trained(model, loss)


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()

        def block(a, b):
            layers = [nn.Conv2d(a, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU()]
            return nn.Sequential(*layers, nn.Conv2d(b, b, 3, padding=1), nn.BatchNorm2d(b), nn.ReLU())

        self.down = nn.ModuleList(block(a, b) for a, b in ((3, width), (width, 2 * width), (2 * width, 4 * width)))
        self.grow = nn.ModuleList(nn.ConvTranspose2d(2 * n * width, n * width, 2, 2) for n in (2, 1))
        self.up = nn.ModuleList(block(2 * n * width, n * width) for n in (2, 1))
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x):
        first = self.down[0](x)
        second = self.down[1](functional.max_pool2d(first, 2))
        x = self.down[2](functional.max_pool2d(second, 2))
        for kept, grow, up in zip((second, first), self.grow, self.up, strict=True):
            x = up(torch.cat([grow(x), kept], 1))
        return self.last(x)


def unet():
    model = UNet(scaled(64)).to(DEVICE)
    side = scaled(256, 32)

    def loss(batch):
        target = torch.randint(2, (batch, side, side), device=DEVICE)
        return functional.cross_entropy(model(torch.randn(batch, 3, side, side, device=DEVICE)), target)

    return trained(model, loss)


def vit():
    width = scaled(768, 64)
    patches, side = nn.Conv2d(3, width, 16, 16), scaled(224, 32)
    model = nn.Sequential(*(Block(width, 8) for _ in range(max(int(12 * SCALE), 2))), nn.LayerNorm(width))
    model = nn.ModuleList([patches, model, nn.Linear(width, 1000)]).to(DEVICE)

    def loss(batch):
        x = model[0](torch.randn(batch, 3, side, side, device=DEVICE)).flatten(2).transpose(1, 2)
        return functional.cross_entropy(model[2](model[1](x).mean(1)), torch.randint(1000, (batch,), device=DEVICE))

    return trained(model, loss)


def lstm():
    words, width = scaled(10_000), scaled(1024)
    model = nn.ModuleList(
        [nn.Embedding(words, width), nn.LSTM(width, width, 2, batch_first=True), nn.Linear(width, words)]
    )
    model.to(DEVICE)

    def loss(batch):
        ids = torch.randint(words, (batch, scaled(128)), device=DEVICE)
        return functional.cross_entropy(model[2](model[1](model[0](ids))[0]).flatten(0, 1), ids.flatten())

    return trained(model, loss)


def graph():
    width = scaled(256)
    model = nn.ModuleList(nn.Linear(width, width) for _ in range(3)).to(DEVICE)

    def loss(nodes):
        x = torch.randn(nodes, width, device=DEVICE)
        source, target = torch.randint(nodes, (2, 8 * nodes), device=DEVICE)
        for layer in model:
            x = torch.zeros_like(x).index_add(0, target, layer(x)[source]).relu()
        return x.square().mean()

    return trained(model, loss)


def compiled():
    model = Transformer().to(DEVICE)
    function = torch.compile(model, dynamic=True)

    def loss(batch):
        ids = model.tokens(batch, scaled(256))
        return functional.cross_entropy(function(ids).flatten(0, 1), ids.flatten())

    return trained(model, loss)


def checkpointed(kind):
    model = Transformer(checkpointed=kind).to(DEVICE)
    return trained(model, lambda batch: language_loss(model, batch))


class Adapter(nn.Module):
    def __init__(self, linear, rank=8):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down, self.up = (
            nn.Linear(linear.in_features, rank, bias=False),
            nn.Linear(rank, linear.out_features, bias=False),
        )

    def forward(self, x):
        return self.linear(x) + self.up(self.down(x))


def adapters():
    model = Transformer().requires_grad_(False)
    for block in model.blocks:
        block.qkv, block.out = Adapter(block.qkv), Adapter(block.out)
    model.to(DEVICE)
    return trained(model, lambda batch: language_loss(model, batch))


def generation():
    model = Transformer().to(DEVICE).eval()
    length = scaled(128)

    @torch.no_grad()
    def step(batch):
        caches = [[] for _ in model.blocks]
        ids = model.tokens(batch, length)
        for position in range(8):
            logits = model(ids, caches=caches, start=length + position if position else 0)
            ids = logits[:, -1:].argmax(-1)

    return step


class Trainer:
    """A training loop with logs, an average of the weights, a schedule and gradient accumulation, as in frameworks."""

    def __init__(self):
        self.model = Transformer().to(DEVICE)
        self.average = copy.deepcopy(self.model).requires_grad_(False)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 100)
        self.logs = []

    def step(self, batch):
        for _ in range(2):
            loss = language_loss(self.model, batch) / 2
            loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for mine, other in zip(self.average.parameters(), self.model.parameters(), strict=True):
                mine.lerp_(other, 0.01)
        self.logs.append(float(loss.detach()))


def trainer():
    return Trainer().step


def adversarial():
    size = scaled(1024)
    generator = nn.Sequential(nn.Linear(128, size), nn.ReLU(), nn.Linear(size, 8 * size)).to(DEVICE)
    critic = nn.Sequential(nn.Linear(8 * size, size), nn.ReLU(), nn.Linear(size, 1)).to(DEVICE)
    first, second = (torch.optim.Adam(model.parameters(), lr=1e-4) for model in (generator, critic))

    def step(batch):
        noise, real = torch.randn(batch, 128, device=DEVICE), torch.randn(batch, 8 * size, device=DEVICE)
        second.zero_grad()
        (critic(generator(noise).detach()).mean() - critic(real).mean()).backward()
        second.step()
        first.zero_grad()
        (-critic(generator(noise)).mean()).backward()
        first.step()

    return step


def leaking():
    kept, width = [], scaled(4096)

    def step(batch):
        kept.append(torch.randn(batch, width, (1 + len(kept)), device=DEVICE))

    return step


def by_value():
    width = scaled(1024)

    def step(batch):
        x = torch.randn(batch, width, device=DEVICE)
        return (torch.cat([x] * 40) if batch > 20 else x).sum()

    return step


WORKLOADS = {
    "resnet": Workload(resnet, "ResNet-50, SGD"),
    "resnet_channels_last": Workload(lambda: resnet(channels_last=True), "ResNet-50, SGD, channels last"),
    "resnet_benchmark": Workload(lambda: resnet(benchmark=True), "ResNet-50, `cudnn.benchmark`", "either"),
    "gpt": Workload(gpt, "GPT, AdamW"),
    "gpt_length": Workload(gpt_length, "GPT, AdamW, by length", last=65_536, minimum=16),
    "gpt_autocast": Workload(gpt_autocast, "GPT, bfloat16 autocast, `GradScaler`"),
    "bert": Workload(bert, "BERT with masks, AdamW"),
    "unet": Workload(unet, "U-Net, AdamW"),
    "vit": Workload(vit, "ViT-B, AdamW"),
    "lstm": Workload(lstm, "LSTM, AdamW"),
    "graph": Workload(graph, "Graph convolutions, by nodes", last=1 << 24, minimum=1000),
    "compiled": Workload(compiled, "GPT, `torch.compile`", "either"),
    "checkpoint": Workload(lambda: checkpointed("not reentrant"), "GPT, checkpointing"),
    "checkpoint_reentrant": Workload(lambda: checkpointed("reentrant"), "GPT, reentrant checkpointing"),
    "adapters": Workload(adapters, "GPT with LoRA"),
    "generation": Workload(generation, "Generation with a KV cache"),
    "trainer": Workload(trainer, "Trainer with accumulation and averaged weights"),
    "adversarial": Workload(adversarial, "GAN, two optimizers", last=1 << 22),
    "leaking": Workload(leaking, "A step that leaks", "refusal"),
    "by_value": Workload(by_value, "A step that decides by value", "refusal"),
}
