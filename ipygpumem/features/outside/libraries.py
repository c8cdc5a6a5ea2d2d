"""Common names of libraries, from the paths of their files."""

from __future__ import annotations

import re
from functools import lru_cache

from ipygpumem.core.from_dict import printable

__all__ = ["ALLOCATOR", "file_name", "library_name"]

_MAX_LENGTH = 80

ALLOCATOR = "PyTorch's allocator"
"""Memory that PyTorch counts itself, so it is not outside PyTorch."""


def _compiled(*rules: tuple[str, str]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), name) for pattern, name in rules)


_FILES = _compiled(
    (r"libc10_cuda\.", ALLOCATOR),
    (r"xla_cuda|jax_cuda|libjax", "JAX/XLA"),
    (r"libtensorflow", "TensorFlow"),
    (r"libcublasLt\.", "cuBLASLt"),
    (r"libcublas\.", "cuBLAS"),
    (r"libcudnn", "cuDNN"),
    (r"libcusolver", "cuSOLVER"),
    (r"libcusparseLt\.", "cuSPARSELt"),
    (r"libcusparse\.", "cuSPARSE"),
    (r"libcufft", "cuFFT"),
    (r"libcurand", "cuRAND"),
    (r"libnccl", "NCCL"),
    (r"lib(nvshmem|torch_nvshmem)", "NVSHMEM"),
    (r"librmm", "RMM"),
    (r"libnvinfer", "TensorRT"),
    (r"(lib)?onnxruntime", "ONNX Runtime"),
    (r"libcu(df|ml)|lib(raft|cuvs|cugraph)", "RAPIDS"),
    (r"libdali", "DALI"),
    (r"libfaiss", "FAISS"),
    (r"libopencv", "OpenCV"),
    (r"lib(nvcuvid|nvidia-encode)\.", "video codec"),
    (r"libffi[._-]|_ctypes\.", "ctypes"),
    (r"lib(torch|c10)", "PyTorch without its allocator"),
)
"""Beginnings of file names."""
_PACKAGES = _compiled(
    (r"cupyx?(_backends)?/", "CuPy"),
    (r"jaxlib/|jax_plugins/|jax_cuda", "JAX/XLA"),
    (r"tensorflow/", "TensorFlow"),
    (r"rmm/", "RMM"),
    (r"tensorrt", "TensorRT"),
    (r"onnxruntime/", "ONNX Runtime"),
    (r"nvidia/dali/", "DALI"),
    (r"faiss/", "FAISS"),
    (r"cv2/", "OpenCV"),
    (r"torchcodec/|PyNvVideoCodec/", "video codec"),
    (r"triton/", "Triton"),
    (r"numba(_cuda)?/", "numba"),
    (r"pycuda/", "PyCUDA"),
    (r"bitsandbytes/", "bitsandbytes"),
    (r"cuda/(bindings|core)/", "cuda-bindings"),
)
"""Beginnings of paths below site-packages; the folders above may have any names."""
_SITE = re.compile(r".*[/\\](?:site|dist)-packages[/\\]", re.DOTALL)


@lru_cache(maxsize=1024)
def library_name(path: str) -> str:
    """Return ``"cuBLAS"`` for ``/usr/.../libcublas.so.13``; for an unknown library the name of its file."""
    path = path.replace("\\", "/")
    file = file_name(path)
    for pattern, name in _FILES:
        if pattern.match(file):
            return name
    site = _SITE.match(path)
    package_path = path[site.end() :] if site is not None else ""
    for pattern, name in _PACKAGES:
        if pattern.match(package_path):
            return name
    return file or "unknown library"


def file_name(path: str) -> str:
    """Return the name of a path's file, printable and shortened."""
    name = " ".join(printable(path.replace("\\", "/").rpartition("/")[2]).split())
    return name if len(name) <= _MAX_LENGTH else f"{name[: _MAX_LENGTH - 1]}…"
