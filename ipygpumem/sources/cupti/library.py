"""CUPTI: a record of every allocation of device memory in this process. The only module that calls the library.

Torch's own copy, which a CUDA build of torch has loaded already: a second one would be a second profiler. No callback
into Python and no subscriber: the activity interface alone, so that torch.profiler finds everything free.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ipygpumem.core.errors import CuptiError, first_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ipygpumem.sources.cupti.buffers import Buffers

__all__ = ["ALLOCATION", "KINDS", "RECORD", "Cupti"]

ALLOCATION = 1
KINDS = {2: "pinned", 3: "device", 4: "array", 5: "managed", 6: "static", 7: "managed"}
"""CUpti_ActivityMemoryKind in words; pageable and unknown memory is nobody's concern here."""

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
        "names": [
            "kind", "operation", "memory", "correlation", "address", "bytes", "time", "counter", "process", "device",
            "context", "stream", "name", "async", "pool", "source",
        ],
        "formats": ["u4"] * 4 + ["u8"] * 4 + ["u4"] * 4 + ["u8", "u4", "u4", "u8"],
        "offsets": [0, 4, 8, 12, 16, 24, 32, 40, 48, 52, 56, 60, 64, 72, 80, 120],
        "itemsize": 128,
    }
)  # fmt: skip
"""CUpti_ActivityMemory4, as CUPTI 12.8 and later write it."""

_REASONS = {
    15: "CUPTI is not initialised",
    27: "CUPTI does not support this device",
    33: "CUPTI does not support this virtual device",
    35: "no permission: the administrator keeps profiling to himself (NVreg_RestrictProfilingToAdminUsers)",
    39: "another profiler holds CUPTI (nsys, ncu, compute-sanitizer or a debugger)",
    40: "no permission to profile this virtual device",
    41: "CUPTI does not work under confidential computing",
    43: "CUPTI does not support this MIG device",
    45: "CUPTI does not work under WSL here",
}


class Cupti:
    """The library that is loaded. ``library`` stands in its place in tests.

    Raises:
        CuptiError: There is none, or it is too old to name the library that asks for memory.
    """

    def __init__(self, library: Any | None = None) -> None:
        self._library = _loaded() if library is None else library
        self._texts: dict[int, str] = {}
        for name in _NEEDED:
            if not hasattr(self._library, name):
                raise CuptiError(f"this CUPTI is too old: it has no {name} (CUDA 12.8 and later have)")

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
        """Record every allocation and release from here on into these buffers.

        Raises:
            CuptiError: Somebody else holds CUPTI, or it does not work on this machine.
        """
        self._texts.clear()  # a profiler may have taken CUPTI down meanwhile, and its texts with it
        functions = ctypes.c_void_p(buffers.request), ctypes.c_void_p(buffers.complete)
        self._call("cuptiActivityRegisterCallbacks", *functions)
        self._call("cuptiActivityEnable", ctypes.c_int(_MEMORY2))
        try:
            self._call("cuptiActivityEnableAllocationSource", ctypes.c_uint8(1))
        except CuptiError:
            self.stop()
            raise

    def stop(self) -> None:
        """Record nothing more. What is recorded is still to be flushed.

        Raises:
            CuptiError: CUPTI refuses.
        """
        self._call("cuptiActivityDisable", ctypes.c_int(_MEMORY2))

    def flush(self) -> None:
        """Have every buffer completed that holds a record, of every thread.

        Raises:
            CuptiError: CUPTI refuses.
        """
        self._call("cuptiActivityFlushAll", ctypes.c_uint32(_FORCED))

    def now(self) -> int:
        """The time by the clock of the records, in nanoseconds.

        Raises:
            CuptiError: CUPTI refuses.
        """
        stamp = ctypes.c_uint64()
        self._call("cuptiGetTimestamp", ctypes.byref(stamp))
        return stamp.value

    def records(self, address: int, valid: int) -> NDArray[Any]:
        """The records of a full buffer as an array of `RECORD`, copied out of it.

        Raises:
            CuptiError: CUPTI does not find them.
        """
        stride = self._stride(address, valid)
        if not stride:
            return np.zeros(0, dtype=RECORD)
        if stride < RECORD.itemsize:  # never none of them in silence: the figures would look complete
            raise CuptiError(f"this CUPTI writes records of {stride} bytes, not of {RECORD.itemsize}: another version")
        count = valid // stride
        raw = np.frombuffer(ctypes.string_at(address, count * stride), dtype=np.uint8).reshape(count, stride)
        found: NDArray[Any] = raw[:, : RECORD.itemsize].copy().view(RECORD)[:, 0]
        ours: NDArray[Any] = found[found["kind"] == _MEMORY2]
        return ours

    def _stride(self, address: int, valid: int) -> int:
        """The distance of two records: a later CUPTI may have longer ones. A buffer holds records of one kind."""
        record = ctypes.c_void_p(None)
        arguments = ctypes.c_void_p(address), ctypes.c_size_t(valid), ctypes.byref(record)
        if self._call("cuptiActivityGetNextRecord", *arguments) == _END:
            return 0
        first = record.value or 0
        if self._call("cuptiActivityGetNextRecord", *arguments) == _END:
            return valid
        return (record.value or 0) - first

    def text(self, pointer: int) -> str:
        """The text at an address that a record has; each is looked at once."""
        found = self._texts.get(pointer)
        if found is None:
            found = ctypes.string_at(pointer).decode(errors="replace") if pointer else ""
            self._texts[pointer] = found
        return found


def _loaded() -> Any:
    if not sys.platform.startswith("linux"):
        raise CuptiError("CUPTI is used on Linux only")
    with contextlib.suppress(OSError), Path("/proc/self/maps").open(encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = "".join(line.split(maxsplit=5)[5:]).strip()
            if path.rpartition("/")[2].startswith("libcupti.so"):
                try:
                    return ctypes.CDLL(path, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
                except OSError as error:
                    raise CuptiError(f"CUPTI cannot be called: {first_line(error)}") from error
    raise CuptiError("no CUPTI is loaded: CUDA builds of PyTorch bring it")
