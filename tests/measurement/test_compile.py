"""Compiled code that reads the counters. Dynamo must be imported before the fake GPU is installed."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo

from ipygpumem.measurement.runtime import current

MIB = 1 << 20


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")  # from torch itself
def test_compiled_code_reads_the_counters(fake_gpu):
    def step(x):
        y = x * 2
        peak = torch.cuda.max_memory_allocated(0)
        torch.cuda.reset_peak_memory_stats(0)
        return y + 1, peak, torch.cuda.memory_stats(0)["allocated_bytes.all.peak"]

    fake_gpu.free(fake_gpu.alloc(40 * MIB))
    current().peaks.install()
    scope = current().peaks.scope()
    current().peaks.enter(scope, 0, reset=True)
    torch._dynamo.reset()
    compiled = torch.compile(step, backend="eager")
    for _ in range(2):
        y, *peaks = compiled(torch.ones(3))
        assert y.tolist() == [3, 3, 3]
    assert peaks == [0, 0]
    fake_gpu.free(fake_gpu.alloc(30 * MIB))
    assert compiled(torch.ones(3))[1:] == (30 * MIB, 0)
    current().peaks.leave(scope, 0)
    current().peaks.drop(scope)
    assert scope.peaks[0].allocated == 30 * MIB
