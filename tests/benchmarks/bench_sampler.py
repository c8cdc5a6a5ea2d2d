"""The overhead of sampling, in an eager loop of small operations that is measured alternately with and without samples.

Without a GPU, the thread samples a fake NVML library behind the real pynvml, and the loop runs on the CPU.
"""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path

ROUNDS = 21
SECONDS = 0.3


def _machine():
    import torch

    if torch.cuda.is_available():
        return "cuda", None
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from fakes.cuda import FakeGpu

    return "cpu", FakeGpu().install()


def run():
    try:
        import torch
    except ImportError:
        return []
    device, gpu = _machine()
    try:
        return _measured(torch, device)
    finally:
        if gpu is not None:
            gpu.uninstall()


def _measured(torch, device):
    import ipygpumem
    from ipygpumem.measurement.runtime import current

    ipygpumem.preload_pytorch()
    torch.set_num_threads(1)
    x = torch.ones(8) if device == "cpu" else torch.ones(8, device="cuda")

    def loop(count):
        start = time.perf_counter()
        for _ in range(count):
            x.add_(1)
        if device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - start

    count = int(20_000 * SECONDS / loop(20_000))
    opened = current().sampler.begin
    ratios, gaps, samples, ends = [], [], [], {True: [], False: []}
    for number in range(ROUNDS):
        times = {}
        for on in (True, False) if number % 2 else (False, True):
            current().sampler.begin = opened if on else lambda _: None
            with ipygpumem.measure():
                if on:
                    time.sleep(0.06)
                    window = current().sampler.windows[0]
                times[on] = loop(count)
            start = time.perf_counter()
            for _ in range(20):
                with ipygpumem.measure():
                    pass
            ends[on].append((time.perf_counter() - start) / 20)
        ratios.append(times[True] / times[False])
        gaps.append(window.tracks[0].gap)
        samples.append(window.tracks[0].count / times[True])
    current().sampler.begin = opened
    ratio = statistics.median(ratios)
    short = {on: statistics.median(values) * 1e6 for on, values in ends.items()}
    machine = "on a GPU" if device == "cuda" else "on the CPU with a fake NVML library"
    return [
        {
            "measure": f"eager loop of {count:,} small operations {machine}, with / without",
            "value": f"{ratio:.3f} x",
            "ratio": ratio,
            "target": "<= 1.02 x",
        },
        {
            "measure": "samples per second, and the largest gap (median)",
            "value": f"{statistics.median(samples):.0f}, {statistics.median(gaps) * 1e3:.1f} ms",
        },
        {
            "measure": "measurement too short for samples, with / without",
            "value": f"{short[True]:.0f} us / {short[False]:.0f} us = {short[True] / short[False]:.3f} x",
            "ratio": short[True] / short[False],
        },
    ]
