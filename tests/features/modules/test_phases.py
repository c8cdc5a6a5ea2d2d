"""Phases of a training step: changes that add up, peaks, and nested phases."""

from __future__ import annotations

import pytest

from ipygpumem.features.modules.phases import PhaseTracker
from ipygpumem.measurement.runtime import current

MIB = 1 << 20


@pytest.fixture
def gpu(fake_gpu):
    fake_gpu.alloc(MIB)
    current().peaks.install()
    return fake_gpu


def test_sums(gpu):
    outer = current().peaks.scope()
    before = current().peaks.enter(outer, 0, reset=True).now.allocated
    phases = PhaseTracker(reset=True)
    phases.begin()
    blocks = []
    for _ in range(2):
        phases.enter("forward")
        blocks.append(gpu.alloc(10 * MIB))
        gpu.free(gpu.alloc(30 * MIB))
        phases.leave("forward")
        gpu.free(gpu.alloc(2 * MIB))
    phases.enter("backward")
    gpu.free(blocks.pop())
    phases.leave("backward")
    phases.end()
    phases.end()
    after = current().peaks.leave(outer, 0).now.allocated
    totals = phases.of_device(0)
    assert [(phase.name, phase.count) for phase in totals] == [("forward", 2), ("backward", 1), ("other", 4)]
    assert [phase.change // MIB for phase in totals] == [20, -10, 0]
    assert [phase.peak // MIB for phase in totals] == [51, 21, 23]
    assert sum(phase.change for phase in totals) == after - before
    assert totals[-1].after == after
    assert outer.peaks[0].allocated == 51 * MIB, "the enclosing measurement has its own peak"
    current().peaks.drop(outer)


@pytest.mark.parametrize(
    ("entered", "expected"),
    [
        (["forward"], "forward"),
        (["backward"], "backward"),
        (["backward", "forward"], "backward"),  # checkpointing
        (["forward", "backward"], "backward"),  # a gradient inside a forward pass
        (["optimizer"], "optimizer"),
        (["optimizer", "forward"], "forward"),  # a closure
        (["optimizer", "backward"], "backward"),
        (["optimizer", "backward", "forward"], "backward"),
        (["backward", "optimizer"], "optimizer"),  # an optimizer step in a backward hook
    ],
)
def test_innermost_phase_is_counted(gpu, entered, expected):
    phases = PhaseTracker(reset=True)
    phases.begin()
    for name in entered:
        phases.enter(name)
    gpu.alloc(7 * MIB)
    phases.leave(entered[0])
    phases.leave("forward")
    phases.end()
    assert [phase.name for phase in phases.of_device(0) if phase.change == 7 * MIB] == [expected]


def test_peak_counters_without_reset(gpu):
    gpu.free(gpu.alloc(50 * MIB))
    resets = gpu.calls["resetPeakMemoryStats"]
    phases = PhaseTracker(reset=False)
    phases.begin()
    phases.enter("forward")
    gpu.free(gpu.alloc(30 * MIB))
    phases.leave("forward")
    phases.end()
    assert phases.of_device(0)[0].peak is None, "an earlier peak is higher"
    assert gpu.calls["resetPeakMemoryStats"] == resets


def test_device_first_used_during_phase(make_gpu):
    gpu = make_gpu(2)
    phases = PhaseTracker(reset=True)
    phases.begin()
    phases.enter("forward")
    gpu.alloc(5 * MIB, 1)
    phases.leave("forward")
    phases.end()
    forward, *_ = phases.of_device(1)
    assert (forward.name, forward.change, forward.peak) == ("forward", 5 * MIB, 5 * MIB)
