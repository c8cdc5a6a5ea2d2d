"""CUPTI: records of every allocation of device memory in this process.

Uses the library that a CUDA build of PyTorch has already loaded; a second copy would be a second profiler. Only the
activity interface is used, without a subscriber and without callbacks into Python, so that torch.profiler can work.
"""

from __future__ import annotations

import ctypes
import os
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import CuptiError, first_line
from ipygpumem.sources.host import loaded_library

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.sources.cupti.buffers import Buffers

ALLOCATION = 1
KINDS = {2: "pinned", 3: "device", 4: "array", 5: "managed", 6: "static", 7: "managed"}
"""CUpti_ActivityMemoryKind; pageable and unknown memory is ignored."""

_MEMORY2 = 49
_FORCED = 1
_SUCCESS = 0
_END = 12
_NEEDED = (
    "cuptiActivityRegisterCallbacks",
    "cuptiActivityEnable",
    "cuptiActivityDisable",
    "cuptiActivityFlushAll",
    "cuptiActivityGetNextRecord",
    "cuptiGetTimestamp",
    "cuptiActivityEnableAllocationSource",
)

RECORD = np.dtype(
    {
        "names": ["kind", "operation", "memory", "address", "bytes", "time", "device", "name", "async", "source"],
        "formats": ["u4", "u4", "u4", "u8", "u8", "u8", "u4", "u8", "u4", "u8"],
        "offsets": [0, 4, 8, 16, 24, 32, 52, 64, 72, 120],
        "itemsize": 128,
    }
)
"""CUpti_ActivityMemory4 of CUPTI 12.8 and later."""

_REASONS = {
    15: "CUPTI is not initialized",
    27: "CUPTI does not support this device",
    33: "CUPTI does not support this virtual device",
    35: "no permission: profiling is restricted to administrators (NVreg_RestrictProfilingToAdminUsers)",
    39: "another profiler is using CUPTI (nsys, ncu, compute-sanitizer or a debugger)",
    40: "no permission to profile this virtual device",
    41: "CUPTI does not work under confidential computing",
    43: "CUPTI does not support this MIG device",
    45: "CUPTI does not work under this WSL",
}


class Cupti:
    """The loaded library; tests pass another ``library``. All methods raise `CuptiError` if CUPTI fails.

    So does creating it if no library is loaded, or it is too old to record which library allocates.
    """

    def __init__(self, library: Any | None = None) -> None:
        self._library = _loaded() if library is None else library
        for name in _NEEDED:
            if not hasattr(self._library, name):
                raise CuptiError(f"this CUPTI is too old: it has no {name}, which CUDA 12.8 and later provide")

    def _call(self, name: str, *arguments: Any) -> int:
        code = int(getattr(self._library, name)(*arguments))
        if code not in {_SUCCESS, _END}:
            raise CuptiError(_REASONS.get(code) or f"{name}: {self._text_of(code)}")
        return code

    def _text_of(self, code: int) -> str:
        text = ctypes.c_char_p()
        self._library.cuptiGetResultString(ctypes.c_int(code), ctypes.byref(text))
        return text.value.decode(errors="replace") if text.value else f"CUPTI error {code}"

    def start(self, buffers: Buffers) -> None:
        """Start recording every allocation and free into these buffers."""
        functions = ctypes.c_void_p(buffers.request), ctypes.c_void_p(buffers.complete)
        self._call("cuptiActivityRegisterCallbacks", *functions)
        self._call("cuptiActivityEnable", ctypes.c_int(_MEMORY2))
        try:
            self._call("cuptiActivityEnableAllocationSource", ctypes.c_uint8(1))
        except CuptiError:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop recording. Existing records must still be flushed."""
        self._call("cuptiActivityDisable", ctypes.c_int(_MEMORY2))

    def flush(self) -> None:
        """Complete the buffers of all threads that contain a record."""
        self._call("cuptiActivityFlushAll", ctypes.c_uint32(_FORCED))

    def now(self) -> int:
        """Return the time by the clock of the records, in nanoseconds."""
        timestamp = ctypes.c_uint64()
        self._call("cuptiGetTimestamp", ctypes.byref(timestamp))
        return timestamp.value

    def records(self, address: int, valid: int) -> NDArray[Any]:
        """Return a copy of a full buffer's records as an array of `RECORD`."""
        stride = self._stride(address, valid)
        if not stride:
            return np.zeros(0, dtype=RECORD)
        if stride < RECORD.itemsize:  # fail, as values without these records would look complete
            raise CuptiError(f"this version of CUPTI writes records of {stride} bytes instead of {RECORD.itemsize}")
        count = valid // stride
        raw = np.frombuffer(ctypes.string_at(address, count * stride), dtype=np.uint8).reshape(count, stride)
        records: NDArray[Any] = raw[:, : RECORD.itemsize].copy().view(RECORD)[:, 0]
        memory_records: NDArray[Any] = records[records["kind"] == _MEMORY2]
        return memory_records

    def _stride(self, address: int, valid: int) -> int:
        """Return the size of a record, which may be larger in a later CUPTI. A buffer contains records of one kind."""
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
        """Return the text at an address in a record, now: CUPTI may free it later and use the address for another."""
        return ctypes.string_at(pointer).decode(errors="replace") if pointer else ""


def _loaded() -> Any:
    if not sys.platform.startswith("linux"):
        raise CuptiError("CUPTI is supported on Linux only")
    path = loaded_library("libcupti.so")
    if path is None:
        raise CuptiError("no CUPTI library is loaded; PyTorch's CUDA builds load it")
    try:
        return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
    except OSError as error:
        raise CuptiError(f"CUPTI cannot be called: {first_line(error)}") from error
