"""Tests that the CUDA runtime that is already loaded is called with ctypes."""

from __future__ import annotations

import ctypes

import pytest

from ipygpumem.sources import cuda, host

SIZE = 34 << 20


class Runtime:
    """Replacement for ctypes.CDLL with the C signatures of libcudart."""

    def __init__(self):
        self.held, self.error, self.cleared, self.modes = {}, 0, 0, [0]
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self.cudaMalloc = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(pointer), size)(self._malloc)
        self.cudaFree = ctypes.CFUNCTYPE(ctypes.c_int, pointer)(self._free)
        self.cudaGetLastError = ctypes.CFUNCTYPE(ctypes.c_int)(self._last_error)
        value = ctypes.POINTER(ctypes.c_uint64)
        self.cudaDeviceGetDefaultMemPool = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(pointer), ctypes.c_int)(
            self._default_pool
        )
        self.cudaMemPoolGetAttribute = ctypes.CFUNCTYPE(ctypes.c_int, pointer, ctypes.c_int, value)(self._attribute)
        self.cudaDeviceGetGraphMemAttribute = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_int, value)(
            self._attribute
        )
        self.cudaThreadExchangeStreamCaptureMode = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int))(
            self._mode
        )

    def _malloc(self, out, size):
        if self.error:
            return self.error
        out[0] = 0x7F00_0000_0000
        self.held[0x7F00_0000_0000] = size
        return 0

    def _free(self, pointer):
        del self.held[pointer]
        return 0

    def _last_error(self):
        self.cleared += 1
        return self.error

    def _default_pool(self, out, index):
        out[0] = 0x7F10 + index
        return self.error

    def _attribute(self, owner, attribute, value):
        value[0] = 1000 * owner + attribute
        return self.error

    def _mode(self, mode):
        self.modes.append(mode[0])
        mode[0] = self.modes[-2]
        return 0


@pytest.fixture
def runtime(monkeypatch, new_runtime):
    runtime = Runtime()
    monkeypatch.setattr(cuda, "_runtime", lambda: runtime)
    return runtime


def test_memory_is_freed_at_end_of_block(runtime):
    with cuda.raw_allocation(SIZE) as allocated:
        assert allocated
        assert list(runtime.held.values()) == [SIZE]
    assert runtime.held == {}
    assert runtime.modes == [0, 2, 0, 2, 0], "every call in relaxed capture mode"


def test_memory_is_freed_when_block_raises(runtime):
    with pytest.raises(ZeroDivisionError), cuda.raw_allocation(SIZE):
        raise ZeroDivisionError
    assert runtime.held == {}


def test_failed_allocation_leaves_no_error_for_next_call(runtime):
    runtime.error = 2
    with cuda.raw_allocation(SIZE) as allocated:
        assert not allocated
    assert runtime.cleared == 1


def test_pools_are_read_in_relaxed_capture_mode(runtime):
    assert cuda.pool(1, "stream") == tuple(1000 * 0x7F11 + attribute for attribute in (5, 7, 6))
    assert cuda.pool(1, "graph") == (1002, 1000, 1003)
    assert runtime.modes == [0, 2, 0, 2, 0]
    assert runtime.cleared == 0


@pytest.mark.parametrize("kind", ["stream", "graph"])
def test_unreadable_pool_leaves_no_error_for_the_next_call(runtime, kind):
    runtime.error = 801
    assert cuda.pool(0, kind) is None
    assert runtime.cleared == 1
    del runtime.cudaDeviceGetGraphMemAttribute
    assert cuda.pool(0, kind) is None, "an older runtime"


def test_nothing_is_allocated_without_runtime(monkeypatch):
    monkeypatch.setattr(cuda, "_runtime", lambda: None)
    with cuda.raw_allocation(SIZE) as allocated, cuda.RelaxedCaptureMode() as relaxed:
        assert (allocated, relaxed) == (False, False)


def test_loaded_runtime_is_in_memory_map(monkeypatch, tmp_path):
    opened = []
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/libc.so.6\n"
        "7f02-7f03 rw-p 00000000 00:00 0 \n"
        "7f04-7f05 r-xp 00000000 08:01 2 /site packages/nvidia/cuda_runtime/lib/libcudart.so.12\n"
    )
    monkeypatch.setattr(host, "_MAPS", str(maps))
    monkeypatch.setattr(cuda.ctypes, "CDLL", opened.append)
    cuda._runtime.__wrapped__()
    assert opened == ["/site packages/nvidia/cuda_runtime/lib/libcudart.so.12"]
