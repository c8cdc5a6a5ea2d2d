"""``%%gpumem --outside``, ``GPUMem.outside`` and ``%gpumem env`` in IPython."""

from __future__ import annotations

import threading
import time

import pytest

from fakes.cupti import CUPY, NCCL, FakeCupti, use_library
from ipygpumem.core.units import MIB

pytest.importorskip("llvmlite")


@pytest.fixture
def cupti(monkeypatch):
    library = FakeCupti()
    use_library(monkeypatch, library)
    return library


@pytest.fixture
def notebook(gpu_notebook, fake_gpu, cupti):
    def allocate(address, size, source):
        fake_gpu.outside(size)
        cupti.alloc(address, size, source)

    def free(address):
        fake_gpu.outside(-cupti._sizes[address])
        cupti.free(address)

    gpu_notebook.shell.user_ns.update(allocate=allocate, free=free, NCCL=NCCL, CUPY=CUPY, MIB=MIB)
    return gpu_notebook


def threads():
    """Return the threads that read records; the sampler thread exists until the extension is unloaded."""
    return [thread.name for thread in threading.enumerate() if thread.name == "ipygpumem-outside"]


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_cell_with_table_by_library(notebook, cupti):
    result = notebook.run("%%gpumem --outside\nallocate(0x1000, 388 * MIB, NCCL)")
    assert result.success
    assert "cuda:0 outside PyTorch, by library" in result.text
    assert "NCCL" in result.text
    assert notebook.last.libraries[0].named == 388 * MIB
    assert not cupti.enabled
    wait_for(lambda: threads() == [])
    assert notebook.run("allocate(0x2000, MIB, NCCL)").success
    assert notebook.last.libraries == ()


def test_statement_has_a_sentence(notebook):
    result = notebook.run("%gpumem --outside allocate(0x1000, 388 * MIB, NCCL)")
    assert "cuda:0 outside PyTorch: NCCL +388.0 MiB" in result.text


def test_reason_is_shown_without_cupti(gpu_notebook, no_cupti):
    result = gpu_notebook.run("%%gpumem --outside\nx = 5\nx")
    assert result.value == 5
    assert "memory outside PyTorch by library: the CUPTI library is not loaded" in result.text


def test_setting_records_across_cells(notebook, cupti):
    notebook.run("%config GPUMem.outside = 'library'")
    assert cupti.enabled
    assert threads() == ["ipygpumem-outside"]
    result = notebook.run("allocate(0x1000, 256 * MIB, CUPY)")
    assert "cuda:0 outside PyTorch: CuPy +256.0 MiB" in result.text
    result = notebook.run("free(0x1000)")
    assert "cuda:0 outside PyTorch: CuPy -256.0 MiB" in result.text
    notebook.run("%config GPUMem.outside = 'off'")
    assert not cupti.enabled
    wait_for(lambda: threads() == [])


def test_memory_freed_in_same_cell(notebook):
    notebook.run("%config GPUMem.outside = 'library'")
    result = notebook.run("allocate(0x1000, 512 * MIB, CUPY)\nfree(0x1000)")
    assert "cuda:0 outside PyTorch: CuPy peak +512.0 MiB" in result.text
    notebook.run("%config GPUMem.min_change = '4 MiB'")
    assert notebook.run("allocate(0x2000, 2 * MIB, CUPY)\nfree(0x2000)").displays == []


def test_problem_with_setting_is_reported_once(gpu_notebook, fake_gpu, no_cupti):
    result = gpu_notebook.run("%config GPUMem.outside = 'library'")
    assert result.stdout == (
        "ipygpumem: memory outside PyTorch cannot be broken down by library: the CUPTI library is not loaded: "
        "only CUDA builds of PyTorch load it\n"
    )
    gpu_notebook.shell.user_ns["gpu"] = fake_gpu
    result = gpu_notebook.run("gpu.outside(64 << 20)")
    assert "outside PyTorch +64.0 MiB" in result.text
    assert "CUPTI" not in result.text + result.stdout


def test_unload_within_cell_stops_recording(notebook, cupti):
    notebook.run("%config GPUMem.outside = 'library'")
    result = notebook.run("%%gpumem --outside\nallocate(0x1000, MIB, CUPY)\n%unload_ext ipygpumem\nx = 7")
    assert result.success
    assert not cupti.enabled
    wait_for(lambda: threads() == [])


def test_invalid_setting(notebook):
    notebook.run("%config GPUMem.outside = 'everything'")
    assert notebook.run("%config GPUMem.outside").value == "off"


def test_env_shows_missing_packages(gpu_notebook, no_cupti):
    result = gpu_notebook.run("%gpumem env")
    assert "outside PyTorch, by library" in result.stdout
    assert "unknown: the CUPTI library is not loaded: only CUDA builds of PyTorch load it" in result.stdout
    assert "NVML entry verified by a test allocation" in result.stdout
    assert not gpu_notebook.run("%gpumem env now").success


def test_env_shows_the_pip_command(notebook, monkeypatch):
    from ipygpumem.core.errors import CuptiError
    from ipygpumem.sources.cupti.buffers import ActivityBuffers

    def missing():
        raise CuptiError("llvmlite is not installed: pip install 'ipygpumem[outside]'")

    monkeypatch.setattr(ActivityBuffers, "shared", missing)
    assert "pip install 'ipygpumem[outside]'" in notebook.run("%gpumem env").stdout


def test_env_with_all_packages(notebook):
    lines = notebook.run("%gpumem env").stdout.splitlines()
    line = next(line for line in lines if "by library" in line)
    assert line.endswith("  exact: CUPTI's records of allocations")


def test_later_problem_is_reported_once(notebook, cupti):
    notebook.run("%config GPUMem.outside = 'library'")
    notebook.run("allocate(0x1000, 100 * MIB, NCCL)")
    cupti.refuses["cuptiGetTimestamp"] = 999
    texts = [notebook.run(f"allocate({0x2000 + i * 0x1000}, 100 * MIB, NCCL)").text for i in range(3)]
    assert ["by library: " in text for text in texts] == [True, False, False]
    cupti.refuses.clear()
    assert "NCCL +50.0 MiB" in notebook.run("allocate(0x9000, 50 * MIB, NCCL)").text
    notebook.run("%config GPUMem.outside = 'off'")


def test_env_shows_the_last_error_of_cupti(notebook, cupti):
    cupti.refuses["cuptiActivityEnable"] = 35
    result = notebook.run("%%gpumem --outside -v r\n1")
    assert result.success
    env = notebook.run("%gpumem env").stdout
    assert "exact: CUPTI's records" not in env
    assert "the last attempt to start recording failed: " in env
    cupti.refuses.clear()
    notebook.run("%%gpumem --outside\n1")
    assert "the last attempt to start recording failed: " not in notebook.run("%gpumem env").stdout


def test_option_requires_a_statement(notebook):
    result = notebook.run("%gpumem --outside")
    assert not result.success
    assert "requires a statement" in str(result.error)
