"""The name by which people know a library, from the path of its file."""

from __future__ import annotations

import re
from functools import lru_cache

__all__ = ["ALLOCATOR", "library_name"]

ALLOCATOR = "PyTorch's allocator"
"""What belongs in PyTorch's own books, and is no memory outside it."""

_NAMES = (
    (r"/libc10_cuda\.", ALLOCATOR),
    (r"/cupy(_backends)?/", "CuPy"),
    (r"/xla_cuda\d*/|/xla_cuda_plugin|/jaxlib/|/jax_cuda\d*_p", "JAX/XLA"),
    (r"/tensorflow/|/libtensorflow", "TensorFlow"),
    (r"/libcublasLt\.", "cuBLASLt"),
    (r"/libcublas\.", "cuBLAS"),
    (r"/libcudnn", "cuDNN"),
    (r"/libcusolver", "cuSOLVER"),
    (r"/libcusparseLt\.", "cuSPARSELt"),
    (r"/libcusparse\.", "cuSPARSE"),
    (r"/libcufft", "cuFFT"),
    (r"/libcurand", "cuRAND"),
    (r"/libnccl", "NCCL"),
    (r"/lib(nvshmem|torch_nvshmem)", "NVSHMEM"),
    (r"/librmm|/rmm/", "RMM"),
    (r"/libnvinfer|/tensorrt", "TensorRT"),
    (r"/libonnxruntime|/onnxruntime/", "ONNX Runtime"),
    (r"/libcu(df|ml)|/lib(raft|cuvs|cugraph)", "RAPIDS"),
    (r"/libdali|/nvidia/dali/", "DALI"),
    (r"/libfaiss|/faiss/", "FAISS"),
    (r"/libopencv|/cv2/", "OpenCV"),
    (r"/lib(nvcuvid|nvidia-encode)\.|/torchcodec/|/PyNvVideoCodec/", "video codec"),
    (r"/triton/", "Triton"),
    (r"/numba(_cuda)?/", "numba"),
    (r"/pycuda/", "PyCUDA"),
    (r"/bitsandbytes/", "bitsandbytes"),
    (r"/cuda/bindings/|/cuda/core/", "cuda-bindings"),
    (r"/libffi[.-]|/_ctypes\.|/libffi_", "ctypes"),
    (r"/lib(torch|c10)[^/]*$", "PyTorch beside its allocator"),
)
_KNOWN = tuple((re.compile(pattern), name) for pattern, name in _NAMES)


@lru_cache(maxsize=1024)
def library_name(path: str) -> str:
    """``"cuBLAS"`` for ``/usr/.../libcublas.so.13``; of a library that is not known here, the name of its file."""
    for pattern, name in _KNOWN:
        if pattern.search(f"/{path}"):
            return name
    return path.rpartition("/")[2] or "unknown library"
