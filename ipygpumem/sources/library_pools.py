"""Statistics of the memory pools of libraries such as CuPy and JAX, if they are in use and can be read."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from ipygpumem.sources import cuda

STREAMS = "CUDA's default memory pool"
GRAPHS = "CUDA's graph memory pool"


@dataclass(frozen=True, slots=True)
class PoolReading:
    """Statistics of one memory pool on one device, in bytes. Values that the pool does not count are None.

    Attributes:
        name: Name of the pool, such as ``CuPy's pool``.
        device: Index of the device.
        reserved: Memory that the pool has reserved from CUDA.
        used: Part of the reserved memory that is in use.
        peak: Highest value so far of ``reserved``, or of ``used`` if ``reserved`` is None.
        source: Function or object that returned the statistics.
    """

    name: str
    device: int
    reserved: int | None
    used: int | None
    peak: int | None
    source: str


def pool_readings(devices: Iterable[int]) -> list[PoolReading]:
    """Each device must have a CUDA context."""
    readings: list[PoolReading] = []
    indices = list(devices)
    for read in (_cuda, _cupy, _jax, _tensorflow, _rmm, _numba):
        with contextlib.suppress(Exception):  # continue with the other libraries
            readings += read(indices)
    return readings


def _cuda(indices: list[int]) -> Iterator[PoolReading]:
    kinds: tuple[tuple[str, cuda.PoolKind, str], ...] = (
        (STREAMS, "stream", "cudaMemPoolGetAttribute"),
        (GRAPHS, "graph", "cudaDeviceGetGraphMemAttribute"),
    )
    for name, kind, source in kinds:
        for index in indices:
            pool = cuda.pool(index, kind)
            if pool is not None:
                yield PoolReading(name, index, *pool, source)


def _cupy(indices: list[int]) -> Iterator[PoolReading]:
    cupy = sys.modules.get("cupy")
    if cupy is None:
        return
    pool = cupy.get_default_memory_pool()
    for index in indices:
        with cupy.cuda.Device(index):
            reserved, used = int(pool.total_bytes()), int(pool.used_bytes())
        yield PoolReading("CuPy's pool", index, reserved, used, None, "cupy.get_default_memory_pool()")


def _jax(indices: list[int]) -> Iterator[PoolReading]:
    bridge: Any = sys.modules.get("jax._src.xla_bridge")
    if bridge is None or not bridge.backends_are_initialized():  # jax.local_devices() would initialize the backends
        return
    for device in sys.modules["jax"].local_devices():
        stats = device.memory_stats() if device.platform == "gpu" else None
        if stats and device.local_hardware_id in indices:
            reserved, used = stats.get("pool_bytes"), stats.get("bytes_in_use")
            peak = stats.get("peak_bytes_in_use" if reserved is None else "peak_pool_bytes")
            yield PoolReading("JAX's pool", device.local_hardware_id, reserved, used, peak, "jax.Device.memory_stats()")


def _tensorflow(indices: list[int]) -> Iterator[PoolReading]:
    eager: Any = sys.modules.get("tensorflow.python.eager.context")
    if eager is None or not getattr(getattr(eager, "_context", None), "_initialized", False):
        return
    for index in indices:
        info = sys.modules["tensorflow"].config.experimental.get_memory_info(f"GPU:{index}")
        source = "tf.config.experimental.get_memory_info()"
        yield PoolReading("TensorFlow's tensors", index, None, int(info["current"]), int(info["peak"]), source)


def _rmm(indices: list[int]) -> Iterator[PoolReading]:
    rmm = sys.modules.get("rmm")
    if rmm is None:
        return
    for index in indices:
        resource: Any = rmm.mr.get_per_device_resource(index)
        while resource is not None and not hasattr(resource, "allocation_counts"):
            resource = getattr(resource, "upstream_mr", None)
        if resource is not None:
            counts = resource.allocation_counts
            values = counts if isinstance(counts, dict) else vars(counts)  # a dict before RMM 24.06
            used, peak = int(values["current_bytes"]), int(values["peak_bytes"])
            yield PoolReading("RMM's allocations", index, None, used, peak, "RMM's statistics")


def _numba(indices: list[int]) -> Iterator[PoolReading]:
    driver: Any = sys.modules.get("numba.cuda.cudadrv.driver")
    if driver is None or not driver.driver.is_initialized:
        return
    for gpu in sys.modules["numba.cuda.cudadrv.devices"].gpus.lst:
        context = getattr(gpu, "primary_context", None)
        if context is not None and gpu.id in indices:
            used = sum(int(block.size) for block in list(context.memory_manager.allocations.values()))
            yield PoolReading("numba's arrays", gpu.id, None, used, None, "numba's list of allocations")
