"""Programs whose memory is fragmented, and programs with streams, graphs and pools; they record their allocations.

``python -m tests.gpu.replay_workloads NAME DIRECTORY`` runs a program once in a new process, under the settings in
``PYTORCH_ALLOC_CONF``, and writes what it observed to the directory.
"""

from __future__ import annotations

import argparse
import gc
import json
import lzma
import pickle
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from ipygpumem.core.units import MIB
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.model.columns import Action
from ipygpumem.snapshot.replay.settings_comparison import compare_settings

DEVICE = "cuda"
KEPT = []
"""Objects that exist until the end of the process."""


class Block(nn.Module):
    def __init__(self, width, heads=8):
        super().__init__()
        self.heads = heads
        self.norm, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x, cache=None):
        heads = (*x.shape[:2], self.heads, -1)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, dim=-1))
        if cache is not None:
            k, v = (k, v) if not cache else (torch.cat([cache[0], k], dim=2), torch.cat([cache[1], v], dim=2))
            cache[:] = [k, v]
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=q.shape[2] > 1)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class LanguageModel(nn.Module):
    def __init__(self, width=512, layers=6, words=8192):
        super().__init__()
        self.embedding, self.head = nn.Embedding(words, width), nn.Linear(width, words)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))

    def forward(self, tokens, caches=None):
        x = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            x = block(x, None if caches is None else caches[number])
        return self.head(x)


def tokens(batch, length):
    return torch.randint(0, 8192, (batch, length)).to(DEVICE)


def train_step(model, optimizer, batch):
    logits = model(batch)
    loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), batch[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def variable_lengths(steps=60):
    """Training on sequences of random length."""
    model = LanguageModel().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    return [train_step(model, optimizer, tokens(8, random.randint(32, 1024))) for _ in range(steps)]


def growing_cache(steps=100):
    """Generation for four prompts in turn; the key-value caches grow with every token."""
    model = LanguageModel(layers=8).to(DEVICE)
    with torch.no_grad():
        for _ in range(2):
            caches = [[[] for _ in model.blocks] for _ in range(4)]
            following = [tokens(random.randint(8, 48), random.randint(64, 700)) for _ in caches]
            for _ in range(steps):
                for number, cache in enumerate(caches):
                    following[number] = model(following[number], cache)[:, -1:].argmax(-1)


def train_and_evaluate(epochs=5):
    """Training, with an evaluation of larger batches after each epoch."""
    model = LanguageModel().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    history = []
    for epoch in range(epochs):
        model.train()
        history += [train_step(model, optimizer, tokens(8, 384)) for _ in range(8)]
        model.eval()
        with torch.no_grad():
            predictions = [model(tokens(20 + 6 * epoch, 512)).argmax(-1) for _ in range(4)]
            history.append(torch.cat([part.flatten() for part in predictions]).float())


def mixed_sizes(steps=3000):
    """Buffers of 4 KiB to 96 MiB with random lifetimes."""
    kept = []
    for step in range(steps):
        nbytes = int(4096 * 2 ** random.uniform(0, 14.55))
        kept.append((step + int(2 ** random.uniform(0, 8)), torch.empty(nbytes, dtype=torch.uint8, device=DEVICE)))
        kept = [(end, buffer) for end, buffer in kept if end > step]


def image_sizes(steps=40):
    """Training of a convolutional network on images of changing size."""
    layers = [nn.Conv2d(3, 64, 7, stride=2, padding=3)]
    for channels in (64, 64, 128, 256):
        layers += [
            *(nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, channels, 3, padding=1), nn.ReLU()),
            nn.Conv2d(channels, 2 * channels if channels > 64 or len(layers) > 5 else 64, 3, stride=2, padding=1),
        ]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(steps):
        images = torch.randn(random.randint(4, 24), 3, *(random.randrange(96, 480, 8) for _ in range(2)))
        labels = torch.zeros(len(images), dtype=torch.long)
        nn.functional.cross_entropy(model(images.to(DEVICE)), labels.to(DEVICE)).backward()
        optimizer.step()
        optimizer.zero_grad()


def late_optimizer(steps=12):
    """Weights that are converted tensor by tensor, and an optimizer whose state is created between activations."""
    model = LanguageModel(width=1024, layers=8)
    for parameter in model.parameters():
        full = parameter.data.to(DEVICE)
        parameter.data = (full / full.std().clamp(min=1.0)).mul_(0.5)
        del full
    optimizer = torch.optim.Adam(model.parameters())
    for step in range(steps):
        batch = tokens(6, 200 + 24 * step)
        loss = nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())
        loss.backward()
        if step >= 2:
            optimizer.step()
            optimizer.zero_grad()


def experts(steps=30):
    """Training of experts, each of which receives a different number of tokens in every step."""
    width, count = 512, 8
    layers = [[nn.Linear(width, 4 * width), nn.Linear(4 * width, width)] for _ in range(count)]
    modules = nn.ModuleList(nn.ModuleList(pair) for pair in layers).to(DEVICE)
    optimizer = torch.optim.AdamW(modules.parameters())
    for _ in range(steps):
        shares = torch.tensor([random.random() ** 3 for _ in range(count)])
        expert = torch.multinomial(shares / shares.sum(), 16384, replacement=True).to(DEVICE)
        x = torch.randn(16384, width).to(DEVICE).requires_grad_()
        result = torch.zeros_like(x)
        for number, (up, down) in enumerate(modules):
            rows = (expert == number).nonzero().flatten()
            result = result.index_add(0, rows, down(nn.functional.gelu(up(x[rows]))))
        result.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def lstm(steps=40):
    """Training of an LSTM of cuDNN on sequences of random length."""
    model = nn.LSTM(256, 512, num_layers=3, batch_first=True).to(DEVICE)
    head = nn.Linear(512, 2000).to(DEVICE)
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()])
    for _ in range(steps):
        x = torch.randn(random.randint(8, 48), random.randint(16, 300), 256).to(DEVICE)
        head(model(x)[0]).logsumexp(-1).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def two_streams(steps=60):
    """Batches that are prepared on a second stream."""
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    side = torch.cuda.Stream()

    def prepare():
        with torch.cuda.stream(side):
            return torch.randn(random.randint(512, 8192), 1024, device=DEVICE).mul_(0.5).tanh()

    following = prepare()
    for _ in range(steps):
        torch.cuda.current_stream().wait_stream(side)
        batch = following
        batch.record_stream(torch.cuda.current_stream())
        following = prepare()
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def cuda_graphs():
    """Capture of two graphs between phases of training; the first is deleted before the second is captured."""
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters())
    for rows in (4096, 6144):
        for _ in range(10):
            batch = torch.randn(random.randint(512, 8192), 1024, device=DEVICE)
            model(batch).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            del batch
        static = torch.randn(rows, 1024, device=DEVICE)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side), torch.no_grad():
            model(static)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph), torch.no_grad():
            output = model(static)
        for _ in range(3):
            graph.replay()
        output.sum().item()
        del graph, output, static
        torch.cuda.empty_cache()


def graph_trees():
    """Graphs of torch.compile, whose private pool is restored to earlier states."""
    model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024)).to(DEVICE)

    def first(x):
        return model(x).relu()

    def second(x):
        return (model(x) + x).tanh()

    torch._dynamo.config.cache_size_limit = 64
    functions = [torch.compile(function, backend="cudagraphs", dynamic=False) for function in (first, second)]
    with torch.no_grad():
        for _ in range(4):
            for rows in (2048, 512, 4096):
                torch.compiler.cudagraph_mark_step_begin()
                x = torch.randn(rows, 1024, device=DEVICE)
                output = functions[1](functions[0](x))
                output.sum().item()
                del output, x


def memory_pool(steps=40):
    """Buffers in a pool of the program, which exists until the end: torch 2.11 does not record the pools of events."""
    pool = torch.cuda.MemPool()
    KEPT.append(pool)
    kept = []
    for step in range(steps):
        with torch.cuda.use_mem_pool(pool):
            kept.append(torch.empty(random.randint(1 << 16, 1 << 24), device=DEVICE))
            temporary = torch.empty(random.randint(1 << 16, 1 << 23), device=DEVICE)
        outside = torch.empty(random.randint(1 << 16, 1 << 24), device=DEVICE)
        kept = kept[-(step % 7 + 2) :]
        del temporary, outside
    kept.clear()
    torch.cuda.empty_cache()
    torch.empty(64 * MIB, device=DEVICE)


FRAGMENTING = (
    *(variable_lengths, growing_cache, train_and_evaluate, mixed_sizes, image_sizes, late_optimizer, experts, lstm),
)
SPECIAL = (two_streams, cuda_graphs, graph_trees, memory_pool)
PROGRAMS = {program.__name__: program for program in (*FRAGMENTING, *SPECIAL)}


def execute(program, capacity):
    torch.manual_seed(0)
    random.seed(0)
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.deterministic = True
    if DEVICE == "cpu":  # tests the programs themselves
        return None, {"seconds": _timed(program), "error": ""}
    total = torch.cuda.get_device_properties(0).total_memory
    if capacity:
        torch.cuda.set_per_process_memory_fraction((capacity + 0.5) / total)
    torch.cuda.memory._record_memory_history(max_entries=2_000_000, context="all", stacks="python")
    gc.disable()
    error, seconds = "", 0.0
    try:
        seconds = _timed(program)
    except torch.OutOfMemoryError as failure:
        error = str(failure).partition(". ")[0]
    gc.collect()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    snapshot = torch.cuda.memory._snapshot()
    torch.cuda.memory._record_memory_history(enabled=None)
    values = {
        "reserved_peak": stats["reserved_bytes.all.peak"],
        "allocated_peak": stats["allocated_bytes.all.peak"],
        "retries": stats["num_alloc_retries"],
        "seconds": seconds,
        "error": error,
    }
    return snapshot, values


def _timed(program):
    start = time.perf_counter()
    program()
    return time.perf_counter() - start


def requests(snapshot):
    trace = snapshot.timeline(0).trace
    action, nbytes = trace.action, trace.size.astype(np.int64)
    signed = np.where(action == Action.ALLOC, nbytes, -nbytes)
    return signed[np.isin(action, (Action.ALLOC, Action.FREE_COMPLETED))]


def predictions(snapshot, settings):
    cases = []

    def add(text, capacity, purpose):
        replay = snapshot.replay(text, capacity)
        failure, peaks = replay.failure is not None, list(replay.reserved_range)
        if capacity:  # a memory fraction, which is checked before expandable segments are extended
            limits = {"limit": capacity, "by_fraction": True, "recorded": False}
            runs = [replay._run_again(**limits, descending=order) for order in (False, True)]
            failure, peaks = runs[0].failure is not None, [run.allocator.peak for run in runs]
        case = {"settings": text, "capacity": capacity, "purpose": purpose, "grade": replay.grade}
        cases.append({**case, "predicted": [min(peaks), max(peaks)], "predicted_failure": failure})
        return replay

    recorded = add("", None, "again")
    for text in settings:
        add(text, None, "settings")
    least = recorded.smallest_capacity
    add("", int(least * 1.02) + 4 * MIB, "fits")
    add("", int(least * 0.95), "out of memory")
    add("garbage_collection_threshold:0.6", int(least * 1.1), "fits")
    for text in ("max_split_size_mb:64", "expandable_segments:True"):
        add(text, int(snapshot.replay(text).smallest_capacity * 1.02) + 4 * MIB, "fits")
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=PROGRAMS)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--capacity", type=int, help="limit of reserved memory in bytes")
    parser.add_argument("--predict", nargs="*", help="settings for which the result is predicted")
    parser.add_argument("--compare", type=Path, help="requests of a recording with which this run is compared")
    arguments = parser.parse_args()
    arguments.directory.mkdir(parents=True, exist_ok=True)
    raw, values = execute(PROGRAMS[arguments.name], arguments.capacity)
    if raw is None:
        (arguments.directory / "result.json").write_text(json.dumps(values), encoding="utf-8")
        return 0
    # the recording is kept even if the analysis below fails
    (arguments.directory / "recording.pickle.xz").write_bytes(lzma.compress(pickle.dumps(raw), preset=1))
    (arguments.directory / "result.json").write_text(json.dumps(values), encoding="utf-8")
    snapshot = Snapshot.load(raw)
    made = requests(snapshot)
    np.save(arguments.directory / "requests.npy", made)
    values |= {"events": len(snapshot.timeline(0).trace), "requests": len(made)}
    if arguments.compare:
        other = np.load(arguments.compare)
        count = min(len(made), len(other))
        different = np.flatnonzero(made[:count] != other[:count])
        values["same_requests"] = int(different[0]) if len(different) else count
    replay = snapshot.replay()
    values |= {"grade": replay.grade, "reason": replay.reason, "replayed_peak": replay.reserved_peak}
    values["replayed_retries"] = replay.retries
    (arguments.directory / "result.json").write_text(json.dumps(values), encoding="utf-8")
    if arguments.predict is not None:
        values["predictions"] = predictions(snapshot, arguments.predict)
        found = compare_settings(snapshot, 0)
        values["recommended"] = None if found.recommended is None else found.recommended.settings
    (arguments.directory / "result.json").write_text(json.dumps(values), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
