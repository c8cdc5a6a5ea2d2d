"""``ipygpumem env``: tried, not guessed."""

from fakes.builds import NO_GPU
from ipygpumem.features.environment.collect import environment, environment_lines


def test_a_machine_with_a_gpu(fake_gpu):
    facts = environment()
    assert facts.torch is None
    assert facts.nvml is None
    assert facts.cards[0][0] == "NVIDIA H200"
    assert facts.mode == ("process", "NVML entry verified by a test allocation")
    assert facts.numbers["allocated (tensors)"] == ("exact", "allocator counter")
    assert facts.numbers["outside PyTorch"][0] == "exact"
    assert facts.numbers["recording of snapshots"][0] == "exact"
    assert "mode       process: NVML entry verified by a test allocation" in environment_lines(facts)


def test_a_machine_without(fake_nvml):
    facts = environment()
    assert facts.torch == NO_GPU
    assert facts.mode is None
    assert facts.numbers["GPU memory"] == ("unknown", facts.torch)
    assert facts.driver in "\n".join(environment_lines(facts))
