"""Why nvidia-smi's number is not PyTorch's: everything between them, now."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ipygpumem.core.errors import CuptiError
from ipygpumem.core.grade import grade
from ipygpumem.core.units import MIB
from ipygpumem.features.explain.cache import cache_of
from ipygpumem.features.explain.model import Waterfall, host_waterfall
from ipygpumem.features.explain.steps import Standing, device_waterfall
from ipygpumem.features.outside.cupti_records import outside_records
from ipygpumem.features.outside.libraries import ALLOCATOR
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

__all__ = ["Explanation", "explain"]

_ON_THE_CARD = {"device", "array", "static"}
_OF_POOLS = {"CuPy's pool": "CuPy", "JAX's pool": "JAX/XLA", "numba's arrays": "numba", "RMM's allocations": "RMM"}
"""A pool that counts itself, and the library by whose name CUPTI's records go."""
_TRIES = 3
_RECORDING = "a recording of yours runs, and the look would be one of its events"


@dataclass(frozen=True, slots=True, repr=False)
class Explanation:
    """The waterfalls of all devices that this process uses, or that of main memory.

    ``note``: what is to be said first, where there is no GPU or CUDA has not started.
    """

    devices: tuple[Waterfall, ...]
    note: str = ""

    def __str__(self) -> str:
        """In words, with bars."""
        from ipygpumem.features.explain.table import text_waterfalls

        return text_waterfalls(self.devices, self.note)

    def _repr_html_(self) -> str:
        from ipygpumem.features.explain.table import html_waterfalls

        return html_waterfalls(self.devices, self.note)

    def __repr__(self) -> str:
        """As `str`: an object at the end of a cell is to be read."""
        return str(self)

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {"note": self.note, "devices": [one.to_dict() for one in self.devices]}


def explain(*, device: Iterable[str | int] | None = None) -> Explanation:
    """Everything between what nvidia-smi shows and ``torch.cuda.memory_allocated()`` now, to the byte.

    Each step has its bytes, the trust in them with its reason, and what can be done about it. Nothing is collected,
    emptied or waited for. Libraries are named where CUPTI records (``GPUMem.outside = "library"``), else as far as they
    count themselves.

    Args:
        device: Names of the devices (``"cuda:0"``, 0); None for all that this process uses.

    Raises:
        DeviceError: No such device here.
    """
    session = current()
    names = None if device is None else session.monitor.parse_devices(str(one) for one in device)
    if session.monitor.find_devices() is None:
        return _without_cuda(session)
    look = _look(session)
    devices = look.reading.devices.values()
    shown = [one for one in devices if (one.context if names is None else one.name in names)]
    if not shown:
        return Explanation((), "this process uses no GPU: %gpumem processes tells who does")
    return Explanation(tuple(_device(session, look, one) for one in shown))


def _without_cuda(session: Runtime) -> Explanation:
    told = session.baseline.note if session.baseline is not None and session.host_only else ""
    problem = told or pytorch.problem(load=pytorch.module() is not None)
    if not problem:
        return Explanation((), "CUDA has not started in this process: nothing of any GPU is its own")
    from ipygpumem.features.holders.collect import holders

    reading = session.reading().host
    found = holders(host=True)
    tensors = sum(one.amount for one in found.holders if one.device == "cpu")
    fall = host_waterfall(reading, tensors, "", () if found.complete else found.notes)
    return Explanation((fall,), f"no GPU ({problem}): resident memory instead")


@dataclass(frozen=True, slots=True)
class _Look:
    """What was there at one moment, as near as can be: the books, who else, PyTorch's cache, CUPTI's records."""

    reading: Reading
    neighbours: dict[str, tuple[OtherProcess, ...]]
    caches: dict[str, Cache]
    why_no_cache: str
    owners: dict[Owner, int]
    since: float | None
    told: str


def _look(session: Runtime) -> _Look:
    reading, caches, why = _books(session)
    told = "libraries by name: %config GPUMem.outside = 'library', from then on"
    try:
        recorded = outside_records().live_by_owner()
    except CuptiError as error:
        recorded, told = None, f"libraries have no names: {error}"
    since, owners = (None, {}) if recorded is None else recorded
    if since is not None:
        told = f"libraries: what they took since {time.strftime('%H:%M:%S', time.localtime(since))}"
    return _Look(reading, other_processes_by_device(reading), caches, why, owners, since, told)


def _books(session: Runtime) -> tuple[Reading, dict[str, Cache], str]:
    """The books and the allocator's list of segments, and why that is not there."""
    reading = session.reading()
    if allocator.is_recording() and not current().active_recording.running:
        return reading, {}, _RECORDING
    caches: dict[str, Cache] = {}
    for _ in range(_TRIES):
        try:
            segments = allocator.segments()
        except Exception:
            return reading, {}, "this allocator keeps no list of segments"
        caches = {name: cache_of(segments, _index(name)) for name in reading.devices}
        if all(one.cached in {None, caches[name].total} for name, one in reading.devices.items()):
            break
        reading = session.reading()  # another thread moved memory meanwhile
    return reading, caches, ""


def _device(session: Runtime, look: _Look, reading: DeviceReading) -> Waterfall:
    baseline, since = session.baseline, look.since
    notes = [look.told if reading.context else f"{reading.name} is not used by this process"]
    here = {owner: amount for owner, amount in look.owners.items() if owner.device == _index(reading.name)}
    pools = _pools(_index(reading.name), here, shared=bool(reading.torch_why)) if reading.context else []
    return device_waterfall(
        reading,
        label=next((card.label for card in session.monitor.devices.values() if card.name == reading.name), ""),
        baseline=baseline,
        # records that began before them have their names
        kernels=since is None or baseline is None or since >= baseline.reading.time,
        recorded=since is not None,
        neighbours=look.neighbours.get(reading.name, ()),
        standing=[*_recorded(here), *pools],
        cache=look.caches.get(reading.name),
        why_no_cache=look.why_no_cache,
        notes=notes,
    )


def _recorded(owners: dict[Owner, int]) -> list[Standing]:
    sums: dict[tuple[str, bool], int] = {}
    for owner, amount in owners.items():
        managed = owner.memory == "managed"
        if owner.library != ALLOCATOR and (managed or owner.memory in _ON_THE_CARD):
            key = owner.library, managed
            sums[key] = sums.get(key, 0) + amount
    trust = grade("exact", "CUPTI's record of every allocation")
    return [Standing(name, amount, trust, managed) for (name, managed), amount in sums.items()]


def _pools(index: int, owners: dict[Owner, int], *, shared: bool) -> list[Standing]:
    """What pools count themselves, beyond what records tell of the same library."""
    found = []
    for pool in pool_readings([index]):
        amount = pool.used if pool.held is None else pool.held
        if not amount or (pool.name == STREAMS and shared):
            continue
        if pool.name in {STREAMS, GRAPHS}:
            known = sum(size for owner, size in owners.items() if owner.pooled) if pool.name == STREAMS else 0
            name = f"{pool.name}, not in use" if known else pool.name
        else:
            library = _OF_POOLS.get(pool.name, "")
            known = sum(size for owner, size in owners.items() if owner.library == library and library)
            name = f"{pool.name}, from before the records" if known else pool.name
        if amount - known >= MIB // 20:
            found.append(Standing(name, amount - known, grade("exact", pool.source)))
    return found


def _index(name: str) -> int:
    return int(name.rpartition(":")[2])
