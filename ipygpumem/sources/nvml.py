"""NVML: the driver's values for whole devices and all processes.

pynvml's errors become `NvmlError` with a readable reason, or None for a single missing value.
"""

from __future__ import annotations

import ctypes
import importlib
import warnings
from typing import Any

from ipygpumem.core.errors import NvmlError, first_line
from ipygpumem.core.reading import DeviceMemory

_INITIAL_CAPACITY = 32
"""Processes that fit into the first request for a list."""
_LIST_TRIES = 4
_NOT_AVAILABLE = 2**64 - 1

_REASONS = {
    "NVML_ERROR_UNINITIALIZED": "NVML was shut down in this process",
    "NVML_ERROR_NOT_SUPPORTED": "this device does not support the NVML query",
    "NVML_ERROR_NO_PERMISSION": "no permission for the NVML query",
    "NVML_ERROR_NOT_FOUND": "NVML does not find the device",
    "NVML_ERROR_DRIVER_NOT_LOADED": "the NVIDIA driver is not loaded",
    "NVML_ERROR_LIBRARY_NOT_FOUND": "no NVIDIA driver library (libnvidia-ml) on this machine",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "the driver is too old for the NVML query",
    "NVML_ERROR_GPU_IS_LOST": "the GPU has fallen off the bus (NVML: GPU is lost)",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "the driver and NVML have different versions: restart the machine",
}


class Nvml:
    """An initialized NVML, which needs no CUDA. Methods raise `NvmlError` unless they return None for a failure.

    So does creating it without a driver or NVML library, or if another package is called pynvml.
    """

    def __init__(self) -> None:
        with warnings.catch_warnings():
            # the deprecated package pynvml warns everyone who imports the module
            warnings.simplefilter("ignore", FutureWarning)
            try:
                self._pynvml: Any = importlib.import_module("pynvml")
            except ModuleNotFoundError as error:
                raise NvmlError("nvidia-ml-py is not installed") from error
            except Exception as error:
                raise NvmlError(f"nvidia-ml-py cannot be imported: {first_line(error)}") from error
        if not hasattr(self._pynvml, "nvmlMemory_v2") or (self._pynvml.__file__ or "").endswith("__init__.py"):
            raise NvmlError("an old package called pynvml hides nvidia-ml-py: pip uninstall pynvml")
        self._memory_v2 = True
        self._list_versions: tuple[str, ...] = ("v3", "v2")  # drivers before 510 have only v2
        self._call("nvmlInit")

    def _call(self, name: str, *arguments: Any) -> Any:
        function = getattr(self._pynvml, name, None)
        if function is None:
            raise NvmlError(f"this nvidia-ml-py has no {name}")
        try:
            return function(*arguments)
        except self._pynvml.NVMLError as error:
            raise NvmlError(self._reason(error)) from error

    def _attempt(self, name: str, *arguments: Any) -> Any | None:
        """Call a function that not every device supports; None if it fails."""
        try:
            return self._call(name, *arguments)
        except NvmlError:
            return None

    def _reason(self, error: Any) -> str:
        for name, reason in _REASONS.items():
            if error.value == getattr(self._pynvml, name, None):
                return reason
        return f"NVML: {error}"

    def driver(self) -> str:
        """Return the driver's version."""
        return _text(self._call("nvmlSystemGetDriverVersion"))

    def handles(self) -> tuple[tuple[str, Any], ...]:
        """Return product name and handle of every device that is visible in this container, in NVML's order."""
        handles = [self._call("nvmlDeviceGetHandleByIndex", i) for i in range(self._call("nvmlDeviceGetCount"))]
        return tuple((_text(self._call("nvmlDeviceGetName", handle)), handle) for handle in handles)

    def handle(self, uuid: str, pci: str | None = None) -> tuple[Any, bool]:
        """Find the device or MIG instance with this UUID, with or without its prefix ``GPU-`` or ``MIG-``.

        Also returns whether the handle belongs to the whole GPU of a MIG instance instead of the instance itself.
        """
        bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
        reason = NvmlError("NVML does not find the device")
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
        mode = self._attempt("nvmlDeviceGetMigMode", handle)
        return mode is not None and bool(mode[0] == self._pynvml.NVML_DEVICE_MIG_ENABLE)

    def memory(self, handle: Any) -> DeviceMemory:
        """Return a device's memory, from version 2 of the call if the driver has it. The version never changes back."""
        if self._memory_v2:
            info = self._pynvml.c_nvmlMemory_v2_t(version=self._pynvml.nvmlMemory_v2)
            code = self._call_raw("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(info))
            if code in (self._pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, self._pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
                self._memory_v2 = False
            else:
                self._check(code)
                # v2 excludes the driver's reserve from used: v1.used = v2.used + v2.reserved, exactly, on an H200
                reserved, used = info.reserved, info.used
                if reserved + used + info.free > info.total:  # but some drivers include it
                    used -= reserved
                return DeviceMemory(info.total, used + reserved, reserved, "NVML memory info v2")
        old = self._pynvml.c_nvmlMemory_t()
        self._check(self._call_raw("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(old)))
        return DeviceMemory(old.total, old.used, None, "NVML memory info v1")

    def has_accounting(self, handle: Any) -> bool:
        """Return whether the driver's accounting mode is on, in which it records the peak of each process."""
        return bool(self._attempt("nvmlDeviceGetAccountingMode", handle))

    def highest(self, handle: Any, pid: int) -> int | None:
        """Return the most bytes that a process has ever used on a device, from accounting mode; None if unknown."""
        nbytes = getattr(self._attempt("nvmlDeviceGetAccountingStats", handle, pid), "maxMemoryUsage", None)
        return None if nbytes is None else int(nbytes)

    def processes(self, handle: Any, *, graphics: bool = False) -> dict[int, int | None]:
        """Return bytes by pid as this container sees them; None if the driver does not report them (WSL2, WDDM).

        ``graphics`` adds graphics processes; a process that is in both lists appears once.
        """
        processes = self._list("Compute", handle)
        if graphics:
            processes += self._list("Graphics", handle)
        entries: dict[int, int | None] = {}
        for pid, nbytes in processes:
            entries[pid] = nbytes if nbytes is not None else entries.get(pid)
        return entries

    def _list(self, kind: str, handle: Any) -> list[tuple[int, int | None]]:
        capacity, code = _INITIAL_CAPACITY, 0
        for _ in range(_LIST_TRIES):
            # pynvml's own function asks for the length first, and so takes the driver's global lock twice
            count = ctypes.c_uint(capacity)
            entries = (self._pynvml.c_nvmlProcessInfo_v2_t * capacity)()  # also of version 3
            name = f"nvmlDeviceGet{kind}RunningProcesses_{self._list_versions[0]}"
            code = self._call_raw(name, handle, ctypes.byref(count), entries)
            if code == self._pynvml.NVML_ERROR_FUNCTION_NOT_FOUND and len(self._list_versions) > 1:
                self._list_versions = self._list_versions[1:]
            elif code == self._pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                capacity = 2 * max(count.value, capacity)
            else:
                break
        self._check(code)
        processes = ((entry.pid, entry.usedGpuMemory) for entry in entries[: count.value])
        return [(pid, None if nbytes == _NOT_AVAILABLE else nbytes) for pid, nbytes in processes]

    def _call_raw(self, name: str, *arguments: Any) -> int:
        """Call a C function and return its code. pynvml's wrappers would take as long again as the driver."""
        try:
            return int(self._pynvml._nvmlGetFunctionPointer(name)(*arguments))
        except self._pynvml.NVMLError as error:
            return int(error.value)

    def _check(self, code: int) -> None:
        if code:
            error = self._pynvml.NVMLError(code)
            raise NvmlError(self._reason(error)) from error


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)  # bytes before nvidia-ml-py 12
