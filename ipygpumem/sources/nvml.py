"""NVML queries. Errors are converted to `NvmlError` with a readable reason, or to None for optional values."""

from __future__ import annotations

import ctypes
import functools
import importlib
import struct
import warnings
from typing import Any, NamedTuple

from ipygpumem.core.errors import NvmlError, first_line
from ipygpumem.core.introspection import attempt
from ipygpumem.sources.host import namespace_pids

_INITIAL_CAPACITY = 32
_LIST_TRIES = 4
NOT_LISTED = "this process is not in NVML's process list"
_NOT_AVAILABLE = 2**64 - 1
_MEMORY_V1 = struct.Struct("3Q")  # nvmlMemory_t: total, free, used
_MEMORY_V2 = struct.Struct("I4Q")  # nvmlMemory_v2_t: version, total, reserved, free, used
_PROCESS = struct.Struct("IQ2I")  # nvmlProcessInfo_v2_t: pid, usedGpuMemory, gpuInstanceId, computeInstanceId

_REASONS = {
    "NVML_ERROR_UNINITIALIZED": "NVML was shut down in this process",
    "NVML_ERROR_NOT_SUPPORTED": "this device does not support the NVML query",
    "NVML_ERROR_NO_PERMISSION": "this user has no permission for the NVML query",
    "NVML_ERROR_NOT_FOUND": "NVML cannot find the device",
    "NVML_ERROR_DRIVER_NOT_LOADED": "the NVIDIA driver is not loaded",
    "NVML_ERROR_LIBRARY_NOT_FOUND": "the NVIDIA driver library (libnvidia-ml) is not installed",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "the driver is too old for the NVML query",
    "NVML_ERROR_GPU_IS_LOST": "the GPU has fallen off the bus (NVML: GPU is lost)",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": (
        "the versions of the driver and of NVML differ: reboot to complete the driver update"
    ),
}


class DeviceMemory(NamedTuple):
    """Memory of a whole device, in bytes.

    Attributes:
        used: Memory in use, including memory reserved by the driver.
        reserved: Memory reserved by the driver; None if unknown.
        source: Query that returned the values.
    """

    total: int
    used: int
    reserved: int | None
    source: str


_new_memory: Any = functools.partial(tuple.__new__, DeviceMemory)  # three times as fast as calling the class


class Nvml:
    """Interface to NVML. The constructor and all methods except `has_accounting` and `highest` raise `NvmlError`."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            # the deprecated package pynvml emits a warning on import
            warnings.simplefilter("ignore", FutureWarning)
            try:
                self._pynvml: Any = importlib.import_module("pynvml")
            except ModuleNotFoundError as error:
                raise NvmlError("nvidia-ml-py is not installed: pip install nvidia-ml-py") from error
            except Exception as error:
                raise NvmlError(f"nvidia-ml-py cannot be imported: {first_line(error)}") from error
        if not hasattr(self._pynvml, "nvmlMemory_v2") or (self._pynvml.__file__ or "").endswith("__init__.py"):
            raise NvmlError("the deprecated pynvml package shadows nvidia-ml-py: pip uninstall pynvml")
        self._memory_v2 = True
        self._list_versions: tuple[str, ...] = ("v3", "v2")  # drivers before 510 support only v2
        self._unused_buffers: list[_Buffers] = []
        self._call("nvmlInit")

    def _call(self, name: str, *arguments: Any) -> Any:
        function = getattr(self._pynvml, name, None)
        if function is None:
            raise NvmlError(f"this version of nvidia-ml-py has no {name}: pip install --upgrade nvidia-ml-py")
        try:
            return function(*arguments)
        except self._pynvml.NVMLError as error:
            raise NvmlError(self._reason(error)) from error

    def _reason(self, error: Any) -> str:
        for name, reason in _REASONS.items():
            if error.value == getattr(self._pynvml, name, None):
                return reason
        return f"NVML: {error}"

    def driver(self) -> str:
        return str(self._call("nvmlSystemGetDriverVersion"))

    def handles(self) -> tuple[tuple[str, Any], ...]:
        handles = [self._call("nvmlDeviceGetHandleByIndex", i) for i in range(self._call("nvmlDeviceGetCount"))]
        return tuple((str(self._call("nvmlDeviceGetName", handle)), handle) for handle in handles)

    def handle(self, uuid: str, pci: str | None = None) -> tuple[Any, bool]:
        """Return ``(handle, is_mig_parent)`` for a UUID or PCI bus ID. MIG parents are GPUs in MIG mode."""
        bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
        reason = NvmlError("NVML cannot find the device")
        for name in (f"GPU-{bare}", f"MIG-{bare}"):
            try:
                handle = self._call("nvmlDeviceGetHandleByUUID", name)
            except NvmlError as error:
                reason = error
            else:
                return handle, name.startswith("GPU-") and self._has_mig(handle)
        if pci is None:
            raise reason
        handle = self._call("nvmlDeviceGetHandleByPciBusId", pci)
        return handle, self._has_mig(handle)

    def _has_mig(self, handle: Any) -> bool:
        mode = attempt(lambda: self._call("nvmlDeviceGetMigMode", handle))
        return mode is not None and bool(mode[0] == self._pynvml.NVML_DEVICE_MIG_ENABLE)

    def memory(self, handle: Any) -> DeviceMemory:
        """Return the memory usage of a device from version 2 of NVML's query or, with an old driver, version 1."""
        buffers = self._take_buffers()
        if self._memory_v2:
            code = self._call_raw("nvmlDeviceGetMemoryInfo_v2", handle, buffers.memory_reference)
            if not code:
                # v2 excludes memory reserved by the driver: v1.used = v2.used + v2.reserved (verified on an H200)
                _, total, reserved, free, used = _MEMORY_V2.unpack_from(buffers.memory)
                self._unused_buffers.append(buffers)
                if reserved + used + free > total:  # some drivers include it in used
                    used -= reserved
                memory: DeviceMemory = _new_memory((total, used + reserved, reserved, "NVML memory info v2"))
                return memory
            pynvml = self._pynvml
            if code not in {pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH}:
                self._raise(code)
            self._memory_v2 = False
        code = self._call_raw("nvmlDeviceGetMemoryInfo", handle, buffers.memory_reference)
        if code:
            self._raise(code)
        total, _, used = _MEMORY_V1.unpack_from(buffers.memory)
        return DeviceMemory(total, used, None, "NVML memory info v1")

    def has_accounting(self, handle: Any) -> bool:
        return bool(attempt(lambda: self._call("nvmlDeviceGetAccountingMode", handle)))

    def highest(self, handle: Any, pid: int) -> int | None:
        stats = attempt(lambda: self._call("nvmlDeviceGetAccountingStats", handle, pid))
        return None if stats is None else int(stats.maxMemoryUsage)

    def processes(self, handle: Any, *, graphics: bool = False) -> dict[int, int | None]:
        """Return a dict from PID to memory usage in bytes (None on WSL2 and WDDM) for the processes that use a device.

        If ``graphics`` is true, graphics processes are included.
        """
        processes = self._list("Compute", handle)
        if graphics:
            processes += self._list("Graphics", handle)
        entries: dict[int, int | None] = {}
        for pid, nbytes, _, _ in processes:
            entries[pid] = nbytes if nbytes != _NOT_AVAILABLE else entries.get(pid)
        return entries

    def _list(self, kind: str, handle: Any) -> list[tuple[int, ...]]:
        buffers, code = self._take_buffers(), 0
        for _ in range(_LIST_TRIES):
            # pynvml's wrapper queries the length first and therefore acquires the driver's global lock twice
            buffers.count.value = buffers.capacity
            name = f"nvmlDeviceGet{kind}RunningProcesses_{self._list_versions[0]}"
            code = self._call_raw(name, handle, buffers.count_reference, buffers.processes)
            if code == self._pynvml.NVML_ERROR_FUNCTION_NOT_FOUND and len(self._list_versions) > 1:
                self._list_versions = self._list_versions[1:]
            elif code == self._pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                buffers = _Buffers(self._pynvml.nvmlMemory_v2, 2 * max(buffers.count.value, buffers.capacity))
            else:
                break
        if code:
            self._raise(code)
        processes = [_PROCESS.unpack_from(buffers.processes, n * _PROCESS.size) for n in range(buffers.count.value)]
        self._unused_buffers.append(buffers)
        return processes

    def _take_buffers(self) -> _Buffers:
        try:
            return self._unused_buffers.pop()
        except IndexError:
            return _Buffers(self._pynvml.nvmlMemory_v2, _INITIAL_CAPACITY)

    def _call_raw(self, name: str, *arguments: Any) -> int:
        """Call a C function of NVML and return the result code. pynvml's wrapper would take twice as long."""
        try:
            return int(self._pynvml._nvmlGetFunctionPointer(name)(*arguments))
        except self._pynvml.NVMLError as error:
            return int(error.value)

    def _raise(self, code: int) -> None:
        error = self._pynvml.NVMLError(code)
        raise NvmlError(self._reason(error)) from error


def missing_entry_reason(entries: dict[int, int | None]) -> str:
    """``entries`` is NVML's process list: memory usage by PID."""
    if not entries:
        return "NVML lists no processes, probably because this process runs in a container"
    if all(size is None for size in entries.values()):
        return "NVML does not report per-process memory usage on this system (WSL2, Windows)"
    if any(entries.get(pid) == 0 for pid in namespace_pids()):
        return "NVML reports 0 bytes for this process: the driver hides its memory from this container"
    return NOT_LISTED


class _Buffers:
    """Memory for the results of NVML, which is reused because allocating it takes longer than the fastest query.

    It replaces pynvml's structures, which run Python code whenever a field is used.
    """

    def __init__(self, memory_version: int, capacity: int) -> None:
        self.memory = (ctypes.c_uint64 * 5)(memory_version)  # large enough for both versions
        self.memory_reference = ctypes.byref(self.memory)
        self.capacity = capacity
        self.count = ctypes.c_uint()
        self.count_reference = ctypes.byref(self.count)
        self.processes = (ctypes.c_uint64 * (capacity * _PROCESS.size // 8))()  # versions 2 and 3 have the same format
