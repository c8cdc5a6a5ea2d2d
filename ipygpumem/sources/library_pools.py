"""What other libraries of this process count themselves: read where the library is imported and at work already.

Nothing is imported, nothing is started, no context is made. Each answers for itself, and one that fails has no answer.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.sources import cuda

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["GRAPHS", "STREAMS", "PoolReading", "pool_readings"]

STREAMS = "CUDA's default memory pool"
GRAPHS = "memory of CUDA graphs"


@dataclass(frozen=True, slots=True)
class PoolReading:
    """One pool on one device at one instant, in bytes; None where it does not count that.

    ``held``: taken from the card. ``used``: given to the program. ``peak``: the highest of ``held``, or where that is
    not counted of ``used``, since the library began. ``source``: what was asked.
    """

    name: str
    device: int
    held: int | None
    used: int | None
    peak: int | None
    source: str


def pool_readings(devices: Iterable[int]) -> list[PoolReading]:
    """Every pool that can be read on these devices, by index; each has to have a context of this process."""
    found: list[PoolReading] = []
    indexes = list(devices)
    for read in (_streams, _graphs, _cupy, _jax, _tensorflow, _rmm, _numba):
        try:
            found += read(indexes)
        except Exception:  # noqa: S112 (each library's own affair; the others are still to be asked)
            continue
    return found


def _streams(devices: list[int]) -> Iterator[PoolReading]:
    return _cuda(devices, STREAMS, cuda.stream_pool, "cudaMemPoolGetAttribute")


def _graphs(devices: list[int]) -> Iterator[PoolReading]:
    return _cuda(devices, GRAPHS, cuda.graph_pool, "cudaDeviceGetGraphMemAttribute")


def _cuda(
    devices: list[int], name: str, ask: Callable[[int], cuda.CudaPool | None], source: str
) -> Iterator[PoolReading]:
    for device in devices:
        pool = ask(device)
        if pool is not None:
            yield PoolReading(name, device, pool.held, pool.used, pool.held_high, source)


def _cupy(devices: list[int]) -> Iterator[PoolReading]:
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return
    pool = cupy.get_default_memory_pool()
    for device in devices:
        with cupy.cuda.Device(device):
            held, used = int(pool.total_bytes()), int(pool.used_bytes())
        yield PoolReading("CuPy's pool", device, held, used, None, "cupy.get_default_memory_pool()")


def _jax(devices: list[int]) -> Iterator[PoolReading]:
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    if bridge is None or not bridge.backends_are_initialized():  # the question itself would start it
        return
    for one in sys.modules["jax"].local_devices():
        stats = one.memory_stats() if one.platform == "gpu" else None
        if stats and one.local_hardware_id in devices:
            held, peak = stats.get("pool_bytes"), stats.get("peak_pool_bytes")
            used = stats.get("bytes_in_use")
            peak = stats.get("peak_bytes_in_use") if held is None else peak
            yield PoolReading("JAX's pool", one.local_hardware_id, held, used, peak, "jax.Device.memory_stats()")


def _tensorflow(devices: list[int]) -> Iterator[PoolReading]:
    eager: Any = sys.modules.get("tensorflow.python.eager.context")
    if eager is None or not getattr(getattr(eager, "_context", None), "_initialized", False):
        return
    for device in devices:
        info = sys.modules["tensorflow"].config.experimental.get_memory_info(f"GPU:{device}")
        source = "tf.config.experimental.get_memory_info()"
        yield PoolReading("TensorFlow's tensors", device, None, int(info["current"]), int(info["peak"]), source)


def _rmm(devices: list[int]) -> Iterator[PoolReading]:
    rmm = sys.modules.get("rmm")
    if rmm is None:
        return
    for device in devices:
        resource: Any = rmm.mr.get_per_device_resource(device)
        while resource is not None and not hasattr(resource, "allocation_counts"):
            resource = getattr(resource, "upstream_mr", None)
        if resource is not None:
            counts = resource.allocation_counts
            facts = counts if isinstance(counts, dict) else vars(counts)  # a dict before 24.06
            used, peak = int(facts["current_bytes"]), int(facts["peak_bytes"])
            yield PoolReading("RMM's allocations", device, None, used, peak, "rmm's statistics")


def _numba(devices: list[int]) -> Iterator[PoolReading]:
    driver: Any = sys.modules.get("numba.cuda.cudadrv.driver")
    if driver is None or not driver.driver.is_initialized:
        return
    for one in sys.modules["numba.cuda.cudadrv.devices"].gpus.lst:
        context = getattr(one, "primary_context", None)
        if context is not None and one.id in devices:
            used = sum(int(block.size) for block in list(context.memory_manager.allocations.values()))
            yield PoolReading("numba's arrays", one.id, None, used, None, "numba's list of allocations")
