"""Explanation of the current difference between memory usage in nvidia-smi and in PyTorch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipygpumem.core.errors import CuptiError
from ipygpumem.core.grade import grade
from ipygpumem.core.serialization import PlainData
from ipygpumem.core.units import VISIBLE
from ipygpumem.features.explain.cache import device_cache
from ipygpumem.features.explain.model import Waterfall, host_waterfall
from ipygpumem.features.explain.steps import NamedMemory, device_waterfall
from ipygpumem.features.explain.table import html_waterfalls, text_waterfalls
from ipygpumem.features.outside.cupti_records import outside_records
from ipygpumem.features.outside.libraries import ALLOCATOR
from ipygpumem.features.outside.model import DEVICE_MEMORY
from ipygpumem.features.processes.collect import other_processes_by_device
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import allocator, pytorch
from ipygpumem.sources.library_pools import GRAPHS, STREAMS, pool_readings

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.core.other_process import OtherProcess
    from ipygpumem.core.reading import DeviceReading, Reading
    from ipygpumem.features.explain.cache import Cache
    from ipygpumem.features.outside.allocation_totals import Owner
    from ipygpumem.measurement.runtime import Runtime

_LIBRARY_OF_POOL = {
    "CuPy's pool": "CuPy",
    "JAX's pool": "JAX/XLA",
    "numba's arrays": "numba",
    "RMM's allocations": "RMM",
}
_TRIES = 3
_NO_DEVICE = "this process uses no GPU; %gpumem processes lists the processes that do"


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(PlainData):
    """Waterfalls of the devices used by this process, or of main memory, displayed as tables with bars.

    ``note`` is displayed first and explains why no device is listed.
    """

    devices: tuple[Waterfall, ...]
    note: str = ""

    def __repr__(self) -> str:
        """Return the waterfalls as text."""
        return text_waterfalls(self.devices, self.note)

    def _repr_html_(self) -> str:
        return html_waterfalls(self.devices, self.note)


def explain(*, device: Iterable[str | int] | None = None) -> Explanation:
    """Explain the difference between memory usage in nvidia-smi and ``torch.cuda.memory_allocated()``.

    Each step contains its size, its accuracy with the reason, and advice on reducing it. No memory is freed, and no
    stream is synchronized. Libraries are listed by name if CUPTI records allocations (``GPUMem.outside = "library"``);
    otherwise, only libraries with their own counters are listed.

    Args:
        device: Names or indices of the devices (``"cuda:0"``, 0), or None for all devices used by this process.

    Raises:
        DeviceError: If a device does not exist.
    """
    runtime = current()
    names = None if device is None else runtime.monitor.parse_devices(str(name) for name in device)
    if runtime.monitor.find_devices() is None:
        return _without_cuda(runtime)
    reading, state = _read_state(runtime)
    devices = [
        _device(runtime, state, device)
        for device in reading.devices.values()
        if (device.context if names is None else device.name in names)
    ]
    return Explanation(tuple(devices), "" if devices else _NO_DEVICE)


def _without_cuda(runtime: Runtime) -> Explanation:
    baseline_note = runtime.baseline.note if runtime.baseline is not None and runtime.host_only else ""
    problem = baseline_note or pytorch.problem(load=pytorch.module() is not None)
    if not problem:
        return Explanation((), "CUDA is not initialized in this process, so it uses no GPU memory")
    from ipygpumem.features.holders.collect import holders

    reading = runtime.reading().host
    cpu = holders(host=True)
    tensors = sum(holder.amount for holder in cpu.holders if holder.device == "cpu")
    waterfall = host_waterfall(reading, tensors, () if cpu.complete else cpu.notes)
    return Explanation((waterfall,), f"no GPU ({problem}); this is main memory")


@dataclass(frozen=True, slots=True)
class _State:
    """Values read at nearly the same time. ``since`` is the Unix timestamp when CUPTI began recording, or None."""

    processes: dict[str, tuple[OtherProcess, ...]]
    caches: dict[str, Cache]
    cache_problem: str
    owners: dict[Owner, int]
    since: float | None
    note: str


def _read_state(runtime: Runtime) -> tuple[Reading, _State]:
    reading, caches, cache_problem = _read_caches(runtime)
    note = "to identify libraries in later allocations, set %config GPUMem.outside = 'library'"
    records = None
    try:
        records = outside_records().live_by_owner()
    except CuptiError as error:
        note = f"libraries cannot be identified: {error}"
    since, owners = records or (None, {})
    if since is not None:
        note = f"libraries: memory allocated since {time.strftime('%H:%M:%S', time.localtime(since))}"
    return reading, _State(other_processes_by_device(reading), caches, cache_problem, owners, since, note)


def _read_caches(runtime: Runtime) -> tuple[Reading, dict[str, Cache], str]:
    """Return a tuple ``(reading, caches, problem)``; ``problem`` is the reason why the caches are unknown."""
    reading = runtime.reading()
    if allocator.is_recording() and not runtime.active_recording.running:
        return reading, {}, "not examined, because this would add an event to your recording"
    caches: dict[str, Cache] = {}
    for _ in range(_TRIES):
        try:
            segments = allocator.segments()
        except Exception:
            return reading, {}, "this allocator backend does not list segments"
        caches = {name: device_cache(segments, _index(name)) for name in reading.devices}
        if all(device.cached in {None, caches[name].total} for name, device in reading.devices.items()):
            break
        reading = runtime.reading()  # another thread changed the cache
    return reading, caches, ""


def _device(runtime: Runtime, state: _State, reading: DeviceReading) -> Waterfall:
    baseline, since, index = runtime.baseline, state.since, _index(reading.name)
    owners = {owner: nbytes for owner, nbytes in state.owners.items() if owner.device == index}
    named = _recorded(owners)
    if reading.context:
        named += _pools(index, owners, shared=bool(reading.torch_why))
    return device_waterfall(
        reading,
        label=runtime.monitor.devices[index].label if index in runtime.monitor.devices else "",
        baseline=baseline,
        # if recording began before the first kernels were loaded, the records include their libraries
        kernels=since is None or baseline is None or since >= baseline.reading.time,
        recorded=since is not None,
        processes=state.processes.get(reading.name, ()),
        named=named,
        cache=state.caches.get(reading.name),
        cache_problem=state.cache_problem,
        notes=[state.note if reading.context else f"{reading.name} is not used by this process"],
    )


def _recorded(owners: dict[Owner, int]) -> list[NamedMemory]:
    sums: dict[tuple[str, bool], int] = {}
    for owner, nbytes in owners.items():
        managed = owner.memory == "managed"
        if owner.library != ALLOCATOR and (managed or owner.memory in DEVICE_MEMORY):
            key = owner.library, managed
            sums[key] = sums.get(key, 0) + nbytes
    accuracy = grade("exact", "CUPTI's records of all allocations")
    return [NamedMemory(name, nbytes, accuracy, managed) for (name, managed), nbytes in sums.items()]


def _pools(index: int, owners: dict[Owner, int], *, shared: bool) -> list[NamedMemory]:
    """Return memory in pools that is not included in the records of their libraries."""
    pools = []
    for pool in pool_readings([index]):
        nbytes = pool.used if pool.held is None else pool.held
        if not nbytes or (pool.name == STREAMS and shared):
            continue
        if pool.name in {STREAMS, GRAPHS}:
            recorded = sum(nbytes for owner, nbytes in owners.items() if owner.pooled) if pool.name == STREAMS else 0
            name = f"{pool.name}, unused" if recorded else pool.name
        else:
            library = _LIBRARY_OF_POOL.get(pool.name)
            recorded = sum(nbytes for owner, nbytes in owners.items() if owner.library == library)
            name = f"{pool.name}, before recording" if recorded else pool.name
        if nbytes - recorded >= VISIBLE:
            pools.append(NamedMemory(name, nbytes - recorded, grade("exact", pool.source)))
    return pools


def _index(name: str) -> int:
    return int(name.rpartition(":")[2])
