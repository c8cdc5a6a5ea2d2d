"""Drop-in for ``ipyexperiments.utils.mem``: the same names, units and tolerance, on PyTorch's current device.

All figures are whole MiB, rounded down, of the whole card as NVML (or, without NVML, CUDA) tells it; ``used`` includes
what the driver reserves, so that total = free + used. CUDA gives memory in steps of 2 MiB: that is the tolerance of
each figure. Unlike its namesake this module can be imported without a GPU; its functions then raise `RecordingError`.

Names and meaning after stas00/ipyexperiments (Apache-2.0), ``ipyexperiments/utils/mem.py``.
"""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any, NamedTuple

from ipygpumem.core.errors import RecordingError
from ipygpumem.core.units import MIB
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import pytorch

if TYPE_CHECKING:
    from ipygpumem.core.reading import DeviceReading

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


class GPUMemory(NamedTuple):
    """A card in whole MiB."""

    total: int
    free: int
    used: int


def _torch() -> Any:
    why = pytorch.problem(load=True)
    if why:
        raise RecordingError(f"these functions need a GPU: {why}")
    return pytorch.module()


def _card(device: int | None) -> DeviceReading:
    torch = _torch()
    index = torch.cuda.current_device() if device is None else int(device)
    current().monitor.parse_devices([str(index)])
    if not pytorch.has_context(torch, index):
        pytorch.start(torch, index)
    reading = current().reading().devices.get(f"cuda:{index}")
    if reading is None or reading.free is None:
        why = "no such device" if reading is None else reading.why
        raise RecordingError(f"the memory of cuda:{index} cannot be read: {why}")
    return reading


def preload_pytorch(device_id: int = 0) -> None:
    """Start CUDA on the device, if it has not started yet."""
    torch = _torch()
    if not torch.cuda.is_initialized():
        torch.ones((1, 1)).to(torch.device("cuda", device_id))


def gpu_mem_get_mbs(torch_gpu_id: int | None = None) -> GPUMemory:
    """Total, free and used MiB of the current or the given device."""
    card = _card(torch_gpu_id)
    total, free = card.total or 0, card.free or 0
    return GPUMemory(total=total // MIB, free=free // MIB, used=(total - free) // MIB)


def gpu_mem_get_total_mbs(torch_gpu_id: int | None = None) -> int:
    """Total MiB."""
    return gpu_mem_get_mbs(torch_gpu_id).total


def gpu_mem_get_free_mbs(torch_gpu_id: int | None = None) -> int:
    """Free MiB; what PyTorch caches counts as used."""
    return gpu_mem_get_mbs(torch_gpu_id).free


def gpu_mem_get_used_mbs(torch_gpu_id: int | None = None) -> int:
    """Used MiB, PyTorch's cache included."""
    return gpu_mem_get_mbs(torch_gpu_id).used


def gpu_mem_get_free_no_cache_mbs() -> int:
    """Free MiB after a garbage collection and after PyTorch gave its cache back."""
    _give_back()
    return gpu_mem_get_free_mbs()


def gpu_mem_get_used_no_cache_mbs() -> int:
    """Used MiB after a garbage collection and after PyTorch gave its cache back."""
    _give_back()
    return gpu_mem_get_used_mbs()


def _give_back() -> None:
    torch = _torch()
    gc.collect()
    torch.cuda.empty_cache()


def gpu_mem_allocate_mbs(n: int, fatal: bool = False) -> Any:
    """A float32 tensor of ``n`` MiB on the current device: memory is held as long as it lives.

    Returns:
        The tensor, or None where there was no room.

    Raises:
        torch.OutOfMemoryError: No room, and ``fatal``.
    """
    torch = _torch()
    try:
        return torch.ones(int(n) * _FLOATS_PER_MIB, device="cuda", dtype=torch.float32)
    except torch.cuda.OutOfMemoryError:
        if fatal:
            raise
        return None


def gpu_mem_leave_free_mbs(n: int) -> Any:
    """A tensor that leaves ``n`` MiB of the current device free while it lives.

    Raises:
        AssertionError: There is not more than that free to begin with.
    """
    available = gpu_mem_get_free_no_cache_mbs()
    if available <= n:
        raise AssertionError(f"already less available memory than requested: {available} MiB")
    return gpu_mem_allocate_mbs(available - n, fatal=True)
