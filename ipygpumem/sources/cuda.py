"""CUDA runtime calls that PyTorch does not offer.

Uses cuda-bindings if PyTorch brought it, otherwise ctypes on the CUDA runtime that is already loaded.
"""

from __future__ import annotations

import contextlib
import ctypes
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from ipygpumem.sources.host import loaded_library

if TYPE_CHECKING:
    from collections.abc import Iterator

_RELAXED = 2
"""cudaStreamCaptureModeRelaxed."""

__all__ = ["CudaPool", "PoolKind", "RelaxedCaptureMode", "pool", "raw_allocation"]

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
        self._runtime = runtime = _runtime()
        if runtime is None:
            return False
        self._previous_mode = runtime.exchange_mode(_RELAXED)
        return True

    def __exit__(self, *error: object) -> None:
        if self._runtime is not None:
            self._runtime.exchange_mode(self._previous_mode)


@contextlib.contextmanager
def raw_allocation(nbytes: int) -> Iterator[bool]:
    """Allocate memory of the current device with cudaMalloc and free it at the end of the block.

    Yields:
        Whether the allocation succeeded; False also if no CUDA runtime can be called.
    """
    runtime = _runtime()
    with RelaxedCaptureMode():
        pointer = runtime.malloc(nbytes) if runtime is not None else None
    try:
        yield pointer is not None
    finally:
        if runtime is not None and pointer is not None:
            with RelaxedCaptureMode():
                runtime.free(pointer)


def pool(index: int, kind: PoolKind) -> CudaPool | None:
    """Read a device's default memory pool (cudaMallocAsync), or the memory of allocations in CUDA graphs.

    Needs a context on the device. None if it cannot be read: with an older runtime, or after a failed kernel.
    """
    runtime = _runtime()
    if runtime is None:
        return None
    values = []
    try:
        with RelaxedCaptureMode():
            for attribute in _POOL_ATTRIBUTES[kind]:
                error, value = runtime.attribute(index, kind, attribute)
                if int(error):
                    return None
                values.append(int(value))
    except Exception:
        return None
    return CudaPool(*values)


class _Bindings:
    """The runtime through cuda-bindings."""

    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._modes = runtime.cudaStreamCaptureMode

    def exchange_mode(self, mode: int) -> int:
        return int(self._runtime.cudaThreadExchangeStreamCaptureMode(self._modes(mode))[1])

    def malloc(self, nbytes: int) -> int | None:
        error, pointer = self._runtime.cudaMalloc(nbytes)
        return int(pointer) if int(error) == 0 else None

    def free(self, pointer: int) -> None:
        self._runtime.cudaFree(pointer)

    def attribute(self, index: int, kind: PoolKind, attribute: int) -> Any:
        runtime = self._runtime
        if kind == "graph":
            return runtime.cudaDeviceGetGraphMemAttribute(index, runtime.cudaGraphMemAttributeType(attribute))
        pool = runtime.cudaDeviceGetDefaultMemPool(index)[1]
        return runtime.cudaMemPoolGetAttribute(pool, runtime.cudaMemPoolAttr(attribute))


class _LoadedRuntime:
    """The runtime through ctypes."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def exchange_mode(self, mode: int) -> int:
        value = ctypes.c_int(mode)
        self._library.cudaThreadExchangeStreamCaptureMode(ctypes.byref(value))
        return value.value

    def malloc(self, nbytes: int) -> int | None:
        pointer = ctypes.c_void_p()
        if self._library.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(nbytes)):
            self._library.cudaGetLastError()  # otherwise the user's next call would report this error
            return None
        return pointer.value

    def free(self, pointer: int) -> None:
        self._library.cudaFree(ctypes.c_void_p(pointer))

    def attribute(self, index: int, kind: PoolKind, attribute: int) -> tuple[int, int]:
        library, value, pool = self._library, ctypes.c_uint64(), ctypes.c_void_p()
        if kind == "graph":
            error = library.cudaDeviceGetGraphMemAttribute(index, attribute, ctypes.byref(value))
        else:
            error = library.cudaDeviceGetDefaultMemPool(ctypes.byref(pool), index)
            error = error or library.cudaMemPoolGetAttribute(pool, attribute, ctypes.byref(value))
        return error, value.value


@lru_cache(maxsize=1)
def _runtime() -> _Bindings | _LoadedRuntime | None:
    try:
        from cuda.bindings import runtime
    except Exception:  # not installed, or built for another CUDA version than the loaded one
        return _loaded_runtime()
    return _Bindings(runtime)


def _loaded_runtime() -> _LoadedRuntime | None:
    path = loaded_library("libcudart")
    return None if path is None else _LoadedRuntime(ctypes.CDLL(path))
