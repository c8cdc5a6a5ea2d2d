"""Tests of the list of processes on each device, with and without complete information from NVML."""

from __future__ import annotations

import os

import pytest

import ipygpumem
from fakes.nvml import FakeNvmlDevice
from ipygpumem.core.units import MIB
from ipygpumem.sources import host


def test_whole_gpu_of_mig_instance_is_not_listed(make_gpu):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(mig=True)])
    gpu.alloc(100 * MIB)
    (device,) = ipygpumem.processes()
    assert device.neighbours == ()
    assert device.why == "NVML cannot query this MIG instance, only the whole GPU, which other users may share"


@pytest.mark.parametrize(("regime", "amount"), [("B", 0), ("wsl", None)])
def test_entry_with_own_pid_is_marked_if_own_entry_is_unknown(make_gpu, monkeypatch, regime, amount):
    monkeypatch.setattr(host, "_uses_driver", lambda pid: pid == os.getpid())
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(regime=regime)])
    gpu.alloc(100 * MIB)
    (device,) = ipygpumem.processes()
    (process,) = device.neighbours
    assert (process.pid, process.amount, process.relation) == (os.getpid(), amount, "unknown")
    assert process.why == "probably this process"
    assert device.why.startswith("the entry of this process in NVML's process list is unknown: NVML ")


def test_host_pids_in_container(make_gpu):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(regime="A", others={9000001: 300 * MIB})])
    gpu.alloc(100 * MIB)
    (device,) = ipygpumem.processes()
    pid = os.getpid() + 3_000_000
    assert (device.pid, device.why) == (
        pid,
        f"the PIDs are those of another PID namespace, in which this process has PID {pid}",
    )
    (process,) = device.neighbours
    assert (process.relation, process.name, process.amount) == ("unknown", "", 300 * MIB)
    assert device.own + device.unattributed + process.amount == device.used


def test_nonexistent_device(make_gpu):
    make_gpu().alloc(MIB)
    with pytest.raises(ipygpumem.DeviceError, match="there is no device cuda:7"):
        ipygpumem.processes(device=[7])


def test_device_not_used_by_this_process(two_gpus):
    two_gpus.alloc(MIB)
    two_gpus[1].nvml_device.others[9000001] = 300 * MIB
    first, second = ipygpumem.processes()
    assert second.why == "this process does not use this device"
    assert [process.amount for process in second.neighbours] == [300 * MIB]
    assert not two_gpus[1].context
    assert first.pid == os.getpid()


def test_device_is_selected_before_cuda_is_initialized(two_gpus):
    two_gpus[1].nvml_device.others[9000001] = 300 * MIB
    assert [device.device for device in ipygpumem.processes()] == ["GPU 0", "GPU 1"]
    (device,) = ipygpumem.processes(device=[1])
    assert (device.device, [process.amount for process in device.neighbours]) == ("GPU 1", [300 * MIB])
    assert not two_gpus[0].context
    with pytest.raises(ipygpumem.DeviceError):
        ipygpumem.processes(device=[2])


def test_entries_that_exceed_used_memory(make_gpu):
    gpu = make_gpu()
    gpu.alloc(100 * MIB)
    gpu.nvml_device.unattributed = -50 * MIB
    (device,) = listing = ipygpumem.processes()
    assert device.unattributed == -50 * MIB
    assert "listed twice" in str(listing)
    text = str(ipygpumem.explain())
    assert "listed twice" in text
    assert "-50.0 MiB" not in text


def test_tables_do_not_mention_nvidia_smi_without_nvml(make_gpu):
    import pynvml

    gpu = make_gpu()
    gpu.alloc(100 * MIB)
    gpu.nvml.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_GPU_IS_LOST)
    gpu.nvml.fail("nvmlDeviceGetMemoryInfo", pynvml.NVML_ERROR_GPU_IS_LOST)
    gpu.nvml.fail("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_GPU_IS_LOST)
    text = str(ipygpumem.explain())
    assert "nvidia-smi shows" not in text
    assert "cuda:0: used (cudaMemGetInfo) " in text
    assert "nvidia-smi" not in str(ipygpumem.processes())
