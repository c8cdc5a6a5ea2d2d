"""Drop-in replacement for ``ipyexperiments.utils.mem`` with the same names and units.

All values refer to an entire device, are read from NVML (or CUDA if NVML is not available), and are in MiB, rounded
down. ``used`` includes the memory reserved by the driver, so that total = free + used. Because CUDA allocates memory in
units of 2 MiB, a change can differ from the allocated size by up to 2 MiB. Unlike the original, this module can be
imported without a GPU. Its functions then raise `RecordingError`.

Names and semantics are those of ``ipyexperiments/utils/mem.py`` in stas00/ipyexperiments (Apache-2.0).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from ipygpumem.core.errors import RecordingError
from ipygpumem.core.introspection import collect_garbage
from ipygpumem.core.reading import DeviceReading
from ipygpumem.core.units import MIB
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import pytorch

__all__ = [
    "GPUMemory",
    "gpu_mem_allocate_mbs",
    "gpu_mem_get_free_mbs",
    "gpu_mem_get_free_no_cache_mbs",
    "gpu_mem_get_mbs",
    "gpu_mem_get_total_mbs",
    "gpu_mem_get_used_mbs",
    "gpu_mem_get_used_no_cache_mbs",
    "gpu_mem_leave_free_mbs",
    "preload_pytorch",
]

_FLOATS_PER_MIB = MIB // 4
_COPIED_MIB = 64  # size of the host memory from which tensors are filled


class GPUMemory(NamedTuple):
    """Total, free and used memory of a device in MiB."""

    total: int
    free: int
    used: int


def _torch() -> Any:
    problem = pytorch.problem(load=True)
    if problem:
        raise RecordingError(f"this function requires a GPU: {problem}")
    return pytorch.module()


def _read_device(device: int | None) -> DeviceReading:
    torch = _torch()
    index = torch.cuda.current_device() if device is None else int(device)
    current().monitor.parse_devices([str(index)])
    if not pytorch.has_context(torch, index):
        torch.cuda.synchronize(index)
    reading = current().reading().devices.get(f"cuda:{index}")
    if reading is None or reading.free is None:
        reason = "no such device" if reading is None else reading.why
        raise RecordingError(f"the memory usage of cuda:{index} cannot be read: {reason}")
    return reading


def preload_pytorch(device_id: int = 0) -> None:
    """Initialize CUDA on a device, unless CUDA is already initialized."""
    torch = _torch()
    if not torch.cuda.is_initialized():
        torch.ones((1, 1)).to(torch.device("cuda", device_id))


def gpu_mem_get_mbs(torch_gpu_id: int | None = None) -> GPUMemory:
    """Return the memory usage of a device, by default the current device. ``used`` includes PyTorch's cache."""
    reading = _read_device(torch_gpu_id)
    total, free = reading.total or 0, reading.free or 0
    return GPUMemory(total=total // MIB, free=free // MIB, used=(total - free) // MIB)


def gpu_mem_get_total_mbs(torch_gpu_id: int | None = None) -> int:
    """Return the total memory of a device in MiB."""
    return gpu_mem_get_mbs(torch_gpu_id).total


def gpu_mem_get_free_mbs(torch_gpu_id: int | None = None) -> int:
    """Return the free memory of a device in MiB."""
    return gpu_mem_get_mbs(torch_gpu_id).free


def gpu_mem_get_used_mbs(torch_gpu_id: int | None = None) -> int:
    """Return the used memory of a device in MiB."""
    return gpu_mem_get_mbs(torch_gpu_id).used


def gpu_mem_get_free_no_cache_mbs() -> int:
    """Return the current device's free memory in MiB after garbage collection and ``torch.cuda.empty_cache()``."""
    return _memory_without_cache().free


def gpu_mem_get_used_no_cache_mbs() -> int:
    """Return the current device's used memory in MiB after garbage collection and ``torch.cuda.empty_cache()``."""
    return _memory_without_cache().used


def _memory_without_cache() -> GPUMemory:
    torch = _torch()
    collect_garbage()
    torch.cuda.empty_cache()
    return gpu_mem_get_mbs()


def gpu_mem_allocate_mbs(n: int, fatal: bool = False) -> Any:
    """Allocate a float32 tensor of ``n`` MiB on the current device. Return None if there is not enough memory.

    The tensor is filled with ones from host memory, because loading a kernel would take additional device memory.

    Raises:
        torch.OutOfMemoryError: There is not enough memory, and ``fatal`` is True.
    """
    torch = _torch()
    try:
        tensor = torch.empty(int(n) * _FLOATS_PER_MIB, device="cuda", dtype=torch.float32)
    except torch.cuda.OutOfMemoryError:
        if fatal:
            raise
        return None
    ones = torch.ones(min(tensor.numel(), _COPIED_MIB * _FLOATS_PER_MIB), device="cpu", dtype=torch.float32)
    for part in tensor.split(len(ones)) if len(ones) else ():
        part.copy_(ones[: len(part)])
    return tensor


def gpu_mem_leave_free_mbs(n: int) -> Any:
    """Allocate a tensor that leaves ``n`` MiB of the current device's memory free, and return the tensor.

    Raises:
        AssertionError: The free memory does not exceed ``n`` MiB.
    """
    available = gpu_mem_get_free_no_cache_mbs()
    if available <= n:
        raise AssertionError(f"cannot leave {n} MiB free: only {available} MiB is free")
    return gpu_mem_allocate_mbs(available - n, fatal=True)
