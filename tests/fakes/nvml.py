"""A fake NVML library below the real pynvml: it receives pynvml's ctypes arguments and fills its structures.

::

    nvml = FakeNvml([FakeNvmlDevice(uuid="GPU-1")])
    nvml.install()                  # pynvml opens this library instead of libnvidia-ml.so.1
    nvml.fail("nvmlDeviceGetMemoryInfo_v2", pynvml.NVML_ERROR_GPU_IS_LOST)
    nvml.missing.add("nvmlDeviceGetMemoryInfo_v2")   # an old driver
    nvml.present = False            # no driver library on this machine
    nvml.uninstall()

A device's ``regime`` decides how it lists processes: ``bare`` (own pid, correct bytes, all processes), ``A`` (host
pids, correct bytes, all processes), ``B`` (own pid with 0 bytes, others hidden), ``C`` (own pid, correct bytes, others
hidden), ``wsl`` (own pid, bytes not available), ``hidden`` (empty list), ``shared`` (two entries change
together).
"""

from __future__ import annotations

import collections
import ctypes
import os
from dataclasses import dataclass, field

from fakes.patches import Patches

MIB = 1 << 20
HOST_PID = 3_000_000
"""The offset of the process IDs in regime A."""
NOT_AVAILABLE = (1 << 64) - 1


@dataclass
class FakeNvmlDevice:
    """A device or MIG instance.

    Attributes:
        own: Memory of this process in bytes.
        others: Memory of other compute processes by process ID.
        drawing: Memory of graphics processes by process ID.
    """

    uuid: str = "GPU-00000000-0000-0000-0000-000000000000"
    total: int = 143_771 * MIB
    driver_reserved: int = 615 * MIB
    pci: str = "00000000:18:00.0"
    regime: str = "bare"
    mig: bool = False
    own: int = 0
    unattributed: int = 0
    others: dict = field(default_factory=dict)
    drawing: dict = field(default_factory=dict)
    highest: int | None = None
    """The peak memory of this process in NVML's accounting mode; None if the mode is disabled."""
    reserved_in_used: bool = False
    """Whether the used memory in version 2 includes the memory that the driver reserves, as with some drivers."""

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)
        if name == "own" and getattr(self, "highest", None) is not None:
            self.highest = max(self.highest, value)

    @property
    def used(self):
        """The used memory in version 2 of the query, without the memory that the driver reserves."""
        return self.own + self.unattributed + sum(self.others.values()) + sum(self.drawing.values())

    @property
    def free(self):
        return self.total - self.driver_reserved - self.used

    def processes(self):  # noqa: PLR0911 (one for each regime)
        """Return pairs of process ID and memory, as NVML lists them in this regime."""
        own = [(os.getpid(), self.own)] if self.own else []
        if self.regime == "bare":
            return own + list(self.others.items())
        if self.regime == "A":
            return [(pid + HOST_PID, size) for pid, size in own + list(self.others.items())]
        if self.regime == "B":
            return [(pid, 0) for pid, _ in own]
        if self.regime == "C":
            return own
        if self.regime == "wsl":
            return [(pid, NOT_AVAILABLE) for pid, _ in own + list(self.others.items())]
        if self.regime == "shared":
            return [*own, *((pid + HOST_PID, size) for pid, size in own)]
        return []

    def graphics(self):
        return list(self.drawing.items())


class FakeNvml:
    """The fake library, with a method for each C function."""

    def __init__(self, devices=()):
        self.devices = list(devices)
        self.missing = set()
        self.present = True
        self.initialized = 0
        self.calls = collections.Counter()
        self._errors = {}
        self._patches = Patches()

    def fail(self, name, code, *, times=None):
        """Make a function return an error code in every call, or in the next ``times`` calls."""
        self._errors[name] = [code, times]

    def heal(self, *names):
        """Make these functions, or all functions, work again."""
        for name in names or list(self._errors):
            self._errors.pop(name, None)

    def install(self):
        import pynvml

        def load(name, *arguments, **options):
            if not self.present:
                raise OSError(f"{name}: cannot open shared object file: No such file or directory")
            return _Library(self)

        self._patches.set(pynvml, "CDLL", load)
        self._patches.set(pynvml, "nvmlLib", None)
        self._patches.set(pynvml, "_nvmlLib_refcount", 0)
        self._patches.set(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return self

    def uninstall(self):
        self._patches.restore()

    def _error(self, name):
        import pynvml

        error = self._errors.get(name)
        if error is not None:
            code, times = error
            if times is None:
                return code
            if times > 0:
                error[1] = times - 1
                return code
        if not self.initialized and name not in {"nvmlInitWithFlags", "nvmlErrorString"}:
            return pynvml.NVML_ERROR_UNINITIALIZED
        return None

    def _device(self, handle):
        return self.devices[ctypes.cast(handle, ctypes.c_void_p).value // 0x1000 - 1]

    def _give(self, out, index):
        ctypes.cast(out, ctypes.POINTER(ctypes.c_void_p))[0] = (index + 1) * 0x1000

    def _find(self, out, matches):
        import pynvml

        for index, device in enumerate(self.devices):
            if matches(device):
                self._give(out, index)
                return 0
        return pynvml.NVML_ERROR_NOT_FOUND

    # the C functions

    def nvmlInitWithFlags(self, flags):  # noqa: N802
        self.initialized += 1
        return 0

    def nvmlShutdown(self):  # noqa: N802
        self.initialized -= 1
        return 0

    def nvmlErrorString(self, code):  # noqa: N802
        return b"error %d" % code

    def nvmlDeviceGetCount_v2(self, out):  # noqa: N802
        out._obj.value = len(self.devices)
        return 0

    def nvmlSystemGetDriverVersion(self, out, length):  # noqa: N802
        out.value = b"580.159.04"
        return 0

    def nvmlDeviceGetName(self, handle, out, length):  # noqa: N802
        out.value = b"NVIDIA H200"
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, out):  # noqa: N802
        return self._find(out, lambda device: self.devices.index(device) == index.value)

    def nvmlDeviceGetHandleByUUID(self, uuid, out):  # noqa: N802
        return self._find(out, lambda device: device.uuid.encode() == uuid.value)

    def nvmlDeviceGetHandleByPciBusId_v2(self, pci, out):  # noqa: N802
        return self._find(out, lambda device: device.pci.encode() == pci.value)

    def nvmlDeviceGetMigMode(self, handle, current, pending):  # noqa: N802
        current._obj.value = pending._obj.value = int(self._device(handle).mig)
        return 0

    def nvmlDeviceGetAccountingMode(self, handle, out):  # noqa: N802
        out._obj.value = self._device(handle).highest is not None
        return 0

    def nvmlDeviceGetAccountingStats(self, handle, pid, out):  # noqa: N802
        import pynvml

        device = self._device(handle)
        if pid.value not in dict(device.processes()):
            return pynvml.NVML_ERROR_NOT_FOUND
        out._obj.maxMemoryUsage = device.highest
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle, out):  # noqa: N802
        import pynvml

        device, memory = self._device(handle), _as(out, pynvml.c_nvmlMemory_t)
        memory.total = device.total
        memory.used = device.used + device.driver_reserved
        memory.free = device.free
        return 0

    def nvmlDeviceGetMemoryInfo_v2(self, handle, out):  # noqa: N802
        import pynvml

        device, memory = self._device(handle), _as(out, pynvml.c_nvmlMemory_v2_t)
        if memory.version != pynvml.nvmlMemory_v2:
            return pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH
        memory.total = device.total
        memory.reserved = device.driver_reserved
        memory.used = device.used + (device.driver_reserved if device.reserved_in_used else 0)
        memory.free = device.free
        return 0

    def _list(self, processes, count, array):
        import pynvml

        if array is None:
            count._obj.value = len(processes)
            return pynvml.NVML_ERROR_INSUFFICIENT_SIZE if processes else 0
        if len(processes) > count._obj.value:
            return pynvml.NVML_ERROR_INSUFFICIENT_SIZE
        count._obj.value = len(processes)
        entries = ctypes.cast(array, ctypes.POINTER(pynvml.c_nvmlProcessInfo_v2_t))
        for entry, (pid, size) in zip(entries, processes, strict=False):
            entry.pid, entry.usedGpuMemory = pid, size
            entry.gpuInstanceId = entry.computeInstanceId = 0xFFFFFFFF
        return 0

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle, count, array):  # noqa: N802
        return self._list(self._device(handle).processes(), count, array)

    nvmlDeviceGetComputeRunningProcesses_v2 = nvmlDeviceGetComputeRunningProcesses_v3  # noqa: N815

    def nvmlDeviceGetGraphicsRunningProcesses_v3(self, handle, count, array):  # noqa: N802
        return self._list(self._device(handle).graphics(), count, array)

    nvmlDeviceGetGraphicsRunningProcesses_v2 = nvmlDeviceGetGraphicsRunningProcesses_v3  # noqa: N815


def _as(out, struct):
    """Interpret an argument as a structure of this type, whatever the type of the argument, as the driver does."""
    return ctypes.cast(out, ctypes.POINTER(struct))[0]


class _Library:
    """The replacement of the ctypes library that pynvml loads."""

    def __init__(self, nvml):
        self._nvml = nvml

    def __getattr__(self, name):
        nvml = self._nvml
        if not name.startswith("nvml") or name in nvml.missing or not hasattr(type(nvml), name):
            raise AttributeError(name)

        def function(*arguments):
            nvml.calls[name] += 1
            error = nvml._error(name)
            return error if error is not None else getattr(nvml, name)(*arguments)

        return function
