"""The few CUDA calls that PyTorch does not offer: memory taken and given back past its allocator.

Through cuda-bindings where torch brought it, else ctypes on the CUDA runtime that is loaded already.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

_RELAXED = 2
"""cudaStreamCaptureModeRelaxed."""
_POOL_HELD, _POOL_HELD_HIGH, _POOL_USED, _POOL_USED_HIGH = 5, 6, 7, 8
"""cudaMemPoolAttrReservedMemCurrent and its neighbours."""
_GRAPH_USED, _GRAPH_USED_HIGH, _GRAPH_HELD, _GRAPH_HELD_HIGH = 0, 1, 2, 3
"""cudaGraphMemAttrUsedMemCurrent and its neighbours."""

__all__ = ["CudaPool", "graph_pool", "raw_allocation", "stream_pool", "uncaptured"]


@contextlib.contextmanager
def raw_allocation(size: int) -> Iterator[bool]:
    """Hold ``size`` bytes of the current device by cudaMalloc for the length of the block.

    Yields:
        Whether the memory was there to have; False also where no CUDA runtime can be called.
    """
    runtime = _runtime()
    with uncaptured():
        pointer = runtime.malloc(size) if runtime is not None else None
    try:
        yield pointer is not None
    finally:
        if runtime is not None and pointer is not None:
            with uncaptured():
                runtime.free(pointer)


class CudaPool(NamedTuple):
    """What CUDA counts of one of its pools, in bytes: held and in use, now and at their highest so far."""

    held: int
    used: int
    held_high: int
    used_high: int


def stream_pool(index: int) -> CudaPool | None:
    """The device's default memory pool (cudaMallocAsync); None where it cannot be asked. Needs a context there."""
    return _counted(index, "stream", (_POOL_HELD, _POOL_USED, _POOL_HELD_HIGH, _POOL_USED_HIGH))


def graph_pool(index: int) -> CudaPool | None:
    """The memory of the allocations in CUDA graphs; None where it cannot be asked. Needs a context there."""
    return _counted(index, "graph", (_GRAPH_HELD, _GRAPH_USED, _GRAPH_HELD_HIGH, _GRAPH_USED_HIGH))


def _counted(index: int, kind: str, attributes: tuple[int, ...]) -> CudaPool | None:
    runtime = _runtime()
    if runtime is None:
        return None
    try:
        with uncaptured():
            return CudaPool(*(runtime.attribute(index, kind, attribute) for attribute in attributes))
    except Exception:  # an older runtime, or a kernel that has failed
        return None


class uncaptured:  # noqa: N801 (a context manager reads as a word; a class costs a third of a generator)
    """Let this thread ask the device something while some stream of it is being captured into a graph.

    A capture forbids its whole thread all calls that might wait, a mere question included, and is void if one comes
    (also when the current stream is not the one that is captured, which PyTorch cannot tell). For the length of the
    block the thread is excused, as PyTorch's allocator excuses its own calls.

    The block is given whether the thread could be excused; if not, nothing should be asked.
    """

    __slots__ = ("_mode", "_runtime")

    def __enter__(self) -> bool:
        self._runtime = runtime = _runtime()
        if runtime is None:
            return False
        self._mode = runtime.exchange_mode(_RELAXED)
        return True

    def __exit__(self, *error: object) -> None:
        if self._runtime is not None:
            self._runtime.exchange_mode(self._mode)


class _Bindings:
    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime
        self._modes = runtime.cudaStreamCaptureMode

    def exchange_mode(self, mode: int) -> int:
        return int(self._runtime.cudaThreadExchangeStreamCaptureMode(self._modes(mode))[1])

    def malloc(self, size: int) -> int | None:
        error, pointer = self._runtime.cudaMalloc(size)
        return int(pointer) if int(error) == 0 else None

    def free(self, pointer: int) -> None:
        self._runtime.cudaFree(pointer)

    def attribute(self, index: int, kind: str, attribute: int) -> int:
        runtime = self._runtime
        if kind == "graph":
            value = runtime.cudaGraphMemAttributeType(attribute)
            return _good(runtime.cudaDeviceGetGraphMemAttribute(index, value))
        pool = runtime.cudaDeviceGetDefaultMemPool(index)
        return _good(runtime.cudaMemPoolGetAttribute(pool[1], runtime.cudaMemPoolAttr(attribute)))


class _Loaded:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def exchange_mode(self, mode: int) -> int:
        value = ctypes.c_int(mode)
        self._library.cudaThreadExchangeStreamCaptureMode(ctypes.byref(value))
        return value.value

    def malloc(self, size: int) -> int | None:
        pointer = ctypes.c_void_p()
        if self._library.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)):
            self._library.cudaGetLastError()  # or the user's next call would find our error
            return None
        return pointer.value

    def free(self, pointer: int) -> None:
        self._library.cudaFree(ctypes.c_void_p(pointer))

    def attribute(self, index: int, kind: str, attribute: int) -> int:
        library, value, pool = self._library, ctypes.c_uint64(), ctypes.c_void_p()
        if kind == "graph":
            code = library.cudaDeviceGetGraphMemAttribute(index, attribute, ctypes.byref(value))
        else:
            code = library.cudaDeviceGetDefaultMemPool(ctypes.byref(pool), index)
            code = code or library.cudaMemPoolGetAttribute(pool, attribute, ctypes.byref(value))
        return _good((code, value.value))


def _good(answer: tuple[Any, Any]) -> int:
    """The value of an answer.

    Raises:
        RuntimeError: It is an error.
    """
    if int(answer[0]):
        raise RuntimeError(f"CUDA error {int(answer[0])}")
    return int(answer[1])


@lru_cache(maxsize=1)
def _runtime() -> _Bindings | _Loaded | None:
    return _bindings() or _loaded_runtime()


def _bindings() -> _Bindings | None:
    try:
        from cuda.bindings import runtime
    except Exception:  # absent, or made for another CUDA than the one that is loaded
        return None
    return _Bindings(runtime)


def _loaded_runtime() -> _Loaded | None:
    if not sys.platform.startswith("linux"):
        return None
    with contextlib.suppress(OSError), Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line.split(maxsplit=5)[5:]
            if path and "libcudart" in path[0].rpartition("/")[2]:
                return _Loaded(ctypes.CDLL(path[0].strip()))
    return None
