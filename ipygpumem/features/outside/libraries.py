"""Mapping from library paths to common library names."""

from __future__ import annotations

import re
from functools import lru_cache

from ipygpumem.core.text import printable

_MAX_LENGTH = 80

ALLOCATOR = "PyTorch's allocator"
"""Name of the owner of memory that PyTorch's allocator counts."""

_LIBRARIES = (
    (ALLOCATOR, r"libc10_cuda\."),
    ("JAX/XLA", r"xla_cuda|jax_cuda|libjax|jaxlib/|jax_plugins/"),
    ("TensorFlow", r"libtensorflow|tensorflow/"),
    ("cuBLASLt", r"libcublasLt\."),
    ("cuBLAS", r"libcublas\."),
    ("cuDNN", r"libcudnn"),
    ("cuSOLVER", r"libcusolver"),
    ("cuSPARSELt", r"libcusparseLt\."),
    ("cuSPARSE", r"libcusparse\."),
    ("cuFFT", r"libcufft"),
    ("cuRAND", r"libcurand"),
    ("NCCL", r"libnccl"),
    ("NVSHMEM", r"lib(nvshmem|torch_nvshmem)"),
    ("RMM", r"librmm|rmm/"),
    ("TensorRT", r"libnvinfer|tensorrt"),
    ("ONNX Runtime", r"(lib)?onnxruntime"),
    ("RAPIDS", r"libcu(df|ml)|lib(raft|cuvs|cugraph)"),
    ("DALI", r"libdali|nvidia/dali/"),
    ("FAISS", r"libfaiss|faiss/"),
    ("OpenCV", r"libopencv|cv2/"),
    ("video codec", r"lib(nvcuvid|nvidia-encode)\.|torchcodec/|PyNvVideoCodec/"),
    ("ctypes", r"libffi[._-]|_ctypes\."),
    ("PyTorch without its allocator", r"lib(torch|c10)"),
    ("CuPy", r"cupyx?(_backends)?/"),
    ("Triton", r"triton/"),
    ("numba", r"numba(_cuda)?/"),
    ("PyCUDA", r"pycuda/"),
    ("bitsandbytes", r"bitsandbytes/"),
    ("cuda-bindings", r"cuda/(bindings|core)/"),
)
"""Library names with patterns for the start of the file name or of the path relative to site-packages."""
_SITE = re.compile(r".*[/\\](?:site|dist)-packages[/\\]", re.DOTALL)


@lru_cache(maxsize=1024)
def library_name(path: str) -> str:
    """Return the name of the library at a path, such as cuBLAS for ``libcublas.so.13``, or its file name if unknown."""
    path = path.replace("\\", "/")
    file = file_name(path)
    site = _SITE.match(path)
    package_path = path[site.end() :] if site is not None else ""
    names = (name for text in (file, package_path) for name, pattern in _LIBRARIES if re.match(pattern, text))
    return next(names, None) or file or "unknown library"


def file_name(path: str) -> str:
    """Return the base name of a path, truncated to 80 characters and with unprintable characters replaced."""
    name = " ".join(printable(path.replace("\\", "/").rpartition("/")[2]).split())
    return name if len(name) <= _MAX_LENGTH else f"{name[: _MAX_LENGTH - 1]}…"
