"""The overhead of CUPTI's records, which are enabled and disabled alternately in one process."""

from __future__ import annotations

import ctypes
import statistics
import time
from pathlib import Path

ROUNDS = 9
LAUNCHES = 20_000
PAIRS = 1_000
SIZE = 8 << 20


def run():
    try:
        import torch
    except ImportError:
        return []
    return _measured(torch) if torch.cuda.is_available() else []


def _runtime():
    maps = Path("/proc/self/maps").read_text().splitlines()
    return ctypes.CDLL(next(line.split()[-1] for line in maps if "libcudart" in line.rpartition("/")[2]))


def _measured(torch):
    import ipygpumem

    ipygpumem.preload_pytorch()
    x, cudart = torch.ones(64, device="cuda"), _runtime()
    pointer = ctypes.c_void_p()

    def launches():
        start = time.perf_counter()
        for _ in range(LAUNCHES):
            x.add_(1)
        torch.cuda.synchronize()
        return time.perf_counter() - start

    def pairs():
        start = time.perf_counter()
        for _ in range(PAIRS):
            cudart.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(SIZE))
            cudart.cudaFree(pointer)
        return (time.perf_counter() - start) / PAIRS

    def measurement(*, outside):
        start = time.perf_counter()
        with ipygpumem.measure(outside=outside):
            pass
        return time.perf_counter() - start

    times = {(work, on): [] for work in (launches, pairs, measurement) for on in (False, True)}
    launches(), pairs(), measurement(outside=True)
    for i in range(ROUNDS):
        for on in (False, True) if i % 2 else (True, False):
            with ipygpumem.measure(outside=on):
                times[launches, on].append(launches())
                times[pairs, on].append(pairs())
            times[measurement, on].append(measurement(outside=on))
    median = {key: statistics.median(values) for key, values in times.items()}

    def row(name, work, scale, unit, target=None):
        off, on = median[work, False], median[work, True]
        return {
            "measure": name,
            "value": f"{on * scale:.1f} {unit} with records, {off * scale:.1f} without: {on / off:.3f} x",
            "ratio": on / off,
            "target": target,
        }

    return [
        row(f"{LAUNCHES:,} small operations", launches, 1e3, "ms", "<= 1.02 x"),
        row("cudaMalloc + cudaFree", pairs, 1e6, "us", "<= 1.15 x"),
        row("start and end of a measurement", measurement, 1e6, "us"),
    ]
