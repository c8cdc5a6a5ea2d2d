"""Record the memory allocations in this process with CUPTI, which omits memory created with cuMemCreate.

The CUPTI library loaded by PyTorch is used, because a second copy would act as a second profiler. Only the Activity API
is used, without a subscriber and without Python callbacks, so that torch.profiler continues to work.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.core.errors import CuptiError, first_line
from ipygpumem.sources.cupti.buffers import ActivityBuffers
from ipygpumem.sources.host import loaded_library

ALLOCATION = 1
KINDS = {2: "pinned", 3: "device", 4: "array", 5: "managed", 6: "static", 7: "managed"}
"""Values of CUpti_ActivityMemoryKind. Pageable memory and memory of an unknown kind are ignored."""

_MEMORY2 = 49
_FLUSH_FORCED = 1
_SUCCESS = 0
_END = 12
_NEWEST_FUNCTION = "cuptiActivityEnableAllocationSource"  # in CUDA 12.8 and later

RECORD = np.dtype(
    {
        "names": ["kind", "operation", "memory", "address", "bytes", "time", "device", "name", "async", "source"],
        "formats": ["u4", "u4", "u4", "u8", "u8", "u8", "u4", "u8", "u4", "u8"],
        "offsets": [0, 4, 8, 16, 24, 32, 52, 64, 72, 120],
        "itemsize": 128,
    }
)
"""Layout of CUpti_ActivityMemory4 in CUPTI 12.8 and later."""

_REASONS = {
    15: "CUPTI is not initialized",
    27: "CUPTI does not support this device",
    33: "CUPTI does not support this virtual GPU",
    35: "only administrators may profile on this machine (NVreg_RestrictProfilingToAdminUsers)",
    39: "another profiler or debugger is using CUPTI (such as nsys, ncu, compute-sanitizer or cuda-gdb)",
    40: "this user has no permission to profile this virtual GPU",
    41: "CUPTI does not support confidential computing",
    43: "CUPTI does not support this MIG instance",
    45: "CUPTI does not support this version of WSL",
}


class CuptiLibrary:
    """The CUPTI library loaded by PyTorch. Raises `CuptiError` if it is missing or too old, or a call fails."""

    def __init__(self, library: Any | None = None) -> None:
        self._library = _loaded() if library is None else library
        if not hasattr(self._library, _NEWEST_FUNCTION):
            raise CuptiError(f"CUPTI is too old: it has no {_NEWEST_FUNCTION} (CUDA 12.8 or later is required)")

    def _call(self, name: str, *arguments: Any) -> int:
        code = int(getattr(self._library, name)(*arguments))
        if code not in {_SUCCESS, _END}:
            raise CuptiError(_REASONS.get(code) or f"{name}: {self._text_of(code)}")
        return code

    def _text_of(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuptiGetResultString(ctypes.c_int(code), ctypes.byref(text))
        return text.value.decode(errors="replace") if text.value else f"CUPTI error {code}"

    def start(self, buffers: ActivityBuffers) -> None:
        functions = ctypes.c_void_p(buffers.request), ctypes.c_void_p(buffers.complete)
        self._call("cuptiActivityRegisterCallbacks", *functions)
        self._call("cuptiActivityEnable", ctypes.c_int(_MEMORY2))
        try:
            self._call(_NEWEST_FUNCTION, ctypes.c_uint8(1))
        except CuptiError:
            self.stop()
            raise

    def stop(self) -> None:
        """The remaining records must be flushed afterwards."""
        self._call("cuptiActivityDisable", ctypes.c_int(_MEMORY2))

    def flush(self) -> None:
        """Flush the records of all threads, including those in partially filled buffers."""
        self._call("cuptiActivityFlushAll", ctypes.c_uint32(_FLUSH_FORCED))

    def now(self) -> int:
        timestamp = ctypes.c_uint64()
        self._call("cuptiGetTimestamp", ctypes.byref(timestamp))
        return timestamp.value

    def records(self, address: int, valid: int) -> NDArray[Any]:
        """Return a copy of the memory records in a completed buffer as a one-dimensional array of dtype `RECORD`.

        ``valid`` is the number of bytes that contain records. Raises `CuptiError` if the records are too short.
        """
        stride = self._stride(address, valid)
        if not stride:
            return np.zeros(0, dtype=RECORD)
        if stride < RECORD.itemsize:  # fail, because incomplete values would look complete
            size = RECORD.itemsize
            raise CuptiError(f"records of this version of CUPTI have {stride} bytes, but at least {size} are required")
        count = valid // stride
        raw = np.frombuffer(ctypes.string_at(address, count * stride), dtype=np.uint8).reshape(count, stride)
        records: NDArray[Any] = raw[:, : RECORD.itemsize].copy().view(RECORD)[:, 0]
        memory_records: NDArray[Any] = records[records["kind"] == _MEMORY2]
        return memory_records

    def _stride(self, address: int, valid: int) -> int:
        """Return the size of a record in bytes, which depends on the version of CUPTI; 0 if there are no records."""
        record = ctypes.c_void_p(None)
        arguments = ctypes.c_void_p(address), ctypes.c_size_t(valid), ctypes.byref(record)
        if self._call("cuptiActivityGetNextRecord", *arguments) == _END:
            return 0
        first = record.value or 0
        if self._call("cuptiActivityGetNextRecord", *arguments) == _END:
            return valid
        return (record.value or 0) - first

    @staticmethod
    def text(pointer: int) -> str:
        """Return the C string at an address. Call this immediately, because CUPTI may free the string."""
        return ctypes.string_at(pointer).decode(errors="replace") if pointer else ""


def _loaded() -> Any:
    if not sys.platform.startswith("linux"):
        raise CuptiError("recording with CUPTI is supported only on Linux")
    path = loaded_library("libcupti.so")
    if path is None:
        raise CuptiError("the CUPTI library is not loaded: only CUDA builds of PyTorch load it")
    try:
        return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError as error:
        raise CuptiError(f"the CUPTI library cannot be opened: {first_line(error)}") from error
