"""Predictions of steps on a real GPU: accuracy at sizes far beyond the runs, and the state of the program afterwards.

With the environment variable FIT_JSON, the measured values are written to this file.
"""

import collections
import copy
import hashlib
import json
import os
import random

import pytest

from tests.gpu.fit_accuracy import begin_training, training_peaks

MIB, GIB = 1 << 20, 1 << 30
pytestmark = [pytest.mark.usefixtures("torch", "most_of_the_gpu"), pytest.mark.timeout(900)]
FACTORS = (32, 16, 8)
"""Multiples of the largest size that was run."""
RESULTS = {}


@pytest.fixture(scope="module", autouse=True)
def results_file():
    yield
    if "FIT_JSON" in os.environ:
        with open(os.environ["FIT_JSON"], "w", encoding="utf-8") as file:  # noqa: PTH123
            json.dump(RESULTS, file, indent=1)


def make_gpt(torch, width=768, layers=6, words=16_384):
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            b, t, c = x.shape
            q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 12, c // 12).permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
            return x + self.mlp(self.norm2(x))

    class GPT(nn.Module):
        def __init__(self):
            super().__init__()
            self.words, self.places = nn.Embedding(words, width), nn.Embedding(1024, width)
            self.dropout = nn.Dropout(0.1)
            self.blocks = nn.ModuleList(Block() for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)

        def forward(self, ids):
            x = self.dropout(self.words(ids) + self.places.weight[: ids.shape[1]])
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    model = GPT().cuda()

    def loss(batch, length=256):
        ids = torch.randint(0, words, (batch, length), device="cuda")
        return functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    return model, loss


def make_unet(torch, channels=32):
    nn, functional = torch.nn, torch.nn.functional

    def block(inputs, outputs):
        layers = [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*layers, nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU())

    class UNet(nn.Module):
        def __init__(self):
            super().__init__()
            self.down1, self.down2, self.down3 = block(3, channels), block(channels, 64), block(64, 128)
            self.up2, self.back2 = nn.ConvTranspose2d(128, 64, 2, 2), block(128, 64)
            self.up1, self.back1 = nn.ConvTranspose2d(64, channels, 2, 2), block(2 * channels, channels)
            self.last = nn.Conv2d(channels, 2, 1)

        def forward(self, x):
            a = self.down1(x)
            b = self.down2(functional.max_pool2d(a, 2))
            y = self.up2(self.down3(functional.max_pool2d(b, 2)))
            y = self.back2(torch.cat([y, b], 1))
            return self.last(self.back1(torch.cat([self.up1(y), a], 1)))

    model = UNet().cuda()

    def loss(batch, side=128):
        x = torch.randn(batch, 3, side, side, device="cuda")
        target = torch.randint(0, 2, (batch, side, side), device="cuda")
        return functional.cross_entropy(model(x), target)

    return model, loss


class Training:
    def __init__(self, torch, make, *, optimizer="AdamW", autocast=False):
        torch.manual_seed(0)
        random.seed(0)
        self.torch = torch
        self.model, self.loss = make(torch)
        self.average = copy.deepcopy(self.model).requires_grad_(False) if autocast else None
        self.optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), lr=1e-4)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, 0.5)
        self.scaler = torch.amp.GradScaler(enabled=autocast)
        self.autocast = autocast
        self.history = []

    def step(self, batch, *more):
        with self.torch.autocast("cuda", self.torch.float16, enabled=self.autocast):
            loss = self.loss(batch, *more) * (1 + 1e-9 * random.random())
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        if self.average is not None:
            with self.torch.no_grad():
                for mine, theirs in zip(self.average.parameters(), self.model.parameters(), strict=True):
                    mine.lerp_(theirs, 0.1)
        self.history.append(loss.item())

    def digest(self):
        result = hashlib.sha256()

        def add(value):
            if isinstance(value, self.torch.Tensor):
                result.update(value.detach().cpu().contiguous().flatten().view(self.torch.uint8).numpy().tobytes())
            elif isinstance(value, dict):
                for key, item in value.items():
                    result.update(repr(key).encode())
                    add(item)
            elif isinstance(value, (list, tuple)):
                for item in value:
                    add(item)
            else:
                result.update(repr(value).encode())

        add([parameter.grad for parameter in self.model.parameters()])
        add(
            [self.model.state_dict(), self.optimizer.state_dict(), self.schedule.state_dict(), self.scaler.state_dict()]
        )
        add([] if self.average is None else self.average.state_dict())
        add([self.torch.get_rng_state(), self.torch.cuda.get_rng_state(), random.getstate(), self.history])
        return result.hexdigest()


@pytest.mark.parametrize("steps", [0, 3])
@pytest.mark.parametrize("make", [make_gpt, make_unet])
def test_state_is_the_same(torch, make, steps):
    import ipygpumem

    training = Training(torch, make, autocast=make is make_unet)
    for _ in range(steps):
        training.step(4)
    before, peak, allocated = training.digest(), torch.cuda.max_memory_allocated(), torch.cuda.memory_allocated()
    versions = [parameter._version for parameter in training.model.parameters()]
    gradients = [parameter.grad for parameter in training.model.parameters()]
    result = ipygpumem.fit(training.step, range(1, 4097), most=0.05)
    print(result)
    assert not result.refusal
    assert torch.cuda.max_memory_allocated() == max(peak, torch.cuda.memory_allocated())
    assert training.digest() == before
    assert [parameter._version for parameter in training.model.parameters()] == versions
    now = [parameter.grad for parameter in training.model.parameters()]
    assert all(old is new for old, new in zip(gradients, now, strict=True))
    # cuBLAS and cuDNN may keep workspaces, but nothing else remains
    assert torch.cuda.memory_allocated() - allocated <= 80 * MIB
    training.step(4)


WORKLOADS = {
    "GPT, AdamW, batch": (make_gpt, {}, range(1, 4097), 0.01),
    "GPT, SGD, batch, before the first step": (make_gpt, {"optimizer": "SGD", "before": True}, range(1, 4097), 0.01),
    "GPT, float16 autocast, GradScaler, batch": (make_gpt, {"autocast": True}, range(1, 4097), 0.01),
    # cuDNN uses other algorithms for very small batches
    "U-Net, AdamW, batch": (make_unet, {}, range(1, 8193), 0.03),
    "U-Net, AdamW, before the first step": (make_unet, {"before": True}, range(1, 8193), 0.03),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_accuracy(torch, name):
    import ipygpumem

    make, options, sizes, most = WORKLOADS[name]
    options = dict(options)
    before = options.pop("before", False)
    training = Training(torch, make, **options)
    for _ in range(0 if before else 2):
        training.step(4)
    retries = torch.cuda.memory_stats()["num_alloc_retries"]
    result = ipygpumem.fit(training.step, sizes, most=most)
    print(result)
    assert not result.refusal, result.refusal
    largest = max(probe.size[0] for probe in result.probes)
    rows = RESULTS[name] = []
    total = torch.cuda.get_device_properties(0).total_memory
    for factor in FACTORS:
        size = factor * largest
        if result.reserved(size) > 0.9 * total:
            continue
        row = {"size": size, "factor": factor, "predicted": result.predict(size)}
        row |= {"predicted_reserved": result.reserved(size), **training_peaks(training.step, size)}
        rows.append(row)
        print(name, {key: value if value < 1e6 else f"{value / MIB:,.1f} MiB" for key, value in row.items()})
    assert rows, "no size could be checked"
    assert torch.cuda.memory_stats()["num_alloc_retries"] == retries
    for row in rows:
        assert row["predicted"] == pytest.approx(row["allocated"], rel=0.02), row
        assert row["predicted_reserved"] == pytest.approx(row["reserved"], rel=0.03), row


@pytest.mark.parametrize(("make", "gib", "steps"), [(make_gpt, 8, 1), (make_gpt, 16, 0), (make_unet, 40, 1)])
def test_recommended_size_runs(torch, make, gib, steps):
    import ipygpumem

    total = torch.cuda.get_device_properties(0).total_memory
    training = Training(torch, make, autocast=not steps)
    for _ in range(steps):
        training.step(2)
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(gib * GIB / total)
    try:
        result = ipygpumem.fit(training.step, range(1, 4097))
        print(result)
        assert not result.refusal
        assert result.capacity <= gib * GIB
        begin_training()
        before, reserved = torch.cuda.memory_stats(), []
        for _ in range(20):
            training.step(result.recommended)
            reserved.append(torch.cuda.max_memory_reserved())
        print(f"reserved {reserved[-1] / MIB:,.1f} MiB after {reserved.index(reserved[-1]) + 1} steps")
        after = torch.cuda.memory_stats()
        assert (after["num_ooms"], after["num_alloc_retries"]) == (before["num_ooms"], before["num_alloc_retries"])
        assert torch.cuda.max_memory_reserved() >= 0.95 * result.capacity
        RESULTS[f"{make.__name__}, {gib} GiB, after {steps} steps"] = {
            "recommended": result.recommended,
            "reserved": torch.cuda.max_memory_reserved(),
        }
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def set_allocator_settings(torch, settings):
    current = getattr(torch._C, "_accelerator_setAllocatorSettings", None)  # the other function is deprecated
    (current or torch.cuda.memory._set_allocator_settings)(settings)


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("kept", ["output", "graph", "two outputs"])
def test_tensors_that_are_kept_until_the_next_run(torch, kept, expandable):
    import ipygpumem

    torch.cuda.empty_cache()
    set_allocator_settings(torch, f"expandable_segments:{expandable}")
    outputs = collections.deque(maxlen=2 if kept == "two outputs" else 1)
    try:
        layers = [layer for _ in range(6) for layer in (torch.nn.Linear(1024, 1024), torch.nn.GELU())]
        model = torch.nn.Sequential(*layers).cuda()

        def step(batch):
            output = model(torch.randn(batch * 128, 1024, device="cuda"))
            if kept != "graph":
                output.pow(2).mean().backward()
            outputs.append(output)

        result = ipygpumem.fit(step, range(1, 4097), most=0.01)
        print(result)
        assert not result.refusal, result.refusal
        largest = max(probe.size[0] for probe in result.probes)
        for size in (largest // 4, largest, 8 * largest):
            outputs.clear()
            peaks = training_peaks(step, size)
            print(size, result.predict(size) / MIB, result.reserved(size) / MIB, peaks)
            assert result.predict(size) == pytest.approx(peaks["allocated"], rel=0.02)
        assert result.reserved(size) == pytest.approx(peaks["reserved"], rel=0.03)
    finally:
        outputs.clear()
        torch.cuda.empty_cache()
        set_allocator_settings(torch, "expandable_segments:False")


def test_tensors_that_are_replaced(torch):
    import ipygpumem

    model = torch.nn.Sequential(*(torch.nn.Linear(2048, 2048) for _ in range(6))).cuda()
    average = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    def step(batch):
        model(torch.randn(batch, 2048, device="cuda")).pow(2).mean().backward()
        for name, parameter in model.named_parameters():
            parameter.data = parameter.data - 1e-3 * parameter.grad
            average[name] = 0.9 * average[name] + 0.1 * parameter.detach()
        model.zero_grad()

    step(2)
    before = [tensor.detach().cpu() for tensor in (*model.parameters(), *average.values())]
    result = ipygpumem.fit(step, range(1, 4097))
    print(result)
    assert not result.refusal, result.refusal
    after = (*model.parameters(), *average.values())
    assert all(torch.equal(old, new.cpu()) for old, new in zip(before, after, strict=True))
    del after  # it would keep the tensors that the step replaces
    torch.cuda.empty_cache()
    for size in (8, 512, 4096):
        torch.cuda.reset_peak_memory_stats()
        for _ in range(3):
            step(size)
        print(size, result.predict(size) / MIB, torch.cuda.max_memory_allocated() / MIB)
        assert result.predict(size) == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.02)


def test_two_variables(torch):
    import ipygpumem

    training = Training(torch, make_gpt)
    training.step(2)

    def step(batch, length):
        training.step(batch, length)

    result = ipygpumem.fit(step, {"batch": range(1, 257), "length": range(32, 1025)}, most=0.05)
    print(result)
    assert not result.refusal
    torch.cuda.reset_peak_memory_stats()
    step(48, 800)
    step(48, 800)
    assert result.predict(48, 800) == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.02)


@pytest.mark.parametrize("place", ["cuda", "cpu"])
@pytest.mark.parametrize(
    ("make", "autocast", "size"), [(make_gpt, False, 24), (make_gpt, True, 24), (make_unet, False, 64)]
)
def test_estimates(torch, make, autocast, size, place):
    import ipygpumem

    torch._C._cuda_clearCublasWorkspaces()
    before = torch.cuda.memory_allocated()
    training = Training(torch, make, autocast=autocast)
    training.average = None
    training.model.to(place)

    def step(batch):
        with torch.autocast("cuda", torch.float16, enabled=autocast):
            loss = training.loss(batch)
        training.optimizer.zero_grad()
        loss.backward()
        training.optimizer.step()

    allocated = torch.cuda.memory_allocated()
    result = ipygpumem.fit(step, range(1, 257), dry=True)
    print(result)
    assert not result.refusal, result.refusal
    assert torch.cuda.memory_allocated() - allocated <= MIB
    training.model.cuda()
    for _ in range(2):
        torch.cuda.reset_peak_memory_stats()
        step(size)
    measured = torch.cuda.max_memory_allocated() - before
    print(f"estimated {result.predict(size) / MIB:,.1f} MiB, measured {measured / MIB:,.1f} MiB")
    RESULTS[f"estimate: {make.__name__}, {place}, autocast {autocast}"] = [result.predict(size), measured]
    assert result.predict(size) == pytest.approx(measured, rel=0.1)


def test_refusals(torch):
    import ipygpumem

    def irregular(batch):
        torch.zeros(int(batch * (1 + random.random()) * MIB), device="cuda").sum()

    assert "size" in ipygpumem.fit(irregular, range(1, 65)).refusal
    model = torch.nn.Linear(64, 64).cuda()
    static = torch.ones(4, 64, device="cuda")
    model(static)
    graph = torch.cuda.CUDAGraph()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream), torch.cuda.graph(graph, stream=stream):
        model(static)
        refused = ipygpumem.fit(lambda batch: model(torch.ones(batch, 64, device="cuda")).sum(), range(1, 65))
    assert "CUDA graph" in refused.refusal
    with pytest.raises(ipygpumem.OptionError, match="allocates no GPU memory"):
        ipygpumem.fit(lambda batch: [0] * batch, range(1, 65))
