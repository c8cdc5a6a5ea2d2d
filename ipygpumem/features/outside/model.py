"""Memory outside PyTorch, attributed to libraries.

::

    outside PyTorch = libraries (device memory, CUDA arrays, static device variables)
        + unused memory in CUDA memory pools + rest

The rest is not recorded by CUPTI: the CUDA context, kernel code, GPU thread stacks, CUDA graphs and, in the tested
versions of CUPTI, memory created with cuMemCreate. Pinned and managed memory are listed separately.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from ipygpumem.core.reading import Accuracy
from ipygpumem.core.report import DeviceReport
from ipygpumem.core.serialization import Serializable
from ipygpumem.core.text import printable

_MAX_LENGTH = 80

ALLOCATOR = "PyTorch's allocator"  # name of the owner of memory that PyTorch's allocator counts

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
    ("PyTorch outside its caching allocator", r"lib(torch|c10)"),
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
    """Return the name of the library at a path, such as cuBLAS for ``libcublas.so.13``, or else the file name."""
    path = path.replace("\\", "/")
    file = file_name(path)
    site = _SITE.match(path)
    package_path = path[site.end() :] if site is not None else ""
    names = (name for text in (file, package_path) for name, pattern in _LIBRARIES if re.match(pattern, text))
    return next(names, None) or file or "unknown library"


def file_name(path: str) -> str:
    name = " ".join(printable(path.replace("\\", "/").rpartition("/")[2]).split())
    return name if len(name) <= _MAX_LENGTH else f"{name[: _MAX_LENGTH - 1]}…"


Memory = Literal["device", "array", "static", "managed", "pinned"]
"""``device``: cudaMalloc and similar; ``array``: textures and surfaces; ``static``: ``__device__`` variables;
``managed``: unified memory, which migrates between device and host; ``pinned``: page-locked host memory."""

BEFORE_RECORDING = "allocated before recording began"
"""Label for memory whose library is unknown because it was allocated before recording began."""

DEVICE_MEMORY = ("device", "array", "static")


@dataclass(frozen=True, slots=True)
class LibraryMemory:
    """Memory of one kind that one library allocated and freed during a measurement, in bytes.

    Attributes:
        file: Base name of the library's file; empty if it is unknown.
        change: ``allocated`` minus ``freed``.
        peak: Maximum of ``change`` during the measurement.
        allocated, allocations: Total size and number of the allocations.
        freed: Total size of frees, including frees of memory that was allocated before the measurement.
        pooled: Whether the memory belongs to a CUDA memory pool (cudaMallocAsync), which may retain freed memory.
    """

    library: str
    file: str
    memory: Memory
    change: int
    peak: int
    allocated: int
    freed: int
    allocations: int
    pooled: bool = False


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """Changes in the counters of a memory pool, in bytes. CUPTI's records of a library may include the same memory.

    Attributes:
        change: Change in reserved memory; None if the pool counts only used memory.
        used: Change in used memory; None if unknown.
        now: Reserved memory at the end, or used memory if ``change`` is None; None if unknown.
        peak: Peak minus the initial value; None unless a new peak was reached during the measurement.
    """

    name: str
    change: int | None
    used: int | None
    now: int | None
    peak: int | None
    grade: Accuracy


@dataclass(frozen=True, slots=True)
class OutsideMemory(Serializable):
    """Memory outside PyTorch on one device during a measurement, in bytes.

    Attributes:
        libraries: Memory by library in descending order of the absolute change.
        peak: Peak device memory of all libraries together, relative to the start; None if there are no records.
        idle: Change in unused memory of CUDA's default memory pool and in memory reserved for CUDA graphs, where known.
        rest: Change that belongs neither to a library nor to ``idle``; None if unknown.
        seconds: Duration in seconds for which recording was paused because torch.profiler was using CUPTI.
        grade: Accuracy of the values in ``libraries``.
    """

    device: str
    libraries: tuple[LibraryMemory, ...]
    pools: tuple[PoolMemory, ...]
    peak: int | None
    idle: int
    rest: int | None
    seconds: float
    grade: Accuracy

    written_properties = ("named",)

    @property
    def named(self) -> int:
        """Sum of the changes in device memory that are attributed to individual libraries, in bytes."""
        return sum(library.change for library in self.libraries if library.memory in DEVICE_MEMORY)


def balance(
    device: DeviceReport,
    libraries: Iterable[LibraryMemory],
    pools: Iterable[PoolMemory],
    *,
    peak: int | None,
    reserved: int | None,
    graphs: int | None,
    seconds: float,
    grade: Accuracy,
) -> OutsideMemory:
    """Attribute the change in a device's memory outside PyTorch to libraries and pools; ``rest`` is the remainder.

    ``reserved`` is the change in memory reserved by CUDA's default memory pool, and ``graphs`` the change in memory
    reserved for CUDA graphs; each is None if unknown. The other arguments become attributes of the result.
    """
    sorted_libraries = tuple(
        sorted(libraries, key=lambda library: (-abs(library.change), -library.peak, library.library))
    )
    on_device = [library for library in sorted_libraries if library.memory in DEVICE_MEMORY]
    pooled = sum(library.change for library in on_device if library.pooled)
    idle = (0 if reserved is None else reserved - pooled) + (graphs or 0)
    remainder = None if device.outside is None else device.outside - sum(library.change for library in on_device) - idle
    return OutsideMemory(device.name, sorted_libraries, tuple(pools), peak, idle, remainder, seconds, grade)
