"""Calls of the CUDA runtime that PyTorch does not offer, in the library that this process has already loaded.

That library is PyTorch's: a call that fails must not leave its error for PyTorch's next call to report.
"""

from __future__ import annotations

import contextlib
import ctypes
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Literal, NamedTuple

from ipygpumem.sources.host import loaded_library

if TYPE_CHECKING:
    from collections.abc import Iterator

_RELAXED = 2
"""cudaStreamCaptureModeRelaxed."""

PoolKind = Literal["stream", "graph"]
_POOL_ATTRIBUTES: dict[PoolKind, tuple[int, int, int]] = {"stream": (5, 7, 6), "graph": (2, 0, 3)}
"""cudaMemPoolAttr... and cudaGraphMemAttr... ReservedMemCurrent, UsedMemCurrent and ReservedMemHigh."""


class CudaPool(NamedTuple):
    """Sizes of a CUDA memory pool in bytes: reserved, in use, and the most that was reserved so far."""

    held: int
    used: int
    held_high: int


class RelaxedCaptureMode:
    """Allow calls to the device in this thread while one of its streams is being captured into a CUDA graph.

    During a capture, calls of the same thread that might wait, even queries, fail and invalidate the capture. This also
    happens if the captured stream is not the current one, which PyTorch cannot detect. PyTorch's allocator changes the
    mode for its own calls in the same way. Entering returns whether the mode could be changed; if not, make no call.
    """

    # a class, because contextlib's generators take three times as long

    def __enter__(self) -> bool:
        self._runtime, self._mode = _runtime(), ctypes.c_int(_RELAXED)
        self._exchange_mode()
        return self._runtime is not None

    def __exit__(self, *error: object) -> None:
        self._exchange_mode()

    def _exchange_mode(self) -> None:
        if self._runtime is not None:
            self._runtime.cudaThreadExchangeStreamCaptureMode(ctypes.byref(self._mode))


@contextlib.contextmanager
def raw_allocation(nbytes: int) -> Iterator[bool]:
    """Allocate memory of the current device with cudaMalloc and free it at the end of the block.

    Yields whether the allocation succeeded; False also if no CUDA runtime can be called.
    """
    runtime, pointer = _runtime(), ctypes.c_void_p()
    allocated = False
    if runtime is not None:
        with RelaxedCaptureMode():
            allocated = runtime.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(nbytes)) == 0
            if not allocated:
                runtime.cudaGetLastError()
    try:
        yield allocated
    finally:
        if runtime is not None and allocated:
            with RelaxedCaptureMode():
                runtime.cudaFree(pointer)


def pool(index: int, kind: PoolKind) -> CudaPool | None:
    """Read a device's default memory pool (cudaMallocAsync), or the memory of allocations in CUDA graphs.

    Needs a context on the device. None if it cannot be read: with an older runtime, or after a failed kernel.
    """
    runtime = _runtime()
    if runtime is None:
        return None
    default_pool, value, error = ctypes.c_void_p(), ctypes.c_uint64(), 0
    values = []
    with RelaxedCaptureMode():
        try:
            read = partial(runtime.cudaDeviceGetGraphMemAttribute, index)
            if kind == "stream":
                read = partial(runtime.cudaMemPoolGetAttribute, default_pool)
                error = runtime.cudaDeviceGetDefaultMemPool(ctypes.byref(default_pool), index)
            for attribute in _POOL_ATTRIBUTES[kind]:
                error = error or read(attribute, ctypes.byref(value))
                values.append(value.value)
        except AttributeError:  # a runtime before 11.4
            return None
        if error:
            runtime.cudaGetLastError()
            return None
    return CudaPool(*values)


@lru_cache(maxsize=1)
def _runtime() -> ctypes.CDLL | None:
    path = loaded_library("libcudart")
    return None if path is None else ctypes.CDLL(path)
