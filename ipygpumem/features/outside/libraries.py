"""Mapping of library paths to common library names."""

from __future__ import annotations

import re
from functools import lru_cache

from ipygpumem.core.serialization import printable

_MAX_LENGTH = 80

ALLOCATOR = "PyTorch's allocator"
"""Name of the owner of memory that PyTorch's allocator counts."""

_NEVER = "(?!)"  # never matches
_LIBRARIES = (
    (ALLOCATOR, r"libc10_cuda\.", _NEVER),
    ("JAX/XLA", r"xla_cuda|jax_cuda|libjax", r"jaxlib/|jax_plugins/|jax_cuda"),
    ("TensorFlow", r"libtensorflow", r"tensorflow/"),
    ("cuBLASLt", r"libcublasLt\.", _NEVER),
    ("cuBLAS", r"libcublas\.", _NEVER),
    ("cuDNN", r"libcudnn", _NEVER),
    ("cuSOLVER", r"libcusolver", _NEVER),
    ("cuSPARSELt", r"libcusparseLt\.", _NEVER),
    ("cuSPARSE", r"libcusparse\.", _NEVER),
    ("cuFFT", r"libcufft", _NEVER),
    ("cuRAND", r"libcurand", _NEVER),
    ("NCCL", r"libnccl", _NEVER),
    ("NVSHMEM", r"lib(nvshmem|torch_nvshmem)", _NEVER),
    ("RMM", r"librmm", r"rmm/"),
    ("TensorRT", r"libnvinfer", r"tensorrt"),
    ("ONNX Runtime", r"(lib)?onnxruntime", r"onnxruntime/"),
    ("RAPIDS", r"libcu(df|ml)|lib(raft|cuvs|cugraph)", _NEVER),
    ("DALI", r"libdali", r"nvidia/dali/"),
    ("FAISS", r"libfaiss", r"faiss/"),
    ("OpenCV", r"libopencv", r"cv2/"),
    ("video codec", r"lib(nvcuvid|nvidia-encode)\.", r"torchcodec/|PyNvVideoCodec/"),
    ("ctypes", r"libffi[._-]|_ctypes\.", _NEVER),
    ("PyTorch without its allocator", r"lib(torch|c10)", _NEVER),
    ("CuPy", _NEVER, r"cupyx?(_backends)?/"),
    ("Triton", _NEVER, r"triton/"),
    ("numba", _NEVER, r"numba(_cuda)?/"),
    ("PyCUDA", _NEVER, r"pycuda/"),
    ("bitsandbytes", _NEVER, r"bitsandbytes/"),
    ("cuda-bindings", _NEVER, r"cuda/(bindings|core)/"),
)
"""Library names with patterns for the start of the file name and of the path relative to site-packages."""
_SITE = re.compile(r".*[/\\](?:site|dist)-packages[/\\]", re.DOTALL)


@lru_cache(maxsize=1024)
def library_name(path: str) -> str:
    """Return the name for a library path, such as cuBLAS for ``libcublas.so.13``, or the file name if unknown."""
    path = path.replace("\\", "/")
    file = file_name(path)
    site = _SITE.match(path)
    package_path = path[site.end() :] if site is not None else ""
    by_file = (name for name, file_pattern, _ in _LIBRARIES if re.match(file_pattern, file))
    by_package = (name for name, _, package_pattern in _LIBRARIES if re.match(package_pattern, package_path))
    return next(by_file, None) or next(by_package, None) or file or "unknown library"


def file_name(path: str) -> str:
    """Return the base name of a path, with unprintable characters replaced and truncated to 80 characters."""
    name = " ".join(printable(path.replace("\\", "/").rpartition("/")[2]).split())
    return name if len(name) <= _MAX_LENGTH else f"{name[: _MAX_LENGTH - 1]}…"
