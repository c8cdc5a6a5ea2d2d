"""Memory outside PyTorch by library: a table that adds up, and one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.units import VISIBLE, signed, size
from ipygpumem.display.table import Table, TableRow

if TYPE_CHECKING:
    from ipygpumem.core.report import DeviceReport, Report
    from ipygpumem.features.outside.model import LibraryMemory, OutsideMemory, PoolMemory

__all__ = ["outside_sentences", "outside_table", "with_outside"]

_REST = "CUDA context, kernel code, stacks"
_UNTOLD = "not told apart"
_IDLE = "in CUDA's own pools, not in use"
_KINDS = {
    "device": "",
    "array": ", arrays",
    "static": ", variables of kernels",
    "managed": ", managed memory",
    "pinned": ", pinned memory of the host",
}
_APART = {"managed": "managed memory, on the card or in the host", "pinned": "pinned memory of the host"}
_REMARK = "no allocation asked for context, kernel code and stacks; what a library maps by cuMemCreate is among them"


def with_outside(tables: list[Table], report: Report) -> list[Table]:
    """A report's tables, each device's followed by that of its memory outside PyTorch."""
    found = {one.device: outside_table(one, report.devices[one.device]) for one in report.libraries}
    whole = []
    for table in tables:
        whole.append(table)
        name = table.title.partition(" ")[0]
        if name in found:
            whole.append(found.pop(name))
    return whole


def outside_table(outside: OutsideMemory, device: DeviceReport) -> Table:
    """Who allocated how much: the first rows add up to the device's change outside PyTorch, the others stand apart."""
    exact, told = outside.grade.trust == "exact", outside.grade.trust != "unknown"
    rows = []
    here = [one for one in outside.libraries if one.memory not in _APART]
    shown = [one for one in here if _visible(one)]
    rows += [_row(one) for one in shown]
    small = [one for one in here if not _visible(one)]
    if small:
        count = sum(one.allocations for one in small)
        rows.append(_line(f"{len(small)} smaller", sum(one.change for one in small), allocations=count))
    if abs(outside.idle) >= VISIBLE:
        rows.append(_line(_IDLE if told else "CUDA's own pools", outside.idle))
    rows.append(_line(_REST if exact else _UNTOLD, outside.rest))
    rows.append(TableRow("outside PyTorch", (_change(device.outside), "", "", "", ""), 0, device.grades["outside"]))
    for memory, label in _APART.items():
        apart = [one for one in outside.libraries if one.memory == memory and _visible(one)]
        if apart:
            rows.append(TableRow(label, ("", "", "", "", ""), 0))
            rows += [_row(one, kind="") for one in apart]
    pools = [one for one in outside.pools if _moved(one)]
    if pools:
        rows.append(TableRow("as they count themselves", ("", "", "", "", ""), 0))
        rows += [_pool(one) for one in pools]
    remarks = (_REMARK,) if exact and outside.rest is not None and abs(outside.rest) >= VISIBLE else ()
    header = ("change", "peak", "allocated", "freed", "allocations")
    return Table(f"{outside.device} outside PyTorch, by library", header, tuple(rows), remarks)


def outside_sentences(report: Report) -> list[str]:
    """One line for each device: ``cuda:0 outside PyTorch: NCCL +388.0 MiB in 194 allocations · ...``."""
    found = []
    for outside in report.libraries:
        parts = [_words(one) for one in outside.libraries if _visible(one)]
        if abs(outside.idle) >= VISIBLE:
            parts.append(f"{_IDLE} {signed(outside.idle)}")
        if outside.grade.trust == "unknown":
            parts += [
                f"{one.name} {signed(one.change if one.change is not None else one.used or 0)}"
                for one in outside.pools
                if _moved(one)
            ]
        elif outside.rest is not None and abs(outside.rest) >= VISIBLE:
            rest = _REST if outside.grade.trust == "exact" else _UNTOLD
            parts.append(f"{rest} {signed(outside.rest)}")
        if parts:
            found.append(f"{outside.device} outside PyTorch: {' · '.join(parts)}")
    return found


def _visible(one: LibraryMemory) -> bool:
    return abs(one.change) >= VISIBLE or one.peak >= VISIBLE


def _moved(one: PoolMemory) -> bool:
    return any(abs(part) >= VISIBLE for part in (one.change, one.used, one.peak) if part is not None)


def _words(one: LibraryMemory) -> str:
    text = f"{one.library}{_KINDS[one.memory]}"
    many = f" in {one.allocations:,} allocations" if one.allocations > 1 else ""
    if abs(one.change) >= VISIBLE:
        peak = f" (peak {signed(one.peak)})" if one.peak - max(one.change, 0) >= VISIBLE else ""
        return f"{text} {signed(one.change)}{many if one.change > 0 else ''}{peak}"
    return f"{text} peak {signed(one.peak)}{many}"


def _row(one: LibraryMemory, kind: str | None = None) -> TableRow:
    label = f"{one.library}{_KINDS[one.memory] if kind is None else kind}{', from a CUDA pool' if one.pooled else ''}"
    cells = (_change(one.change), _change(one.peak), size(one.allocated), size(one.freed), f"{one.allocations:,}")
    remark = one.file if one.file and one.file not in label else ""
    return TableRow(label, cells, 1, remark=remark)


def _line(label: str, change: int | None, allocations: int | None = None) -> TableRow:
    return TableRow(label, (_change(change), "", "", "", "" if allocations is None else f"{allocations:,}"), 1)


def _pool(one: PoolMemory) -> TableRow:
    peak = "" if one.peak is None else _change(one.peak)
    change = one.used if one.change is None else one.change
    parts = []
    if one.now is not None:
        parts.append(f"{size(one.now)} now")
    if one.change is not None and one.used is not None:
        parts.append(f"in use {_change(one.used)}")
    return TableRow(one.name, (_change(change), peak, "", "", ""), 1, remark=", ".join(parts))


def _change(amount: int | None) -> str:
    if amount is None:
        return "unknown"
    if abs(amount) >= VISIBLE:
        return signed(amount)
    return "0" if amount == 0 else "<0.1 MiB"
