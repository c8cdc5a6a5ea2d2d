"""Everybody on the cards, where that can be told and where it cannot."""

from __future__ import annotations

import os

import pytest

import ipygpumem
from fakes.nvml import FakeNvmlDevice
from ipygpumem.core.units import MIB
from ipygpumem.sources import process_names as processes


def test_the_parent_of_a_mig_instance_is_not_our_card(make_gpu):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(mig=True)])
    gpu.alloc(100 * MIB)
    (card,) = ipygpumem.processes()
    assert card.neighbours == ()
    assert card.why == "only the parent card of this MIG instance can be read, and its figures are not ours"


@pytest.mark.parametrize(("regime", "amount"), [("B", 0), ("wsl", None)])
def test_where_our_entry_is_not_known_it_is_not_called_a_neighbour(make_gpu, monkeypatch, regime, amount):
    monkeypatch.setattr(processes, "_drives", lambda pid: pid == os.getpid())
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(regime=regime)])
    gpu.alloc(100 * MIB)
    (card,) = ipygpumem.processes()
    (one,) = card.neighbours
    assert (one.pid, one.amount, one.relation) == (os.getpid(), amount, "unknown")
    assert one.why == "this process, if NVML's numbers are this system's"
    assert card.why.startswith("which entry is this process's is not known: NVML tells ")


def test_host_numbers_in_a_container_are_told_as_that(make_gpu):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(regime="A", others={9000001: 300 * MIB})])
    gpu.alloc(100 * MIB)
    (card,) = ipygpumem.processes()
    number = os.getpid() + 3_000_000
    assert (card.pid, card.why) == (number, f"pids are not of this PID namespace: this process is {number} there")
    (one,) = card.neighbours
    assert (one.relation, one.name, one.amount) == ("unknown", "", 300 * MIB)
    assert card.own + card.unattributed + one.amount == card.used


def test_a_device_that_is_not_there(make_gpu):
    make_gpu().alloc(MIB)
    with pytest.raises(ipygpumem.DeviceError, match="there is no device cuda:7"):
        ipygpumem.processes(device=[7])


def test_a_card_that_this_process_does_not_use(two_gpus):
    two_gpus.alloc(MIB)
    two_gpus[1].nvml_device.others[9000001] = 300 * MIB
    first, second = ipygpumem.processes()
    assert second.why == "this process is not on this card"
    assert [one.amount for one in second.neighbours] == [300 * MIB]
    assert not two_gpus[1].context
    assert first.pid == os.getpid()


def test_a_card_is_chosen_before_cuda_has_started(two_gpus):
    two_gpus[1].nvml_device.others[9000001] = 300 * MIB
    assert [card.device for card in ipygpumem.processes()] == ["card 0", "card 1"]
    (card,) = ipygpumem.processes(device=[1])
    assert (card.device, [one.amount for one in card.neighbours]) == ("card 1", [300 * MIB])
    assert not two_gpus[0].context
    with pytest.raises(ipygpumem.DeviceError):
        ipygpumem.processes(device=[2])


def test_entries_that_add_up_to_more_than_is_used(make_gpu):
    gpu = make_gpu()
    gpu.alloc(100 * MIB)
    gpu.nvml_device.unattributed = -50 * MIB
    (card,) = found = ipygpumem.processes()
    assert card.unattributed == -50 * MIB
    assert "in two entries at once" in str(found)
    told = str(ipygpumem.explain())
    assert "in two entries at once" in told
    assert "-50.0 MiB" not in told
    assert "nobody's" not in told


def test_without_nvml_nobody_says_nvidia_smi(make_gpu):
    import pynvml

    gpu = make_gpu()
    gpu.alloc(100 * MIB)
    gpu.nvml.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_GPU_IS_LOST)
    gpu.nvml.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_GPU_IS_LOST)
    gpu.nvml.fail("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_GPU_IS_LOST)
    told = str(ipygpumem.explain())
    assert "nvidia-smi shows" not in told
    assert "cuda:0: used, by cudaMemGetInfo " in told
    assert "nvidia-smi" not in str(ipygpumem.processes())
