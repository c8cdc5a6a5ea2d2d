"""Tables and one-line summaries of memory outside PyTorch by library."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.report import DeviceReport, Report
from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.units import VISIBLE, change_text, signed, size

if TYPE_CHECKING:
    from ipygpumem.features.outside.model import LibraryMemory, OutsideMemory, PoolMemory

_REST = "CUDA context, kernel code, local memory"
_UNATTRIBUTED = "not attributed to a library"
_IDLE = "unused in CUDA's memory pools"
_KINDS = {
    "device": "",
    "array": ", CUDA arrays",
    "static": ", __device__ variables",
    "managed": ", managed memory",
    "pinned": ", pinned host memory",
}
_SEPARATE = {"managed": "managed memory, on the device or the host", "pinned": "pinned host memory"}
_NOTE = "CUPTI does not record memory of the CUDA context, kernel code and stacks, or memory created with cuMemCreate"
_EMPTY = ("", "", "", "", "")


def insert_outside_tables(tables: list[Table], report: Report) -> list[Table]:
    outside_tables = {
        outside.device: outside_table(outside, report.devices[outside.device]) for outside in report.libraries
    }
    pairs = ((table, outside_tables.get(table.title)) for table in tables)
    return [table for pair in pairs for table in pair if table is not None]


def outside_table(outside: OutsideMemory, device: DeviceReport) -> Table:
    """Managed and pinned memory follow the total, because they may not be on the device."""
    exact = outside.grade.trust == "exact"
    on_device = [library for library in outside.libraries if library.memory not in _SEPARATE]
    rows = [_library_row(library) for library in on_device if _is_visible(library)]
    small = [library for library in on_device if not _is_visible(library)]
    if small:
        count = sum(library.allocations for library in small)
        rows.append(_row(f"{len(small)} smaller", sum(library.change for library in small), f"{count:,}"))
    if abs(outside.idle) >= VISIBLE:
        rows.append(_row(_IDLE if outside.grade.trust != "unknown" else "CUDA's memory pools", outside.idle))
    if outside.rest != 0:
        rows.append(_row(_REST if exact else _UNATTRIBUTED, outside.rest))
    total = (change_text(device.outside), "", "", "", "")
    rows.append(TableRow("outside PyTorch", total, 0, device.grades["outside"]))
    for memory, label in _SEPARATE.items():
        libraries = [library for library in outside.libraries if library.memory == memory and _is_visible(library)]
        if libraries:
            rows.append(TableRow(label, _EMPTY, 0))
            rows += [_library_row(library, kind="") for library in libraries]
    pools = [pool for pool in outside.pools if _has_changed(pool)]
    if pools:
        rows.append(TableRow("memory pools, from their own counters", _EMPTY, 0))
        rows += [_pool_row(pool) for pool in pools]
    notes = (_NOTE,) if exact and outside.rest is not None and abs(outside.rest) >= VISIBLE else ()
    header = ("change", "peak", "allocated", "freed", "allocations")
    return Table(f"{outside.device} outside PyTorch, by library", header, tuple(rows), notes)


def outside_sentence(outside: OutsideMemory) -> str:
    """Return a summary such as ``cuda:0 outside PyTorch: NCCL +388.0 MiB``, or an empty string if nothing changed."""
    parts = [_library_sentence(library) for library in outside.libraries if _is_visible(library)]
    if abs(outside.idle) >= VISIBLE:
        parts.append(f"{_IDLE} {signed(outside.idle)}")
    if outside.grade.trust == "unknown":
        changed_pools = [pool for pool in outside.pools if _has_changed(pool)]
        parts += [
            f"{pool.name} {signed((pool.used if pool.change is None else pool.change) or 0)}" for pool in changed_pools
        ]
    elif outside.rest is not None and abs(outside.rest) >= VISIBLE:
        rest_label = _REST if outside.grade.trust == "exact" else _UNATTRIBUTED
        parts.append(f"{rest_label} {signed(outside.rest)}")
    return f"{outside.device} outside PyTorch: {' · '.join(parts)}" if parts else ""


def _is_visible(library: LibraryMemory) -> bool:
    return abs(library.change) >= VISIBLE or library.peak >= VISIBLE


def _has_changed(pool: PoolMemory) -> bool:
    return any(abs(nbytes) >= VISIBLE for nbytes in (pool.change, pool.used, pool.peak) if nbytes is not None)


def _library_sentence(library: LibraryMemory) -> str:
    name = f"{library.library}{_KINDS[library.memory]}"
    count = f" in {library.allocations:,} allocations" if library.allocations > 1 else ""
    if abs(library.change) < VISIBLE:
        return f"{name} peak {signed(library.peak)}{count}"
    peak = f" (peak {signed(library.peak)})" if library.peak - max(library.change, 0) >= VISIBLE else ""
    return f"{name} {signed(library.change)}{count if library.change > 0 else ''}{peak}"


def _library_row(library: LibraryMemory, kind: str | None = None) -> TableRow:
    kind = _KINDS[library.memory] if kind is None else kind
    label = f"{library.library}{kind}{', from a CUDA memory pool' if library.pooled else ''}"
    changes, totals = map(change_text, (library.change, library.peak)), map(size, (library.allocated, library.freed))
    cells = (*changes, *totals, f"{library.allocations:,}")
    return TableRow(label, cells, 1, note=library.file if library.file not in label else "")


def _row(label: str, change: int | None, allocations: str = "") -> TableRow:
    return TableRow(label, (change_text(change), "", "", "", allocations), 1)


def _pool_row(pool: PoolMemory) -> TableRow:
    change = change_text(pool.used if pool.change is None else pool.change)
    peak = "" if pool.peak is None else change_text(pool.peak)
    details = [] if pool.now is None else [f"{size(pool.now)} now"]
    if pool.change is not None and pool.used is not None:
        details.append(f"in use {change_text(pool.used)}")
    return TableRow(pool.name, (change, peak, "", "", ""), 1, note=", ".join(details))
