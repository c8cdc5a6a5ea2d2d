"""Tests of NVML queries with the real pynvml and a fake library."""

from __future__ import annotations

import os
import sys
import types

import pynvml
import pytest

from fakes.nvml import FakeNvmlDevice
from ipygpumem.core.errors import NvmlError
from ipygpumem.sources.nvml import DeviceMemory, Nvml

MIB = 1 << 20


def opened(fake_nvml):
    nvml = Nvml()
    return nvml, nvml.handle(fake_nvml.devices[0].uuid)[0]


def test_memory_v2_includes_driver_reserve_in_used(fake_nvml):
    fake_nvml.devices[0].own = 700 * MIB
    nvml, handle = opened(fake_nvml)
    assert nvml.memory(handle) == DeviceMemory(143_771 * MIB, 1315 * MIB, 615 * MIB, "NVML memory info v2")


def test_memory_v2_of_driver_that_includes_its_reserve(fake_nvml):
    fake_nvml.devices[0].own = 700 * MIB
    fake_nvml.devices[0].reserved_in_used = True
    nvml, handle = opened(fake_nvml)
    assert nvml.memory(handle) == DeviceMemory(143_771 * MIB, 1315 * MIB, 615 * MIB, "NVML memory info v2")


def test_driver_without_v2_is_always_read_with_v1(fake_nvml):
    fake_nvml.devices[0].own = 700 * MIB
    fake_nvml.missing.add("nvmlDeviceGetMemoryInfo_v2")
    nvml, handle = opened(fake_nvml)
    expected = DeviceMemory(143_771 * MIB, 1315 * MIB, None, "NVML memory info v1")
    assert nvml.memory(handle) == expected
    fake_nvml.missing.clear()
    pynvml._nvmlGetFunctionPointer_cache.clear()
    assert nvml.memory(handle) == expected, "the version does not change"


def test_driver_with_another_structure_version(fake_nvml):
    fake_nvml.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH)
    nvml, handle = opened(fake_nvml)
    assert nvml.memory(handle).source == "NVML memory info v1"


def test_other_errors_of_v2_do_not_change_the_version(fake_nvml):
    nvml, handle = opened(fake_nvml)
    fake_nvml.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_UNKNOWN, times=1)
    with pytest.raises(NvmlError):
        nvml.memory(handle)
    assert nvml.memory(handle).source == "NVML memory info v2"


def test_compute_and_graphics_processes(fake_nvml):
    device = fake_nvml.devices[0]
    device.own, device.others, device.drawing = 5 * MIB, {77: 9 * MIB}, {77: 9 * MIB, 88: MIB}
    nvml, handle = opened(fake_nvml)
    assert nvml.processes(handle) == {os.getpid(): 5 * MIB, 77: 9 * MIB}
    assert nvml.processes(handle, graphics=True) == {os.getpid(): 5 * MIB, 77: 9 * MIB, 88: MIB}
    fake_nvml.missing |= {"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"}
    pynvml._nvmlGetFunctionPointer_cache.clear()
    assert nvml.processes(handle, graphics=True) == {os.getpid(): 5 * MIB, 77: 9 * MIB, 88: MIB}
    assert fake_nvml.calls["nvmlDeviceGetComputeRunningProcesses_v2"] > 0


def test_long_process_lists(fake_nvml):
    fake_nvml.devices[0].others = dict.fromkeys(range(1, 101), MIB)
    nvml, handle = opened(fake_nvml)
    assert len(nvml.processes(handle)) == 100
    fake_nvml.fail("nvmlDeviceGetComputeRunningProcesses_v3", pynvml.NVML_ERROR_INSUFFICIENT_SIZE)
    with pytest.raises(NvmlError):
        nvml.processes(handle)


def test_query_by_another_thread_during_a_query(fake_nvml):
    fake_nvml.devices.append(FakeNvmlDevice(uuid="GPU-2", total=80_000 * MIB, others={88: MIB}))
    fake_nvml.devices[0].others = {77: 9 * MIB}
    nvml, first = opened(fake_nvml)
    second = nvml.handle("GPU-2")[0]
    memory, processes = fake_nvml.nvmlDeviceGetMemoryInfo_v2, fake_nvml.nvmlDeviceGetComputeRunningProcesses_v3
    queries = {"nvmlDeviceGetMemoryInfo_v2": (memory, nvml.memory)}
    queries["nvmlDeviceGetComputeRunningProcesses_v3"] = (processes, nvml.processes)
    expected = {name: query(second) for name, (_, query) in queries.items()}
    others = []
    for name, (function, query) in queries.items():

        def call(handle, *arguments, name=name, function=function, query=query):
            code = function(handle, *arguments)
            setattr(fake_nvml, name, function)
            others.append(query(second) == expected[name])  # in another thread, while the result has not been read yet
            return code

        setattr(fake_nvml, name, call)
    assert nvml.memory(first).total == 143_771 * MIB
    assert nvml.processes(first) == {77: 9 * MIB}
    assert others == [True, True]


def test_unused_device_has_no_processes(fake_nvml):
    nvml, handle = opened(fake_nvml)
    assert nvml.processes(handle) == {}


def test_unavailable_sizes_are_none(fake_nvml):
    fake_nvml.devices[0].own, fake_nvml.devices[0].regime = MIB, "wsl"
    nvml, handle = opened(fake_nvml)
    assert nvml.processes(handle) == {os.getpid(): None}


def test_handles_by_uuid_and_pci_bus_id(fake_nvml):
    fake_nvml.devices.append(FakeNvmlDevice(uuid="GPU-2", pci="00000000:3B:00.0", total=MIB))
    fake_nvml.devices.append(FakeNvmlDevice(uuid="MIG-3", total=2 * MIB))
    nvml = Nvml()
    for name in ("2", "GPU-2"):
        handle, parent = nvml.handle(name)
        assert (nvml.memory(handle).total, parent) == (MIB, False)
    handle, parent = nvml.handle("3")
    assert (nvml.memory(handle).total, parent) == (2 * MIB, False)
    handle, parent = nvml.handle("unheard of", "00000000:3B:00.0")
    assert (nvml.memory(handle).total, parent) == (MIB, False)
    with pytest.raises(NvmlError, match="cannot find the device"):
        nvml.handle("unheard of")


def test_whole_gpu_of_mig_instance_is_recognized(fake_nvml):
    fake_nvml.devices[0].mig = True
    nvml = Nvml()
    assert nvml.handle(fake_nvml.devices[0].uuid)[1] is True
    assert nvml.handle("MIG-not listed", fake_nvml.devices[0].pci)[1] is True
    fake_nvml.fail("nvmlDeviceGetMigMode", pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert nvml.handle(fake_nvml.devices[0].uuid)[1] is False


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (pynvml.NVML_ERROR_UNINITIALIZED, "shut down"),
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "does not support"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "no permission"),
        (pynvml.NVML_ERROR_GPU_IS_LOST, "GPU is lost"),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "driver is too old"),
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "the versions of the driver and of NVML differ"),
        (pynvml.NVML_ERROR_UNKNOWN, "Unknown Error"),
        (4711, "error 4711"),
    ],
)
def test_errors_have_readable_reasons(fake_nvml, code, reason):
    nvml, handle = opened(fake_nvml)
    fake_nvml.fail("nvmlDeviceGetComputeRunningProcesses_v3", code)
    fake_nvml.fail("nvmlDeviceGetComputeRunningProcesses_v2", code)
    with pytest.raises(NvmlError, match=reason) as exc_info:
        nvml.processes(handle)
    assert "\n" not in str(exc_info.value)


def test_no_library_and_no_driver(fake_nvml):
    fake_nvml.present = False
    with pytest.raises(NvmlError, match="the NVIDIA driver library"):
        Nvml()
    fake_nvml.present = True
    fake_nvml.fail("nvmlInitWithFlags", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(NvmlError, match="driver is not loaded"):
        Nvml()


def _package(**names):
    module = types.ModuleType("pynvml")
    vars(module).update(names)
    return module


@pytest.mark.parametrize(
    "module",
    [
        _package(__file__="/site-packages/pynvml/__init__.py", nvmlMemory_v2=1),
        _package(__file__="/site-packages/pynvml/__init__.py"),
        _package(__file__="/site-packages/pynvml.py"),
        _package(__file__=None),
        _package(),
    ],
)
def test_old_package_with_the_same_name(monkeypatch, module):
    monkeypatch.setitem(sys.modules, "pynvml", module)
    with pytest.raises(NvmlError, match="pip uninstall pynvml"):
        Nvml()


def test_nvidia_ml_py_cannot_be_imported(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NvmlError, match="nvidia-ml-py is not installed"):
        Nvml()
    (tmp_path / "pynvml.py").write_text("raise OSError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml")
    with pytest.raises(NvmlError, match="cannot be imported: broken"):
        Nvml()


def test_warning_of_deprecated_package_is_hidden(monkeypatch, tmp_path):
    (tmp_path / "pynvml.py").write_text("import warnings; warnings.warn('deprecated', FutureWarning)")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "pynvml")
    with pytest.raises(NvmlError, match="uninstall"):  # not a FutureWarning, which is an error in these tests
        Nvml()
