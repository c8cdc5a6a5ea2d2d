"""The few CUDA calls that PyTorch does not offer: memory taken and given back past its allocator.

Through cuda-bindings where torch brought it, else ctypes on the CUDA runtime that is loaded already.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["raw_allocation"]


@contextlib.contextmanager
def raw_allocation(size: int) -> Iterator[bool]:
    """Hold ``size`` bytes of the current device by cudaMalloc for the length of the block.

    Yields:
        Whether the memory was there to have; False also where no CUDA runtime can be called.
    """
    runtime = _bindings() or _loaded_runtime()
    pointer = runtime.malloc(size) if runtime is not None else None
    try:
        yield pointer is not None
    finally:
        if runtime is not None and pointer is not None:
            runtime.free(pointer)


class _Bindings:
    def __init__(self, runtime: Any) -> None:
        self._runtime = runtime

    def malloc(self, size: int) -> int | None:
        error, pointer = self._runtime.cudaMalloc(size)
        return int(pointer) if int(error) == 0 else None

    def free(self, pointer: int) -> None:
        self._runtime.cudaFree(pointer)


class _Loaded:
    def __init__(self, library: ctypes.CDLL) -> None:
        self._library = library

    def malloc(self, size: int) -> int | None:
        pointer = ctypes.c_void_p()
        if self._library.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)):
            self._library.cudaGetLastError()  # or the user's next call would find our error
            return None
        return pointer.value

    def free(self, pointer: int) -> None:
        self._library.cudaFree(ctypes.c_void_p(pointer))


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
