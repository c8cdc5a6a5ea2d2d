"""Common names of libraries, from the paths of their files."""

from __future__ import annotations

import re
from functools import lru_cache

from ipygpumem.core.from_dict import printable

_MAX_LENGTH = 80

ALLOCATOR = "PyTorch's allocator"
"""Memory that PyTorch counts itself, so it is not outside PyTorch."""

_NONE = "(?!)"  # matches nothing
_LIBRARIES = (
    (ALLOCATOR, r"libc10_cuda\.", _NONE),
    ("JAX/XLA", r"xla_cuda|jax_cuda|libjax", r"jaxlib/|jax_plugins/|jax_cuda"),
    ("TensorFlow", r"libtensorflow", r"tensorflow/"),
    ("cuBLASLt", r"libcublasLt\.", _NONE),
    ("cuBLAS", r"libcublas\.", _NONE),
    ("cuDNN", r"libcudnn", _NONE),
    ("cuSOLVER", r"libcusolver", _NONE),
    ("cuSPARSELt", r"libcusparseLt\.", _NONE),
    ("cuSPARSE", r"libcusparse\.", _NONE),
    ("cuFFT", r"libcufft", _NONE),
    ("cuRAND", r"libcurand", _NONE),
    ("NCCL", r"libnccl", _NONE),
    ("NVSHMEM", r"lib(nvshmem|torch_nvshmem)", _NONE),
    ("RMM", r"librmm", r"rmm/"),
    ("TensorRT", r"libnvinfer", r"tensorrt"),
    ("ONNX Runtime", r"(lib)?onnxruntime", r"onnxruntime/"),
    ("RAPIDS", r"libcu(df|ml)|lib(raft|cuvs|cugraph)", _NONE),
    ("DALI", r"libdali", r"nvidia/dali/"),
    ("FAISS", r"libfaiss", r"faiss/"),
    ("OpenCV", r"libopencv", r"cv2/"),
    ("video codec", r"lib(nvcuvid|nvidia-encode)\.", r"torchcodec/|PyNvVideoCodec/"),
    ("ctypes", r"libffi[._-]|_ctypes\.", _NONE),
    ("PyTorch without its allocator", r"lib(torch|c10)", _NONE),
    ("CuPy", _NONE, r"cupyx?(_backends)?/"),
    ("Triton", _NONE, r"triton/"),
    ("numba", _NONE, r"numba(_cuda)?/"),
    ("PyCUDA", _NONE, r"pycuda/"),
    ("bitsandbytes", _NONE, r"bitsandbytes/"),
    ("cuda-bindings", _NONE, r"cuda/(bindings|core)/"),
)
"""Names with the beginnings of file names, and of paths below site-packages."""
_SITE = re.compile(r".*[/\\](?:site|dist)-packages[/\\]", re.DOTALL)


@lru_cache(maxsize=1024)
def library_name(path: str) -> str:
    """Return ``"cuBLAS"`` for ``/usr/.../libcublas.so.13``; for an unknown library the name of its file."""
    path = path.replace("\\", "/")
    file = file_name(path)
    site = _SITE.match(path)
    package_path = path[site.end() :] if site is not None else ""
    by_file = (name for name, file_pattern, _ in _LIBRARIES if re.match(file_pattern, file))
    by_package = (name for name, _, package_pattern in _LIBRARIES if re.match(package_pattern, package_path))
    return next(by_file, None) or next(by_package, None) or file or "unknown library"


def file_name(path: str) -> str:
    """Return the name of a path's file, printable and shortened."""
    name = " ".join(printable(path.replace("\\", "/").rpartition("/")[2]).split())
    return name if len(name) <= _MAX_LENGTH else f"{name[: _MAX_LENGTH - 1]}…"
