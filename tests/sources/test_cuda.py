"""The runtime that is loaded already, called through ctypes where torch brought no cuda-bindings."""

from __future__ import annotations

import ctypes
import sys

import pytest

from ipygpumem.sources import cuda

SIZE = 34 << 20


class Runtime:
    """What ctypes.CDLL gives, with the C signatures of libcudart."""

    def __init__(self):
        self.held, self.error, self.forgotten, self.modes = {}, 0, 0, [0]
        pointer, size = ctypes.c_void_p, ctypes.c_size_t
        self.cudaMalloc = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(pointer), size)(self._malloc)
        self.cudaFree = ctypes.CFUNCTYPE(ctypes.c_int, pointer)(self._free)
        self.cudaGetLastError = ctypes.CFUNCTYPE(ctypes.c_int)(self._last_error)
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
        self.forgotten += 1
        return self.error

    def _mode(self, mode):
        self.modes.append(mode[0])
        mode[0] = self.modes[-2]
        return 0


def _hide_bindings(monkeypatch):
    for name in ("cuda", "cuda.bindings"):  # PyTorch's CUDA build has imported both
        monkeypatch.setitem(sys.modules, name, None)


@pytest.fixture
def runtime(monkeypatch, fresh_package):
    _hide_bindings(monkeypatch)
    runtime = Runtime()
    cuda._runtime.cache_clear()
    monkeypatch.setattr(cuda, "_loaded_runtime", lambda: cuda._Loaded(runtime))
    return runtime


def test_memory_is_held_for_the_block_and_given_back(runtime):
    with cuda.raw_allocation(SIZE) as taken:
        assert taken
        assert list(runtime.held.values()) == [SIZE]
    assert runtime.held == {}
    assert runtime.modes == [0, 2, 0, 2, 0], "each call excused from a capture"


def test_memory_is_given_back_when_the_block_raises(runtime):
    with pytest.raises(ZeroDivisionError), cuda.raw_allocation(SIZE):
        raise ZeroDivisionError
    assert runtime.held == {}


def test_no_memory_leaves_no_error_for_the_users_next_call(runtime):
    runtime.error = 2
    with cuda.raw_allocation(SIZE) as taken:
        assert not taken
    assert runtime.forgotten == 1


def test_no_runtime_nothing_taken(monkeypatch):
    _hide_bindings(monkeypatch)
    monkeypatch.setattr(cuda, "_loaded_runtime", lambda: None)
    cuda._runtime.cache_clear()
    with cuda.raw_allocation(SIZE) as taken, cuda.uncaptured() as excused:
        assert (taken, excused) == (False, False)


def test_the_loaded_runtime_is_the_one_in_the_memory_map(monkeypatch, tmp_path):
    opened = []
    real = cuda.Path.open
    maps = tmp_path / "maps"
    maps.write_text(
        "7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/libc.so.6\n"
        "7f02-7f03 rw-p 00000000 00:00 0 \n"
        "7f04-7f05 r-xp 00000000 08:01 2 /site packages/nvidia/cuda_runtime/lib/libcudart.so.12\n"
    )
    monkeypatch.setattr(cuda.Path, "open", lambda self, **options: real(maps, **options))
    monkeypatch.setattr(cuda.ctypes, "CDLL", opened.append)
    assert cuda._loaded_runtime() is not None
    assert opened == ["/site packages/nvidia/cuda_runtime/lib/libcudart.so.12"]
