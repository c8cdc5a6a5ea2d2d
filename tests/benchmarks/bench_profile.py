"""Memory by category, compared with PyTorch's deprecated memory timeline of the same profile."""

from __future__ import annotations

import tempfile
import time
import warnings
from pathlib import Path

STEPS = 20
RUNS = 2


def _profiled(torch):
    from ipygpumem.features.profile.profiler_session import ProfilerSession

    model = torch.nn.Sequential(*[torch.nn.Linear(16, 16) for _ in range(10)])
    optimizer = torch.optim.Adam(model.parameters())
    x = torch.ones(4, 16)
    capture = ProfilerSession()
    capture.start()
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(x).relu().sum().backward()
        optimizer.step()
    capture.stop()
    return capture


def run():
    import torch

    from ipygpumem.core.introspection import pause_gc
    from ipygpumem.features.profile.display import timeline_page
    from ipygpumem.features.profile.event_tree import read_flow
    from ipygpumem.features.profile.timeline import build_timelines

    capture = _profiled(torch)
    own_seconds = torch_seconds = float("inf")
    for _ in range(RUNS):
        start = time.perf_counter()
        with pause_gc():
            timelines = build_timelines(read_flow(capture.result))
        page = timeline_page(timelines, "bench.html")
        own_seconds = min(own_seconds, time.perf_counter() - start)
    rows = [
        {
            "measure": f"read and categorize {len(timelines[0]):,} changes, and write the page",
            "value": f"{own_seconds:.2f} s",
        },
        {"measure": "size of the page", "value": f"{len(page) / 1024:,.0f} KiB"},
    ]
    if hasattr(capture._profile, "export_memory_timeline"):
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            for _ in range(RUNS):
                start = time.perf_counter()
                capture._profile.export_memory_timeline(str(Path(folder) / "t.json"), "cpu")
                torch_seconds = min(torch_seconds, time.perf_counter() - start)
        rows.append({"measure": "torch's export_memory_timeline, .json", "value": f"{torch_seconds:.2f} s"})
        rows.append(
            {"measure": "torch's time divided by ours", "value": f"{torch_seconds / own_seconds:.1f}", "target": ">= 5"}
        )
    return rows
