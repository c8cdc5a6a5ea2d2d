"""A CUPTI library that writes records in the layout of CUDA 13.0 and calls the real callbacks.

::

    cupti = FakeCupti()
    records = use_library(monkeypatch, cupti)
    cupti.alloc(0x7000, 64 << 20, NCCL)      # recorded while it is enabled
    cupti.free(0x7000)

Each ``thread`` fills its own buffers; a buffer is completed when it is full or flushed.
"""

# ruff: noqa: N802 (the library's own names)

from __future__ import annotations

import ctypes
import itertools
import struct
import threading

RECORD = struct.Struct("<IIII QQQQ IIII Q II II QQQQ Q")
"""CUpti_ActivityMemory4: kind, operation, memory, correlation; address, bytes, timestamp, PC; process, device, context,
stream; name; async, pad; pool's type, pad, address, threshold, size, utilized; source."""
MEMORY2 = 49
ALLOCATION, RELEASE = 1, 2
PINNED, DEVICE, ARRAY, MANAGED, STATIC = 2, 3, 4, 5, 6
MAX_LIMIT_REACHED = 12

SITE = "/venv/lib/python3.12/site-packages"
TORCH = f"{SITE}/torch/lib/libc10_cuda.so"
NCCL = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"
CUBLAS = f"{SITE}/nvidia/cu13/lib/libcublas.so.13"
CUPY = f"{SITE}/cupy_backends/cuda/api/runtime.cpython-312-x86_64-linux-gnu.so"
CTYPES = "/lib/x86_64-linux-gnu/libffi.so.8"

_REQUEST = ctypes.CFUNCTYPE(
    None, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)
)
_COMPLETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint32, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t)


class FakeCupti:
    """A fake CUPTI library.

    Attributes:
        stride: Size of a record in bytes.
        refuses: Error codes of the functions that fail, by function name.
    """

    def __init__(self, *, stride=RECORD.size):
        self.stride = stride
        self.refuses = {}
        self.enabled = False
        self.sources = False
        self.clock = 1_795_266_036_000_000_000
        self.calls = []
        self.dropped = 0
        self._sizes = {}
        self._lock = threading.RLock()
        self._texts = {}
        self._request = self._complete = None
        self._open = {}
        self._numbers = itertools.count(1)

    # the program

    def alloc(self, address, size, source=CTYPES, **fields):
        self._sizes[address] = size
        self.record(ALLOCATION, address, size, source=source, **fields)

    def free(self, address, **fields):
        self.record(RELEASE, address, self._sizes.pop(address), source=None, **fields)

    def record(self, operation, address, size, *, source, **fields):
        with self._lock:  # as in the library: any thread may flush at any time
            self.clock += 1000
            if self.enabled:
                self._record(operation, address, size, source if self.sources else None, **fields)

    def _record(self, operation, address, size, source, *, memory=DEVICE, device=0, pooled=False, time=None, thread=0):
        head = (MEMORY2, operation, memory, next(self._numbers))
        ids = (4711, device, 1, 0xFFFFFFFF)
        text = self.text(source) if source else 0
        data = RECORD.pack(
            *head, address, size, time or self.clock, 0, *ids, 0, int(pooled), 0, int(pooled), 0, 0, 0, 0, 0, text
        )
        self.write(data.ljust(self.stride, b"\xee"), thread)

    def text(self, path):
        text = self._texts.setdefault(path, ctypes.create_string_buffer(path.encode()))
        return ctypes.addressof(text)

    def write(self, data, thread=0):
        buffer = self._open.get(thread)  # address, used bytes, size
        if buffer is not None and buffer[1] + len(data) > buffer[2]:
            self._complete_buffer(thread)
            buffer = None
        if buffer is None:
            buffer = self._open[thread] = self._request_buffer()
        if not buffer[0]:
            self.dropped += 1
            del self._open[thread]
            return
        ctypes.memmove(buffer[0] + buffer[1], data, len(data))
        buffer[1] += len(data)

    def _request_buffer(self):
        buffer, size, max_records = ctypes.c_void_p(1), ctypes.c_size_t(1), ctypes.c_size_t(1)
        self._request(buffer, size, max_records)
        assert max_records.value == 0
        return [buffer.value or 0, 0, size.value]

    def _complete_buffer(self, thread):
        address, used, size = self._open.pop(thread)
        self._complete(None, 0, address, size, used)

    # the C functions

    def _call(self, name):
        self.calls.append(name)
        return self.refuses.get(name, 0)

    def cuptiActivityRegisterCallbacks(self, request, complete):
        self._request, self._complete = _REQUEST(request.value), _COMPLETE(complete.value)
        return self._call("cuptiActivityRegisterCallbacks")

    def cuptiActivityEnable(self, kind):
        assert kind.value == MEMORY2
        code = self._call("cuptiActivityEnable")
        self.enabled = not code
        return code

    def cuptiActivityDisable(self, kind):
        assert kind.value == MEMORY2
        self.enabled = False
        return self._call("cuptiActivityDisable")

    def cuptiActivityEnableAllocationSource(self, switch):
        self.sources = bool(switch.value)
        return self._call("cuptiActivityEnableAllocationSource")

    def cuptiActivityFlushAll(self, flag):
        assert flag.value == 1
        code = self._call("cuptiActivityFlushAll")
        with self._lock:
            for thread in [] if code else list(self._open):
                self._complete_buffer(thread)
        return code

    def cuptiActivityGetNextRecord(self, buffer, valid, record):
        pointer = record._obj
        following = buffer.value if pointer.value is None else pointer.value + self.stride
        if following + self.stride > buffer.value + valid.value:
            return MAX_LIMIT_REACHED
        pointer.value = following
        return self._call("cuptiActivityGetNextRecord")

    def cuptiGetTimestamp(self, stamp):
        stamp._obj.value = self.clock
        return self._call("cuptiGetTimestamp")

    def cuptiGetResultString(self, code, text):
        text._obj.value = f"CUPTI_ERROR_{code.value}".encode()
        return 0


def use_library(monkeypatch, library):
    """Replace CUPTI with a fake library, and return the recorder of memory outside PyTorch."""
    from ipygpumem.features.outside import cupti_recorder
    from ipygpumem.sources.cupti.library import CuptiLibrary

    monkeypatch.setattr(cupti_recorder, "CuptiLibrary", lambda: CuptiLibrary(library))
    return cupti_recorder.cupti_recorder()
