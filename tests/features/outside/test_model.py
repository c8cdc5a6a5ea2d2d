"""Library names, and memory by library, which together with the rest adds up to the change that NVML reports."""

from __future__ import annotations

import pytest

from fakes.cupti import CTYPES, CUBLAS, CUPY, NCCL, SITE, TORCH
from fakes.reports import report
from ipygpumem.core.reading import make_accuracy
from ipygpumem.features.outside.model import ALLOCATOR, LibraryMemory, balance, library_name

MIB = 1 << 20
EXACT = make_accuracy("exact", "CUPTI's records")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (NCCL, "NCCL"),
        (CUBLAS, "cuBLAS"),
        (f"{SITE}/nvidia/cu13/lib/libcublasLt.so.13", "cuBLASLt"),
        (f"{SITE}/nvidia/cudnn/lib/libcudnn_graph.so.9", "cuDNN"),
        (f"{SITE}/nvidia/cu13/lib/libcusolver.so.12", "cuSOLVER"),
        (f"{SITE}/nvidia/cu13/lib/libcusparse.so.12", "cuSPARSE"),
        (f"{SITE}/nvidia/cusparselt/lib/libcusparseLt.so.0", "cuSPARSELt"),
        (f"{SITE}/nvidia/cu13/lib/libcufft.so.12", "cuFFT"),
        (CUPY, "CuPy"),
        (f"{SITE}/jax_plugins/xla_cuda13/xla_cuda_plugin.so", "JAX/XLA"),
        (f"{SITE}/librmm/lib64/librmm.so", "RMM"),
        (f"{SITE}/tensorrt_libs/libnvinfer.so.10", "TensorRT"),
        (f"{SITE}/triton/_C/libtriton.so", "Triton"),
        (f"{SITE}/numba/cuda/cudadrv/_extras.cpython-312-x86_64-linux-gnu.so", "numba"),
        (f"{SITE}/nvidia/dali/libdali.so", "DALI"),
        (f"{SITE}/nvidia/nvshmem/lib/libnvshmem_host.so.3", "NVSHMEM"),
        (f"{SITE}/cuda/bindings/cyruntime.cpython-312-x86_64-linux-gnu.so", "cuda-bindings"),
        (CTYPES, "ctypes"),
        (TORCH, ALLOCATOR),
        (f"{SITE}/torch/lib/libtorch_cuda.so", "PyTorch outside its caching allocator"),
        (f"{SITE}/onnxruntime/capi/libonnxruntime_providers_cuda.so", "ONNX Runtime"),
        ("/opt/mine/libmine.so", "libmine.so"),
        ("/home/ada/cupy/.venv/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2", "NCCL"),
        ("/home/ada/triton/build/libmine.so", "libmine.so"),
        ("/home/ada/libnccl-fork/libmine.so", "libmine.so"),
        ("/home/rmm/site-packages/mine/numba/x.so", "x.so"),
        ("/usr/lib/python3/dist-packages/cupy/_core/core.so", "CuPy"),
        (f"/home/ada/site-packages/cv2/{SITE}/triton/_C/x.so", "Triton"),
        ("/opt/odd/li\nb\x1b[31m.so", "li?b?[31m.so"),
        (f"/opt/{'y' * 900}.so", "y" * 79 + "…"),
        ("libnccl.so.2", "NCCL"),
        ("", "unknown library"),
    ],
)
def test_names(path, name):
    assert library_name(path) == name


def library(name, change, **values):
    values = {"memory": "device", "peak": max(change, 0), "allocated": max(change, 0), "freed": 0, **values}
    return LibraryMemory(name, "", change=change, allocations=1, **values)


def balanced(*libraries, **values):
    device = report().devices["cuda:0"]
    values = {"peak": 0, "reserved": None, "graphs": None, "seconds": 0.0, "grade": EXACT, **values}
    return device, balance(device, libraries, (), **values)


def test_libraries_and_remainder_add_up_to_change_outside():
    device, memory = balanced(library("NCCL", 200 * MIB), library("cuBLAS", 30 * MIB), library("CuPy", -10 * MIB))
    assert device.outside == 256 * MIB
    assert (memory.named, memory.idle, memory.rest) == (220 * MIB, 0, 36 * MIB)
    assert [entry.library for entry in memory.libraries] == ["NCCL", "cuBLAS", "CuPy"]


def test_managed_and_pinned_memory_is_not_subtracted():
    _, memory = balanced(library("x", 500 * MIB, memory="managed"), library("y", 90 * MIB, memory="pinned"))
    assert (memory.named, memory.rest) == (0, 256 * MIB)
    _, memory = balanced(library("x", 5 * MIB, memory="array"), library("y", 1, memory="static"))
    assert memory.named == 5 * MIB + 1


def test_unused_pool_memory():
    _, memory = balanced(library("cuBLAS", 40 * MIB, pooled=True), reserved=64 * MIB)
    assert (memory.named, memory.idle, memory.rest) == (40 * MIB, 24 * MIB, 192 * MIB)
    _, memory = balanced(library("cuBLAS", 40 * MIB, pooled=True), reserved=None, graphs=8 * MIB)
    assert (memory.named, memory.idle, memory.rest) == (40 * MIB, 8 * MIB, 208 * MIB)


def test_remainder_of_unknown_change_is_unknown():
    unknown = report(peak=None).devices["cuda:0"]
    memory = balance(
        type(unknown)(unknown.before, type(unknown.after)(unknown.name, context=True)),
        [library("NCCL", 5)],
        (),
        peak=5,
        reserved=None,
        graphs=None,
        seconds=0.0,
        grade=EXACT,
    )
    assert memory.rest is None
    assert memory.named == 5
