"""Predictions from small steps, recorded in one snapshot, compared with measurements of larger ones."""

import gc

import pytest
import torch
from torch import nn

from ipygpumem.core.units import MIB
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.scaling.step import StepRecording
from ipygpumem.snapshot.scaling.step_predictor import RecordedStepPredictor

DEVICE = "cuda"
pytestmark = [pytest.mark.usefixtures("torch", "most_of_the_gpu"), pytest.mark.timeout(900)]


def events():
    return len(torch.cuda.memory._snapshot()["device_traces"][torch.cuda.current_device()])


def record(step, sizes):
    step(sizes[0])
    torch.cuda.memory._record_memory_history(context="alloc", stacks="python", max_entries=1_000_000)
    windows = []
    try:
        for size in sizes:
            gc.collect()
            first = events() - 1
            step(size)
            windows.append((size, first, events() - 1))
        snapshot = Snapshot.load(torch.cuda.memory._snapshot())
    finally:
        torch.cuda.memory._record_memory_history(None)
    device = torch.cuda.current_device()
    return [(size, StepRecording(snapshot, device, first, last)) for size, first, last in windows]


def training(model, optimizer, inputs):
    def step(size):
        loss = model(inputs(size)).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def transformer():
    layer = nn.TransformerEncoderLayer(512, 8, 2048, dropout=0.0, batch_first=True)
    model = nn.Sequential(nn.Embedding(8000, 512), nn.TransformerEncoder(layer, 6), nn.Linear(512, 8000)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    return training(model, optimizer, lambda size: torch.randint(8000, (size, 128), device=DEVICE)), (16, 32, 64), 512


def convolutional():
    layers, width = [], 3
    for out in (64, 128, 256):
        layers += [nn.Conv2d(width, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(inplace=True), nn.MaxPool2d(2)]
        width = out
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return training(model, optimizer, lambda size: torch.randn(size, 3, 128, 128, device=DEVICE)), (8, 16, 32, 64), 512


def autocast():
    step, sizes, target = transformer()

    def in_bfloat16(size):
        with torch.autocast("cuda", torch.bfloat16):
            step(size)

    return in_bfloat16, sizes, target


@pytest.mark.parametrize("workload", [transformer, convolutional, autocast])
def test_larger_step(workload):
    step, sizes, target = workload()
    recordings = record(step, [*sizes, sizes[0]])
    scaled = RecordedStepPredictor.from_recordings(recordings)
    prediction = scaled.predict(target)
    print(workload.__name__, scaled.reasons, [deviation.error for deviation in scaled.deviations], prediction)
    assert scaled.reasons == ()
    torch.cuda.reset_peak_memory_stats()
    step(target)
    print("measured", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
    assert prediction.allocated == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.02)
    assert prediction.reserved == pytest.approx(torch.cuda.max_memory_reserved(), rel=0.03)


def test_largest_size_within_a_limit():
    step, sizes, _ = transformer()
    scaled = RecordedStepPredictor.from_recordings(record(step, sizes))
    limit = torch.cuda.memory_reserved() + 2000 * MIB
    largest = scaled.largest(limit, 0.02)
    print(scaled.reasons, largest, scaled.predict(largest), limit)
    retries = torch.cuda.memory_stats()["num_alloc_retries"]
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    try:
        for _ in range(3):
            step(largest)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert torch.cuda.memory_stats()["num_alloc_retries"] == retries
    assert torch.cuda.max_memory_reserved() >= 0.9 * limit
