"""``%gpumem explain`` and ``ipygpumem.explain`` on the fake GPU."""

from __future__ import annotations

import re

import pytest
import torch

import ipygpumem
from fakes.builds import NO_GPU
from fakes.cuda import CONTEXT, KERNELS
from fakes.cupti import CUPY, NCCL, FakeCupti, use_library
from fakes.nvml import FakeNvmlDevice
from fakes.reports import waterfall_imbalance
from ipygpumem.core.units import MIB


def steps(waterfall):
    return {step.label: step.amount for step in waterfall.steps}


@pytest.fixture
def heap(gpu_notebook, fake_gpu):
    """Return a notebook with 100 MiB of tensors and with cached memory in free, fragmented and private segments."""
    blocks = [fake_gpu.alloc(size * MIB) for size in (100, 30, 6, 6)]
    fake_gpu.free(blocks[1])
    fake_gpu.free(blocks[3])
    fake_gpu.free(fake_gpu.alloc(64 * MIB, pool=(0, 1)))
    fake_gpu.nvml_device.others[4194303] = 500 * MIB
    return gpu_notebook


def test_all_steps(heap, fake_gpu):
    fake_gpu.outside(256 * MIB)
    result = heap.run("%gpumem explain")
    (waterfall,) = ipygpumem.explain().devices
    assert waterfall_imbalance(waterfall) == 0
    amounts = steps(waterfall)
    assert amounts["nvidia-smi shows"] == fake_gpu.nvml_device.used
    assert amounts["allocated (tensors)"] == torch.cuda.memory_allocated()
    assert (amounts["CUDA context"], amounts["first kernels"]) == (CONTEXT, KERNELS)
    assert amounts["libraries, kernel code, local memory, CUDA graphs"] == 256 * MIB
    assert amounts["pid 4194303"] == 500 * MIB
    assert amounts["cached in private pools"] == 64 * MIB
    assert amounts["cached, can be released"] + amounts["cached, cannot be released"] + 64 * MIB == (
        torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    )
    lines = result.text.splitlines()
    assert lines[0] == "cuda:0, NVIDIA H200"
    assert lines[1].startswith("cuda:0: nvidia-smi shows ")
    row = next(line for line in lines if line.startswith("  CUDA context"))
    assert re.fullmatch(r"  CUDA context +- 612\.0 MiB +▒+ +derived  exists until this process ends", row)
    assert "to list later allocations by library, run %config GPUMem.outside = 'library'" in lines
    html = result.displays[0]["text/html"]
    assert "<svg" not in html and "<script" not in html and "<style" not in html, "an untrusted notebook removes them"
    assert html.count("<tr") == len(waterfall.steps)


def test_releasable_memory_is_freed(heap, fake_gpu):
    before = ipygpumem.explain().devices[0]
    amounts = steps(before)
    assert amounts["cached, can be released"] == 32 * MIB
    torch.cuda.empty_cache()
    after = steps(ipygpumem.explain().devices[0])
    freed = amounts["nvidia-smi shows"] - after["nvidia-smi shows"]
    # no graph uses the pool any more, which PyTorch does not report
    assert freed == amounts["cached, can be released"] + amounts["cached in private pools"]
    assert "cached, can be released" not in after
    assert after["cached, cannot be released"] == amounts["cached, cannot be released"]


def test_nothing_is_changed(heap, fake_gpu):
    with assert_heap_unchanged(fake_gpu):
        heap.run("%gpumem explain")
    assert fake_gpu.violations == []


class assert_heap_unchanged:  # noqa: N801 (a context manager reads as a verb)
    def __init__(self, gpu):
        self.gpu = gpu

    def __enter__(self):
        self.before = torch.cuda.memory_stats(), self.gpu.calls["emptyCache"], self.gpu.nvml_device.used

    def __exit__(self, *error):
        assert (torch.cuda.memory_stats(), self.gpu.calls["emptyCache"], self.gpu.nvml_device.used) == self.before


def test_no_event_in_user_recording(heap, fake_gpu):
    torch.cuda.memory._record_memory_history(max_entries=1000)
    events = len(fake_gpu[0].allocator.trace)
    result = heap.run("%gpumem explain")
    assert len(fake_gpu[0].allocator.trace) == events
    assert "would add an event to your recording" in result.text
    (waterfall,) = ipygpumem.explain().devices
    assert waterfall_imbalance(waterfall) == 0 and "cached" in steps(waterfall)
    torch.cuda.memory._record_memory_history(enabled=None)


def test_no_forbidden_calls_during_a_capture(heap, fake_gpu):
    with fake_gpu.capture():
        heap.run("%gpumem explain")
    assert fake_gpu.violations == []


@pytest.fixture
def cupti(monkeypatch):
    pytest.importorskip("llvmlite")
    library = FakeCupti()
    use_library(monkeypatch, library)
    return library


def test_names_of_libraries_while_cupti_records(cupti, heap, fake_gpu):
    heap.run("%config GPUMem.outside = 'library'")
    for address, size, source in ((0x1000, 388, NCCL), (0x2000, 256, CUPY), (0x3000, 9, CUPY)):
        fake_gpu.outside(size * MIB)
        cupti.alloc(address, size * MIB, source)
    cupti.free(0x3000)
    fake_gpu.outside(-9 * MIB - MIB)  # the granule
    cupti.alloc(0x4000, 512 * MIB, CUPY, memory=5)
    fake_gpu.nvml_device.unattributed += 512 * MIB
    explanation = ipygpumem.explain()
    (waterfall,) = explanation.devices
    amounts = steps(waterfall)
    assert (amounts["NCCL"], amounts["CuPy"]) == (388 * MIB, 256 * MIB)
    assert amounts["managed memory"] == 512 * MIB
    assert amounts["unattributed"] == 8 * MIB
    assert not any("libraries" in label for label in amounts)
    assert waterfall_imbalance(waterfall) == 0
    assert " is listed by library" in str(explanation)
    heap.run("%config GPUMem.outside = 'off'")
    assert "NCCL" not in steps(ipygpumem.explain().devices[0])


def test_records_that_include_the_first_kernels(cupti, make_notebook, fake_gpu):
    from ipygpumem.features.outside.cupti_recorder import cupti_recorder

    cupti_recorder().acquire()
    notebook = make_notebook()
    notebook.run("import torch", store_history=False)
    notebook.load()
    amounts = steps(ipygpumem.explain().devices[0])
    assert "first kernels" not in amounts, "their libraries would be counted twice"
    assert amounts["kernel code, local memory, CUDA graphs"] == KERNELS
    cupti_recorder().release()


def test_error_of_records(cupti, heap, fake_gpu):
    heap.run("%config GPUMem.outside = 'library'")
    fake_gpu.outside(10 * MIB)
    cupti.refuses["cuptiActivityFlushAll"] = 999
    (waterfall,) = ipygpumem.explain().devices
    assert waterfall_imbalance(waterfall) == 0
    assert steps(waterfall)["libraries, kernel code, local memory, CUDA graphs"] == 10 * MIB
    assert waterfall.notes == ("memory cannot be listed by library: cuptiActivityFlushAll: CUPTI_ERROR_999",)


@pytest.mark.parametrize("regime", ["A", "B", "C", "wsl", "hidden", "shared"])
def test_steps_add_up_in_every_state(make_gpu, regime):
    gpu = make_gpu(nvml_devices=[FakeNvmlDevice(regime=regime, others={9000001: 300 * MIB})])
    gpu.alloc(100 * MIB)
    (waterfall,) = ipygpumem.explain().devices
    assert waterfall_imbalance(waterfall) == 0
    assert waterfall.totals[-1].amount == 100 * MIB
    if regime in {"B", "wsl", "hidden", "shared"}:
        (remainder,) = [step for step in waterfall.steps if step.grade.trust == "device"]
        assert remainder.label == "this process or another"
        assert remainder.grade.reason


def test_without_nvml_and_after_failed_kernel(make_gpu):
    gpu = make_gpu()
    gpu.nvml.present = False
    gpu.alloc(100 * MIB)
    (waterfall,) = ipygpumem.explain().devices
    assert waterfall_imbalance(waterfall) == 0
    assert waterfall.totals[-1].amount == 100 * MIB
    gpu.break_device()
    assert ipygpumem.explain().devices[0].summary


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_other_allocators(make_gpu, backend):
    gpu = make_gpu(backend=backend)
    gpu.alloc(100 * MIB)
    (waterfall,) = ipygpumem.explain().devices
    assert waterfall_imbalance(waterfall) == 0
    assert str(ipygpumem.explain())


def test_two_devices_and_one_of_them(two_gpus):
    two_gpus.alloc(100 * MIB)
    two_gpus.alloc(50 * MIB, 1)
    assert [device.device for device in ipygpumem.explain().devices] == ["cuda:0", "cuda:1"]
    (device,) = ipygpumem.explain(device=[1]).devices
    assert (device.device, device.totals[-1].amount) == ("cuda:1", 50 * MIB)
    with pytest.raises(ipygpumem.DeviceError, match="there is no device cuda:7"):
        ipygpumem.explain(device=["cuda:7"])


def test_unused_device(two_gpus):
    two_gpus.alloc(100 * MIB)
    (device,) = ipygpumem.explain(device=["cuda:1"]).devices
    assert device.notes[0] == "cuda:1 is not used by this process"
    assert waterfall_imbalance(device) == 0
    assert not two_gpus[1].context


def test_before_cuda_is_initialized(fake_gpu, make_notebook):
    notebook = make_notebook(GPUMem={"preload": "off"})
    notebook.load()
    result = notebook.run("%gpumem explain")
    assert result.text == "this process uses no GPU memory because it has not initialized CUDA"
    assert not fake_gpu[0].context


def test_host_memory_is_shown_without_gpu(cpu_notebook):
    cpu_notebook.run("import torch\nx = torch.ones(16 << 20)")
    result = cpu_notebook.run("%gpumem explain")
    lines = result.texts[0].splitlines()
    assert lines[0] == f"no GPU ({NO_GPU}); host memory is shown instead"
    assert lines[2] == "host"
    (waterfall,) = ipygpumem.explain().devices
    assert waterfall_imbalance(waterfall) == 0
    assert waterfall.totals[-1].amount >= 64 * MIB


def test_options_and_result(heap):
    explanation = heap.run("%gpumem explain -o -q").value
    assert repr(explanation) == str(explanation)
    assert explanation.to_dict()["devices"][0]["device"] == "cuda:0"
    heap.run("%gpumem explain -q -v why")
    assert heap.shell.user_ns["why"].devices
    for words in ("now", "--svg", "-d cuda:7", "-v 1x"):
        error = heap.run(f"%gpumem explain {words}").error
        assert type(error).__name__ == "UsageError"
        assert "\n" not in str(error)
    assert "%gpumem explain" in heap.run("%gpumem --help").stdout


def test_process_names_are_escaped(heap, fake_gpu, monkeypatch):
    from ipygpumem.core.other_process import OtherProcess
    from ipygpumem.sources.host import ProcessInfoCache

    hostile = OtherProcess(1, 5 * MIB, "</table><script>window.broken = 1</script>", "other", "x")
    monkeypatch.setattr(ProcessInfoCache, "lookup", lambda *_, **__: hostile)
    html = heap.run("%gpumem explain").displays[0]["text/html"]
    assert "<script" not in html
    assert "&lt;script&gt;" in html
