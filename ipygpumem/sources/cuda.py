"""CUDA runtime functions that PyTorch does not expose. Errors are cleared, because PyTorch would report them later."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from functools import lru_cache, partial
from typing import Literal

from ipygpumem.sources.host import loaded_library

_RELAXED = 2  # cudaStreamCaptureModeRelaxed

PoolKind = Literal["stream", "graph"]
_POOL_ATTRIBUTES: dict[PoolKind, tuple[int, int, int]] = {"stream": (5, 7, 6), "graph": (2, 0, 3)}
"""Values of ReservedMemCurrent, UsedMemCurrent and ReservedMemHigh in cudaMemPoolAttr and cudaGraphMemAttributeType."""


class RelaxedCaptureMode:
    """Context manager that permits CUDA calls in this thread while a stream is being captured into a CUDA graph.

    In the default capture mode, potentially unsafe calls, including queries, fail and invalidate the capture. This also
    applies if a stream other than the current stream is being captured, which PyTorch cannot detect. PyTorch's
    allocator changes the mode in the same way. If ``__enter__`` returns False, the mode is unchanged: do not call CUDA.
    """

    # a class because a contextlib generator takes three times as long

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
    """Allocate memory with cudaMalloc on the current device for a ``with`` block. Yield whether this succeeded."""
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


def pool(index: int, kind: PoolKind) -> tuple[int, int, int] | None:
    """Return ``(reserved, used, peak_reserved)`` of one of a device's memory pools in bytes; None if the query fails.

    The device must have a CUDA context.
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
        except AttributeError:  # a CUDA runtime before version 11.4
            return None
        if error:
            runtime.cudaGetLastError()
            return None
    return values[0], values[1], values[2]


@lru_cache(maxsize=1)
def _runtime() -> ctypes.CDLL | None:
    path = loaded_library("libcudart")
    return None if path is None else ctypes.CDLL(path)
