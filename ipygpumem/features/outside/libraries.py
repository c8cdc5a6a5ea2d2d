"""The name by which people know a library, from the path of its file."""

from __future__ import annotations

import re
from functools import lru_cache

from ipygpumem.core.from_dict import printable

__all__ = ["ALLOCATOR", "file_name", "library_name"]

_LONGEST = 80

ALLOCATOR = "PyTorch's allocator"
"""What belongs in PyTorch's own books, and is no memory outside it."""

_FILES = (
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
    (r"lib(torch|c10)", "PyTorch beside its allocator"),
)
"""How the file's own name begins."""
_PACKAGES = (
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
"""How its path goes on below the folder where packages are installed: above it people name folders as they like."""
_SITE = re.compile(r".*[/\\](?:site|dist)-packages[/\\]", re.DOTALL)


def _known(rules: tuple[tuple[str, str], ...]) -> tuple[tuple[re.Pattern[str], str], ...]:
    return tuple((re.compile(pattern), name) for pattern, name in rules)


_KNOWN_FILES, _KNOWN_PACKAGES = _known(_FILES), _known(_PACKAGES)


@lru_cache(maxsize=1024)
def library_name(path: str) -> str:
    """``"cuBLAS"`` for ``/usr/.../libcublas.so.13``; of a library that is not known here, the name of its file."""
    path = path.replace("\\", "/")
    file = file_name(path)
    for pattern, name in _KNOWN_FILES:
        if pattern.match(file):
            return name
    site = _SITE.match(path)
    below = path[site.end() :] if site is not None else ""
    for pattern, name in _KNOWN_PACKAGES:
        if pattern.match(below):
            return name
    return file or "unknown library"


def file_name(path: str) -> str:
    """The name of a path's file, printable and of a length that a line can bear."""
    name = " ".join(printable(path.replace("\\", "/").rpartition("/")[2]).split())
    return name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
