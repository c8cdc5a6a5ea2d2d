"""Find the holders of GPU memory, and match their storages to the blocks of PyTorch's allocator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

from ipygpumem.core.device_names import split_devices
from ipygpumem.core.errors import OptionError, first_line
from ipygpumem.core.introspection import pause_gc, user_frame
from ipygpumem.core.reading import Baseline
from ipygpumem.core.report import Report
from ipygpumem.core.units import MIB, size
from ipygpumem.features.holders import model
from ipygpumem.features.holders.reference_graph import SearchRoot, module_roots, naming_functions
from ipygpumem.features.holders.search import SearchResult, search_holders
from ipygpumem.measurement.runtime import Runtime, current
from ipygpumem.sources import allocator, pytorch
from ipygpumem.sources.allocator import AllocatedBlock, AllocatedBlocks, allocated_blocks
from ipygpumem.sources.storages import StorageLocation

_HOST = "cpu"
_CELL_LIMIT = 5.0  # seconds
_UNREACHED = "not reachable from Python: autograd graphs, C++ objects"
_NOT_FOUND = "not found within the limits of the search"
_PRIVATE = "private pools, such as those of CUDA graphs"
_NEW = "allocated by other threads during the search"
_WORKSPACE = "cuBLAS workspace from the preload"
_NOT_SEARCHED = "less than 1%, not searched: use --all"


def holders(
    roots: Sequence[SearchRoot] | None = None,
    *,
    device: str | int | Iterable[str | int] | None = None,
    host: bool | None = None,
    since: model.StorageBaseline | None = None,
    limit: float = 10.0,
    label: Callable[[str, int, str], str] | None = None,
    everywhere: bool = False,
) -> model.Holders:
    """Find the variables and other objects that keep GPU memory allocated. Each storage is counted once.

    The search runs no user code and does not collect garbage, copy tensors or synchronize streams.

    Args:
        roots: Objects at which the search for names starts. By default, these are the notebook's variables, outputs and
            tracebacks if the extension is loaded, and otherwise the variables of ``__main__`` and the last exception.
            Imported modules and running threads are always searched.
        device: One or several devices, such as ``"cuda:0"``, ``[0, 1]``, or ``"cpu"`` for host memory. The default is
            all GPUs.
        host: Whether to include tensors in host memory; ignored if ``device`` is given. By default, they are included
            only if there is no GPU.
        since: Baseline of storages. If given, only storages that did not exist at the baseline are reported.
        limit: Time limit of the search in seconds. If it is reached, the result contains the names found so far.
        label: Function that formats a stack frame, given the file name, the line number and the function name. By
            default, frames are formatted as in the notebook.
        everywhere: Whether to search all objects in Python's memory, which takes longer. By default, these are searched
            only if more than 1% of the memory is not reachable from variables, outputs, tracebacks, running functions
            and the user's modules, or if this share is unknown, as for host memory.

    Returns:
        The holders, largest first, with sizes in bytes as rounded by PyTorch's allocator. Without ``since``, their
        sizes on each GPU and the memory for which no Python object was found add up to
        ``torch.cuda.memory_allocated()``.

    Raises:
        OptionError: An argument is invalid.
    """
    options: Any = {"device": device, "host": host, "since": since, "limit": limit, "label": label}
    return find_holders(current(), roots, **options, everywhere=everywhere, keeps_addresses=False)[0]


@pause_gc()
def find_holders(
    runtime: Runtime,
    roots: Sequence[SearchRoot] | None = None,
    *,
    device: Any = None,
    host: bool | None = None,
    since: model.StorageBaseline | None = None,
    limit: float = 10.0,
    label: Callable[[str, int, str], str] | None = None,
    everywhere: bool = False,
    keeps_addresses: bool = True,
) -> tuple[model.Holders, model.StorageBaseline]:
    """Return the result of `holders`, and a baseline of all existing storages for a later call.

    The baseline is empty if ``keeps_addresses`` is false. Other arguments are those of `holders`.
    """
    _check(roots, since, limit)
    device_names = None if device is None else _device_names(device, runtime)
    torch, is_started = pytorch.module(), pytorch.initialized_torch() is not None
    if torch is None:
        return model.Holders((), notes=("there are no tensors because torch is not imported",)), model.StorageBaseline()
    if host is None:
        host = not is_started and pytorch.problem(load=True) is not None

    @cache
    def is_wanted(name: str) -> bool:
        return name in device_names if device_names is not None else name.startswith("cuda") or (host and name == _HOST)

    if roots is None:
        roots = naming_functions().roots()
    counts = allocator.allocation_counts() if is_started else None
    before = allocated_blocks() if is_started else None
    unnamed_share = None  # the total memory is unknown in host memory, and if the allocator does not list its blocks
    if before is not None and not everywhere and not is_wanted(_HOST):
        workspace = 0 if runtime.baseline is None else runtime.baseline.workspace
        unnamed_share = partial(before.fraction_outside, is_wanted=is_wanted, excluded_size=workspace)
    roots = [*roots, *module_roots(roots)]
    options: Any = {"limit": limit, "unnamed_share": unnamed_share, "keeps_addresses": keeps_addresses}
    search = search_holders(roots, torch, is_wanted, **options)
    after = before
    if is_started and (counts is None or counts != allocator.allocation_counts()):
        after = allocated_blocks()
    assignment = _BlockAssignment(search, before, after, since, label or naming_functions().label)
    devices = assignment.devices(torch if is_started else None, is_wanted)
    totals = tuple(assignment.total(name, runtime.baseline) for name in devices)  # may add notes
    results = assignment.holders(), totals, tuple(assignment.notes)
    result = model.Holders(*results, search.complete, search.objects, search.seconds)
    return result, model.StorageBaseline.of(search.references, after) if keeps_addresses else model.StorageBaseline()


def new_holders(report: Report, baseline: model.StorageBaseline | None) -> model.Holders | None:
    """Return the holders of the memory that a cell added.

    Return None if there is no baseline, or if the cell added less than 1 MiB on each device.
    """
    grown_devices = [name for name, device in report.devices.items() if (device.held or 0) >= MIB]
    if baseline is None or not grown_devices:
        return None
    return replace(holders(device=grown_devices, since=baseline, limit=_CELL_LIMIT), since="this cell began")


def _check(roots: Any, since: Any, limit: Any) -> None:
    # passing a dict of variables is the most likely mistake: it is a sequence of its keys
    if roots is not None and not (
        isinstance(roots, (list, tuple)) and all(isinstance(root, SearchRoot) for root in roots)
    ):
        raise OptionError(f"roots must be a list of SearchRoot objects or None, but got {type(roots).__name__}")
    if since is not None and not isinstance(since, model.StorageBaseline):
        raise OptionError(f"since must be a StorageBaseline or None, but got {type(since).__name__}")
    if not isinstance(limit, (int, float)) or not limit >= 0:
        raise OptionError(f"limit must be a nonnegative number of seconds, but got {limit!r}")


def _device_names(device: Any, runtime: Runtime) -> tuple[str, ...]:
    texts = [text.strip() for text in split_devices(device, "device")]
    names = runtime.monitor.parse_devices(text for text in texts if text != _HOST)
    return (*names, _HOST) if _HOST in texts else names


class _BlockAssignment:
    """Assignment of the storages found by a search to the allocator's blocks before and after the search."""

    def __init__(
        self,
        search: SearchResult,
        before: AllocatedBlocks | None,
        after: AllocatedBlocks | None,
        since: model.StorageBaseline | None,
        label: Callable[[str, int, str], str],
    ) -> None:
        self.notes = search.notes
        self._unreached_label = _NOT_SEARCHED if search.unsearched is None else _UNREACHED
        if not search.complete:
            self._unreached_label = _NOT_FOUND
        self._before, self._after = before, after
        self._since, self._label = since, label
        self._assigned: set[tuple[str, int]] = set()
        self._storages: list[model.NamedStorage] = []
        foreign = 0
        self._unsearched = {block[:2] for location in search.unsearched or () if (block := self._block(location))}
        for (device, address), (block, group) in self._by_block(search.storages).items():
            is_whole = block is not None and block.size == group[0].info.amount and not block.frames
            if since is None and len(group) == 1 and is_whole:
                self._assigned.add((device, address))
                self._storages.append(group[0])
                continue
            storage = self._storage(device, address, group, block)
            if storage is not None:
                self._storages.append(group[0]._replace(info=storage))
            elif not any(blocks is not None and blocks.contains(device, address) for blocks in (before, after)):
                foreign += max(named_storage.location.size for named_storage in group)
        if foreign:
            self.notes.append(
                f"{size(foreign)} of tensor memory is not counted because PyTorch did not allocate it: it is shared by"
                " another process or belongs to another library"
            )
        if not search.complete:
            self.notes.append(f"the search reached a limit after {search.seconds:.1f} s; some names may be missing")

    def _by_block(
        self, named_storages: list[model.NamedStorage]
    ) -> dict[tuple[str, int], tuple[AllocatedBlock | None, list[model.NamedStorage]]]:
        """In each group, the storage with the preferred name is first."""
        groups: dict[tuple[str, int], tuple[AllocatedBlock | None, list[model.NamedStorage]]] = {}
        exact = {} if self._after is None else self._after.by_position
        for named_storage in named_storages:
            position = named_storage.location[:2]
            block = exact.get(position) or self._block(named_storage.location)
            position = position if block is None else block[:2]
            if position in groups:
                groups[position][1].append(named_storage)
            else:
                groups[position] = block, [named_storage]
        for _, group in groups.values():
            if len(group) > 1:
                group.sort(
                    key=lambda named_storage: (named_storage.info.graph, model.PLACES.index(named_storage.place))
                )
        return groups

    def _block(self, location: StorageLocation) -> AllocatedBlock | None:
        return None if self._after is None else self._after.block(location.device, location.address)

    def _storage(
        self, device: str, address: int, group: list[model.NamedStorage], block: AllocatedBlock | None
    ) -> model.Storage | None:
        nbytes = max(named.info.amount for named in group)
        frame = None
        if block is not None:
            nbytes = block.size
            frame = user_frame(block.frames)
        elif device.startswith("cuda") and self._after is not None:
            return None
        self._assigned.add((device, address))
        storages = [named.info for named in group]
        names = dict.fromkeys(name for storage in storages for name in (storage.name, *storage.also))
        storage_ids = [named.location.storage for named in group]
        return replace(
            storages[0],
            amount=nbytes,
            kind=min((storage.kind for storage in storages), key=model.KINDS.index),
            also=tuple(name for name in names if name != storages[0].name),
            places=tuple(place for place in model.PLACES if any(place in storage.places for storage in storages)),
            made="" if frame is None else self._label(*frame),
            new=self._since is None or not self._since.contains(device, address, storage_ids),
        )

    def devices(self, torch: Any, is_wanted: Callable[[str], bool]) -> list[str]:
        names = {named_storage.location.device for named_storage in self._storages}
        if self._after is not None:
            names |= {block.device for block in self._after.blocks if is_wanted(block.device)}
        if torch is not None:
            indexes = range(torch.cuda.device_count())
            names |= {f"cuda:{i}" for i in indexes if is_wanted(f"cuda:{i}") and pytorch.has_context(torch, i)}
        return sorted(names)

    def holders(self) -> tuple[model.Holder, ...]:
        rows: dict[tuple[str, Any, str], list[model.NamedStorage]] = defaultdict(list)
        for named_storage in self._storages:
            if named_storage.info.new:
                rows[named_storage.holder, named_storage.place, named_storage.location.device].append(named_storage)
        holders = [model.holder(*key, members) for key, members in rows.items()]
        return tuple(sorted(holders, key=lambda holder: (-holder.amount, holder.name, holder.device)))

    def total(self, device: str, baseline: Baseline | None) -> model.DeviceTotal:
        held_bytes = sum(
            named_storage.info.amount for named_storage in self._storages if named_storage.location.device == device
        )
        if not device.startswith("cuda"):
            return model.DeviceTotal(device, held_bytes)
        if self._after is None:
            return self._total_without_blocks(device, held_bytes, baseline)
        blocks = [block for block in self._after.blocks if block.device == device]
        unassigned_blocks = [block for block in blocks if block[:2] not in self._assigned]
        earlier = (self._before or self._after).by_position
        by_label: dict[str, list[AllocatedBlock]] = {label: [] for label in (_PRIVATE, _NEW, _NOT_SEARCHED)}
        unreached = by_label.setdefault(self._unreached_label, [])
        for block in unassigned_blocks:
            label = _NOT_SEARCHED if block[:2] in self._unsearched else self._unreached_label
            by_label[_NEW if block[:2] not in earlier else _PRIVATE if any(block.pool) else label].append(block)
        workspace = _workspace(baseline, device, sum(block.size for block in unreached))
        parts = [model.UnreachedMemory(_WORKSPACE, workspace)]
        for label, members in by_label.items():
            nbytes = sum(block.size for block in members) - (workspace if members is unreached else 0)
            parts.append(model.UnreachedMemory(label, nbytes, model.allocation_lines(members, self._label)))
        return model.DeviceTotal(
            device, held_bytes, tuple(part for part in parts if part.amount), sum(b.size for b in blocks)
        )

    def _total_without_blocks(self, device: str, held_bytes: int, baseline: Baseline | None) -> model.DeviceTotal:
        try:
            allocated = allocator.statistics(int(device.rpartition(":")[2])).now.allocated
        except Exception as error:  # such as a pluggable allocator or a failed kernel
            self.notes.append(f"{device}: the allocated memory is unknown ({first_line(error)})")
            return model.DeviceTotal(device, held_bytes)
        workspace = _workspace(baseline, device, allocated - held_bytes)
        sizes = {_WORKSPACE: workspace, self._unreached_label: allocated - held_bytes - workspace}
        unreached = tuple(model.UnreachedMemory(label, nbytes) for label, nbytes in sizes.items() if nbytes)
        return model.DeviceTotal(device, held_bytes, unreached, allocated)


def _workspace(baseline: Baseline | None, device: str, unreached: int) -> int:
    return max(min(baseline.workspace or 0, unreached), 0) if baseline and baseline.device == device else 0
