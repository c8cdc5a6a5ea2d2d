"""The replacement for ipyexperiments.utils.mem, which has the same names and units."""

from __future__ import annotations

import inspect

import pytest
import torch

from fakes.nvml import FakeNvmlDevice
from ipygpumem import IpyGpuMemError, RecordingError
from ipygpumem.compat import ipyexperiments as mem

MIB = 1 << 20
TOLERANCE = 2


def test_names_and_signatures_match_original():
    def signature(function):
        parameters = inspect.signature(function).parameters.values()
        return f"({', '.join(str(parameter.replace(annotation=parameter.empty)) for parameter in parameters)})"

    names = [name for name in mem.__all__ if name[0] in "gp"]
    assert {name: signature(getattr(mem, name)) for name in names} == {
        "gpu_mem_allocate_mbs": "(n, fatal=False)",
        "gpu_mem_get_free_mbs": "(torch_gpu_id=None)",
        "gpu_mem_get_free_no_cache_mbs": "()",
        "gpu_mem_get_mbs": "(torch_gpu_id=None)",
        "gpu_mem_get_total_mbs": "(torch_gpu_id=None)",
        "gpu_mem_get_used_mbs": "(torch_gpu_id=None)",
        "gpu_mem_get_used_no_cache_mbs": "()",
        "gpu_mem_leave_free_mbs": "(n)",
        "preload_pytorch": "(device_id=0)",
    }


def test_total_free_and_used_are_in_mib(fake_gpu):
    fake_gpu.alloc(100 * MIB)
    memory = mem.gpu_mem_get_mbs()
    assert memory == (143_771, 143_771 - 615 - 620 - 100, 615 + 620 + 100)
    assert memory.total == memory.free + memory.used
    assert mem.gpu_mem_get_total_mbs() == memory.total
    assert mem.gpu_mem_get_free_mbs() == memory.free
    assert mem.gpu_mem_get_used_mbs() == memory.used


def test_first_call_initializes_cuda(fake_gpu):
    assert mem.gpu_mem_get_used_mbs() == 615 + 620
    assert fake_gpu[0].context


def test_preload_initializes_cuda_once(two_gpus):
    mem.preload_pytorch(1)
    assert [device.context for device in two_gpus.devices] == [False, True]
    mem.preload_pytorch(0)
    assert not two_gpus[0].context


def test_cached_memory_is_not_counted_as_used(fake_gpu):
    fake_gpu.alloc(MIB)
    free = mem.gpu_mem_get_free_no_cache_mbs()
    fake_gpu.free(fake_gpu.alloc(300 * MIB))
    assert mem.gpu_mem_get_free_mbs() == free - 300
    assert mem.gpu_mem_get_free_no_cache_mbs() == free
    fake_gpu.free(fake_gpu.alloc(300 * MIB))
    assert mem.gpu_mem_get_used_no_cache_mbs() == 143_771 - free


def test_memory_is_allocated_until_the_tensor_is_deleted(fake_gpu):
    before = mem.gpu_mem_get_used_mbs()
    tensor = mem.gpu_mem_allocate_mbs(500)
    assert abs(mem.gpu_mem_get_used_mbs() - before - 500) <= TOLERANCE
    assert (tensor.dtype, tensor.numel() * tensor.element_size()) == (torch.float32, 500 * MIB)
    del tensor
    assert mem.gpu_mem_get_used_no_cache_mbs() == before


def test_not_enough_memory_is_none_or_an_error(make_gpu):
    make_gpu(nvml_devices=[FakeNvmlDevice(total=4000 * MIB)])
    assert mem.gpu_mem_allocate_mbs(5000) is None
    with pytest.raises(torch.cuda.OutOfMemoryError):
        mem.gpu_mem_allocate_mbs(5000, fatal=True)


@pytest.mark.parametrize("free_mib", [1000, 10])
def test_requested_memory_stays_free(fake_gpu, free_mib):
    tensor = mem.gpu_mem_leave_free_mbs(free_mib)
    assert abs(mem.gpu_mem_get_free_mbs() - free_mib) <= TOLERANCE
    del tensor


def test_allocation_loads_no_kernel(fake_gpu):
    fake_gpu.fill_kernel = 8 * MIB
    mem.preload_pytorch()
    wanted = mem.gpu_mem_get_free_mbs() - 10
    tensor = mem.gpu_mem_leave_free_mbs(wanted)
    assert abs(mem.gpu_mem_get_free_mbs() - wanted) <= 1
    assert tensor.is_cuda


def test_less_memory_is_already_free(make_gpu):
    make_gpu(nvml_devices=[FakeNvmlDevice(total=2000 * MIB)])
    with pytest.raises(AssertionError, match="cannot leave 3000 MiB free: only 765 MiB is free"):
        mem.gpu_mem_leave_free_mbs(3000)


def test_current_device_is_default(two_gpus):
    two_gpus.alloc(MIB, 0)
    two_gpus.outside(700 * MIB, 1)
    torch.cuda.set_device(1)
    assert mem.gpu_mem_get_used_mbs() == 615 + 620 + 700
    assert mem.gpu_mem_get_used_mbs(0) == 615 + 620 + 2


@pytest.mark.parametrize("index", [7, -1])
def test_nonexistent_device(fake_gpu, index):
    with pytest.raises(IpyGpuMemError, match="device"):
        mem.gpu_mem_get_free_mbs(index)


def test_cuda_is_queried_without_nvml(fake_gpu):
    fake_gpu.nvml.present = False
    assert mem.gpu_mem_get_free_mbs() == 143_771 - 615 - 620


def test_functions_raise_without_gpu():
    for call in (mem.preload_pytorch, mem.gpu_mem_get_free_mbs, mem.gpu_mem_get_free_no_cache_mbs):
        with pytest.raises(RecordingError, match="this function requires a GPU"):
            call()
