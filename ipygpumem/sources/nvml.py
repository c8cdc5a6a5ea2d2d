"""NVML: what the driver knows of the whole card and of every process. The only module that imports pynvml.

Errors never pass: they become `NvmlError` with a reason in plain words, or None for the one figure that is missing.
"""

from __future__ import annotations

import ctypes
import importlib
import warnings
from typing import Any

from ipygpumem.core.errors import NvmlError, first_line
from ipygpumem.core.reading import DeviceMemory

__all__ = ["Nvml"]

_ROOM = 32
"""Processes on one card that the first try has room for."""
_MEMORY_V2 = 0x02000028
_NOT_AVAILABLE = 2**64 - 1
_COUNT = ctypes.c_ulonglong


class _MemoryV1(ctypes.Structure):
    _fields_ = (("total", _COUNT), ("free", _COUNT), ("used", _COUNT))


class _MemoryV2(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint), ("total", _COUNT), ("reserved", _COUNT), ("free", _COUNT), ("used", _COUNT))


class _Entry(ctypes.Structure):
    """One process, as versions 2 and 3 of the lists have it."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("memory", _COUNT),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


_TRIES = 4

_REASONS = {
    "NVML_ERROR_UNINITIALIZED": "NVML was shut down in this process",
    "NVML_ERROR_NOT_SUPPORTED": "this device does not support the NVML query",
    "NVML_ERROR_NO_PERMISSION": "no permission for the NVML query",
    "NVML_ERROR_NOT_FOUND": "NVML does not find the device",
    "NVML_ERROR_DRIVER_NOT_LOADED": "the NVIDIA driver is not loaded",
    "NVML_ERROR_LIBRARY_NOT_FOUND": "no NVIDIA driver library (libnvidia-ml) on this machine",
    "NVML_ERROR_FUNCTION_NOT_FOUND": "the driver is too old for the NVML query",
    "NVML_ERROR_GPU_IS_LOST": "the GPU has fallen off the bus (NVML: GPU is lost)",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "driver and NVML library are of different versions: restart the machine",
}


class Nvml:
    """An open NVML. Opening it touches neither CUDA nor any context.

    Raises:
        NvmlError: No driver, no library, or a foreign package called pynvml.
    """

    def __init__(self) -> None:
        with warnings.catch_warnings():
            # the deprecated distribution pynvml warns whoever imports the module: true, but not ours to repeat
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
        self._list_versions: tuple[str, ...] = ("v3", "v2")  # drivers before 510 have v2 only
        self._call("nvmlInit")

    def _call(self, name: str, *arguments: Any) -> Any:
        function = getattr(self._pynvml, name, None)
        if function is None:
            raise NvmlError(f"this nvidia-ml-py has no {name}")
        try:
            return function(*arguments)
        except self._pynvml.NVMLError as error:
            raise NvmlError(self._reason(error)) from error

    def _reason(self, error: Any) -> str:
        for name, text in _REASONS.items():
            if error.value == getattr(self._pynvml, name, None):
                return text
        return f"NVML: {error}"

    def driver(self) -> str:
        """The driver's version.

        Raises:
            NvmlError: The driver refuses.
        """
        return _text(self._call("nvmlSystemGetDriverVersion"))

    def devices(self) -> tuple[tuple[str, int], ...]:
        """Name and bytes of every card that this container may see, in NVML's own order.

        Raises:
            NvmlError: The driver refuses.
        """
        return tuple((name, self.memory(handle).total) for name, handle in self.handles())

    def handles(self) -> tuple[tuple[str, Any], ...]:
        """Name and handle of every card that this container may see, in NVML's own order.

        Raises:
            NvmlError: The driver refuses.
        """
        handles = [self._call("nvmlDeviceGetHandleByIndex", i) for i in range(self._call("nvmlDeviceGetCount"))]
        return tuple((_text(self._call("nvmlDeviceGetName", one)), one) for one in handles)

    def handle(self, uuid: str, pci: str | None = None) -> tuple[Any, bool]:
        """The card or MIG instance with this UUID (bare, or with its GPU-/MIG- prefix).

        Returns:
            The handle, and whether it is only the parent card of a MIG instance, whose figures are not ours.

        Raises:
            NvmlError: NVML knows no such device.
        """
        bare = uuid.removeprefix("GPU-").removeprefix("MIG-")
        reason = NvmlError("NVML does not find the device")
        for name in (f"GPU-{bare}", f"MIG-{bare}"):
            try:
                handle = self._call("nvmlDeviceGetHandleByUUID", name)
            except NvmlError as error:
                reason = error
            else:
                return handle, name.startswith("GPU-") and self._sliced(handle)
        if pci is None:
            raise reason
        handle = self._call("nvmlDeviceGetHandleByPciBusId", pci)
        return handle, self._sliced(handle)

    def _sliced(self, handle: Any) -> bool:
        try:
            current, _ = self._call("nvmlDeviceGetMigMode", handle)
        except NvmlError:
            return False
        return bool(current == self._pynvml.NVML_DEVICE_MIG_ENABLE)

    def memory(self, handle: Any) -> DeviceMemory:
        """The card's memory; v2 of the call where the driver has it, else v1. Never a mix within one session.

        Raises:
            NvmlError: The driver refuses.
        """
        if self._memory_v2:
            info = _MemoryV2(version=_MEMORY_V2)
            code = self._code("nvmlDeviceGetMemoryInfo_v2", handle, ctypes.byref(info))
            if code in (self._pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, self._pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH):
                self._memory_v2 = False
            else:
                self._check(code)
                # v2 leaves the driver's part out of used; v1 = v2.used + v2.reserved, exactly, on an H200
                reserved, used = info.reserved, info.used
                if reserved + used + info.free > info.total:  # drivers that still count it in: the documents disagree
                    used -= reserved
                return DeviceMemory(info.total, used + reserved, reserved, "NVML memory info v2")
        old = _MemoryV1()
        self._check(self._code("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(old)))
        return DeviceMemory(old.total, old.used, None, "NVML memory info v1")

    def accounts(self, handle: Any) -> bool:
        """Whether the administrator has switched accounting mode on: the driver then keeps each process's record."""
        try:
            return bool(self._call("nvmlDeviceGetAccountingMode", handle))
        except NvmlError:
            return False

    def highest(self, handle: Any, pid: int) -> int | None:
        """The most bytes that a process has ever had on a card, by the driver's accounting; None where nobody tells."""
        try:
            found = self._call("nvmlDeviceGetAccountingStats", handle, pid).maxMemoryUsage
        except NvmlError:
            return None
        return None if found is None else int(found)

    def processes(self, handle: Any, *, graphics: bool = False) -> dict[int, int | None]:
        """Bytes by process id as this container sees them; None where the driver tells no memory (WSL2, WDDM).

        ``graphics`` adds the processes that draw; one that does both is listed once.

        Raises:
            NvmlError: The driver refuses.
        """
        listed = self._listed("Compute", handle)
        if graphics:
            listed += self._listed("Graphics", handle)
        entries: dict[int, int | None] = {}
        for pid, size in listed:
            entries[pid] = size if size is not None else entries.get(pid)
        return entries

    def _listed(self, kind: str, handle: Any) -> list[tuple[int, int | None]]:
        room, code = _ROOM, 0
        for _ in range(_TRIES):
            # once, into room enough: pynvml's own function asks twice, and takes the driver's global lock twice
            count = ctypes.c_uint(room)
            entries = (_Entry * room)()
            name = f"nvmlDeviceGet{kind}RunningProcesses_{self._list_versions[0]}"
            code = self._code(name, handle, ctypes.byref(count), entries)
            if code == self._pynvml.NVML_ERROR_FUNCTION_NOT_FOUND and len(self._list_versions) > 1:
                self._list_versions = self._list_versions[1:]
            elif code == self._pynvml.NVML_ERROR_INSUFFICIENT_SIZE:
                room = 2 * max(count.value, room)
            else:
                break
        self._check(code)
        listed = ((entry.pid, entry.memory) for entry in entries[: count.value])
        return [(pid, None if size == _NOT_AVAILABLE else size) for pid, size in listed]

    def _code(self, name: str, *arguments: Any) -> int:
        """NVML's own answer. Twice a cell: pynvml's functions and structures cost as much again as the driver."""
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
