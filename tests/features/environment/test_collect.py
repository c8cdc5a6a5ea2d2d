"""Tests of the values shown by ``ipygpumem env`` on machines with and without a GPU."""

from fakes.builds import NO_GPU
from ipygpumem.features.environment.collect import environment, environment_lines


def test_machine_with_gpu(fake_gpu):
    facts = environment()
    assert facts.torch is None
    assert facts.nvml is None
    assert facts.devices[0][0] == "NVIDIA H200"
    assert facts.mode == ("process", "NVML entry verified by a test allocation")
    assert facts.accuracy["allocated (tensors)"] == ("exact", "allocator counter")
    assert facts.accuracy["outside PyTorch"][0] == "exact"
    assert facts.accuracy["recording snapshots"][0] == "exact"
    assert "attribution  by process: NVML entry verified by a test allocation" in environment_lines(facts)


def test_machine_without_gpu(fake_nvml):
    facts = environment()
    assert facts.torch == NO_GPU
    assert facts.mode is None
    assert facts.accuracy["GPU memory"] == ("unknown", facts.torch)
    assert facts.driver in "\n".join(environment_lines(facts))
