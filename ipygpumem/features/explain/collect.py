"""Collect the data for waterfall charts of the current memory usage."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass

from ipygpumem.core.device_names import split_devices
from ipygpumem.core.errors import CuptiError
from ipygpumem.core.introspection import attempt
from ipygpumem.core.reading import DeviceReading, Reading, make_accuracy
from ipygpumem.core.serialization import Serializable
from ipygpumem.core.units import VISIBLE
from ipygpumem.features.explain.model import CachedMemory, DeviceExplanation, cached_memory, host_waterfall
from ipygpumem.features.explain.steps import NamedMemory, device_waterfall
from ipygpumem.features.explain.table import html_waterfalls, text_waterfalls
from ipygpumem.features.outside.allocation_totals import AllocationOwner
from ipygpumem.features.outside.cupti_recorder import cupti_recorder
from ipygpumem.features.outside.model import ALLOCATOR, DEVICE_MEMORY
from ipygpumem.features.processes.collect import other_processes_by_device
from ipygpumem.measurement.runtime import Runtime, current
from ipygpumem.sources import allocator, pytorch
from ipygpumem.sources.library_pools import GRAPHS, STREAMS, pool_readings

_LIBRARIES = {"CuPy's pool": "CuPy", "JAX's pool": "JAX/XLA", "numba's arrays": "numba", "RMM's allocations": "RMM"}
_TRIES = 3
_NO_DEVICE = "this process uses no GPU; %gpumem processes lists the processes that use a GPU"


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Serializable):
    """Explanation of the memory usage, displayed as tables with bars.

    ``devices`` contains an item for each selected device, by default for each device that this process uses. Without a
    GPU, it contains one item for host memory.
    """

    devices: tuple[DeviceExplanation, ...]
    note: str = ""

    def __repr__(self) -> str:
        return text_waterfalls(self.devices, self.note)

    def _repr_html_(self) -> str:
        return html_waterfalls(self.devices, self.note)


def explain(*, device: Iterable[str | int] | None = None) -> Explanation:
    """Explain why nvidia-smi shows more memory than ``torch.cuda.memory_allocated()``.

    Each step of the explanation consists of a size, its accuracy, and advice on reducing the size. No memory is freed,
    and no stream is synchronized. Libraries are listed by name if CUPTI records allocations (``GPUMem.outside =
    "library"``). Otherwise, only libraries that report their own memory usage are listed.

    Args:
        device: Names or indices of devices, such as ``"cuda:0"`` or 0. By default, all devices that this process uses.

    Raises:
        DeviceError: The name of a device is invalid, or the device does not exist.
    """
    runtime = current()
    names = None if device is None else runtime.monitor.parse_devices(split_devices(device, "device"))
    if runtime.monitor.find_devices() is None:
        return _without_cuda(runtime)
    reading, caches, cache_problem = _read_caches(runtime)
    processes, baseline = other_processes_by_device(reading), runtime.baseline
    since, owners, note = _read_records()
    labels = {f"cuda:{index}": device.label for index, device in runtime.monitor.devices.items()}
    waterfalls = [
        device_waterfall(
            counters,
            label=labels.get(name, ""),
            baseline=baseline,
            # if recording started before the first kernels were loaded, the records include their libraries
            kernels=since is None or baseline is None or since >= baseline.reading.time,
            recorded=since is not None,
            processes=processes.get(name, ()),
            named=_named_memory(counters, owners),
            cache=caches.get(name),
            cache_problem=cache_problem,
            notes=[note if counters.context else f"{name} is not used by this process"],
        )
        for name, counters in reading.devices.items()
        if (counters.context if names is None else name in names)
    ]
    return Explanation(tuple(waterfalls), "" if waterfalls else _NO_DEVICE)


def _without_cuda(runtime: Runtime) -> Explanation:
    baseline_note = runtime.baseline.note if runtime.baseline is not None and runtime.host_only else ""
    problem = baseline_note or pytorch.problem(load=pytorch.module() is not None)
    if not problem:
        return Explanation((), "this process uses no GPU memory because it has not initialized CUDA")
    from ipygpumem.features.holders.collect import holders

    reading = runtime.reading().host
    cpu = holders(host=True)
    tensors = sum(holder.amount for holder in cpu.holders if holder.device == "cpu")
    waterfall = host_waterfall(reading, tensors, () if cpu.complete else cpu.notes)
    return Explanation((waterfall,), f"no GPU ({problem}); host memory is shown instead")


def _read_records() -> tuple[float | None, dict[AllocationOwner, int], str]:
    try:
        records = cupti_recorder().live_by_owner()
    except CuptiError as error:
        return None, {}, f"memory cannot be listed by library: {error}"
    if records is None:
        return None, {}, "to list later allocations by library, run %config GPUMem.outside = 'library'"
    start = time.strftime("%H:%M:%S", time.localtime(records[0]))
    return *records, f"memory allocated after {start} is listed by library"


def _read_caches(runtime: Runtime) -> tuple[Reading, dict[str, CachedMemory], str]:
    """Return a reading, the cached memory by device name, and the reason why the cache could not be read, or ``""``."""
    reading = runtime.reading()
    if allocator.is_recording() and not runtime.active_recording.running:
        return reading, {}, "the cache was not examined because reading it would add an event to your recording"
    caches: dict[str, CachedMemory] = {}
    for _ in range(_TRIES):
        segments = attempt(allocator.segments)
        if segments is None:
            return (
                reading,
                {},
                "the allocator's segments cannot be listed; not all allocator backends support this",
            )
        caches = {name: cached_memory(segments, _index(name)) for name in reading.devices}
        if all(device.cached in {None, caches[name].total} for name, device in reading.devices.items()):
            break
        reading = runtime.reading()  # another thread changed the cache
    return reading, caches, ""


def _named_memory(reading: DeviceReading, owners: dict[AllocationOwner, int]) -> list[NamedMemory]:
    index = _index(reading.name)
    owners = {owner: nbytes for owner, nbytes in owners.items() if owner.device == index}
    pools = _pools(index, owners, shared=bool(reading.torch_why)) if reading.context else []
    return [*_recorded(owners), *pools]


def _recorded(owners: dict[AllocationOwner, int]) -> list[NamedMemory]:
    sums: dict[tuple[str, bool], int] = {}
    for owner, nbytes in owners.items():
        managed = owner.memory == "managed"
        if owner.library != ALLOCATOR and (managed or owner.memory in DEVICE_MEMORY):
            key = owner.library, managed
            sums[key] = sums.get(key, 0) + nbytes
    accuracy = make_accuracy("exact", "CUPTI's records of allocations since recording started")
    return [NamedMemory(name, nbytes, accuracy, managed) for (name, managed), nbytes in sums.items()]


def _pools(index: int, owners: dict[AllocationOwner, int], *, shared: bool) -> list[NamedMemory]:
    pools = []
    for pool in pool_readings([index]):
        nbytes = pool.used if pool.reserved is None else pool.reserved
        if not nbytes or (pool.name == STREAMS and shared):
            continue
        if pool.name in {STREAMS, GRAPHS}:
            recorded_bytes = (
                sum(nbytes for owner, nbytes in owners.items() if owner.pooled) if pool.name == STREAMS else 0
            )
            name = f"{pool.name}, unused" if recorded_bytes else pool.name
        else:
            library = _LIBRARIES.get(pool.name)
            recorded_bytes = sum(nbytes for owner, nbytes in owners.items() if owner.library == library)
            name = f"{pool.name}, allocated before recording began" if recorded_bytes else pool.name
        if nbytes - recorded_bytes >= VISIBLE:
            pools.append(NamedMemory(name, nbytes - recorded_bytes, make_accuracy("exact", pool.source)))
    return pools


def _index(name: str) -> int:
    return int(name.rpartition(":")[2])
