"""Tables of holders, one per device. Unless only new holders are listed, the rows add up to the allocated memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.units import VISIBLE, many, size
from ipygpumem.features.holders.model import DeviceTotal, Holder, Holders, Storage

_NAME_WIDTH = 58
_OTHER_NAMES = 2


def holders_tables(holders: Holders, *, limit: int = 10, parts: int = 3) -> list[Table]:
    tables = [_table(holders, total, limit, parts) for total in holders.totals]
    if not tables:
        tables = [Table("memory holders", ("size",), (TableRow("no tensors", (size(0),), 1),))]
    notes = (f"note: {note}" for note in holders.notes)
    return [*tables[:-1], replace(tables[-1], notes=(*tables[-1].notes, *notes))]


def _table(holders: Holders, total: DeviceTotal, limit: int, parts: int) -> Table:
    all_holders = holders.largest(len(holders.holders), total.device)
    shown_holders, smaller = all_holders[:limit], all_holders[limit:]
    whole = total.allocated if total.allocated is not None else total.held
    rows = [row for holder in shown_holders for row in _holder_rows(holder, whole, parts)]
    if smaller:
        rows.append(_sum_row(many(len(smaller), "smaller holder"), _bytes(smaller), smaller, 1))
    if holders.since:
        title = f"{total.device}: new since {holders.since}"
        rows += [_sum_row("new", _bytes(all_holders), all_holders, 0)] if all_holders else []
    else:
        title = f"{total.device}: memory holders"
        not_listed = total.held - _bytes(all_holders)
        if not_listed:
            rows.append(TableRow("other holders", (_size(not_listed), ""), 1))
        for part in total.rest:
            rows.append(TableRow(part.label, (_size(part.amount), ""), 1))
            rows += [TableRow(f"allocated by {_shorten(line)}", (_size(nbytes), ""), 2) for line, nbytes in part.lines]
        label = "allocated (tensors)" if total.allocated is not None else "tensors"
        rows.append(_sum_row(label, whole, all_holders, 0))
    notes = dict.fromkeys(holder.note for holder in shown_holders if holder.note)
    if not rows:
        notes["no new tensors"] = None
    return Table(title, ("size", "tensors"), tuple(rows), (*notes, *_freeable(holders, total.device)))


def _sum_row(label: str, nbytes: int, holders: Sequence[Holder], level: int) -> TableRow:
    return TableRow(label, (_size(nbytes), f"{sum(holder.count for holder in holders):,}"), level)


def _holder_rows(holder: Holder, whole: int, parts: int) -> list[TableRow]:
    groups = _groups(holder)
    share = holder.amount / whole if whole else None
    cells = (_size(holder.amount), f"{holder.count:,}")
    if len(groups) == 1:
        (storages,) = groups
        return [TableRow(_shorten(storages[0].name), cells, 1, bar=share, note=_description(storages))]
    rows = [TableRow(_shorten(holder.name), cells, 1, bar=share, note=_kinds(holder))]
    for storages in groups[:parts]:
        cells = (_size(_bytes(storages)), f"{len(storages):,}")
        rows.append(TableRow(_shorten(storages[0].name), cells, 2, note=_description(storages)))
    if parts and groups[parts:]:
        hidden_storages = [storage for storages in groups[parts:] for storage in storages]
        rows.append(
            TableRow(f"{len(groups) - parts:,} more", (_size(_bytes(hidden_storages)), f"{len(hidden_storages):,}"), 2)
        )
    return rows


def _groups(holder: Holder) -> list[list[Storage]]:
    groups: dict[tuple[str, bool], list[Storage]] = {}
    for storage in holder.parts:
        groups.setdefault((storage.name, storage.graph), []).append(storage)
    return sorted(groups.values(), key=_bytes, reverse=True)


def _bytes(parts: Sequence[Holder | Storage]) -> int:
    return sum([part.amount for part in parts])


def _kinds(holder: Holder) -> str:
    if len(holder.kinds) == 1:
        return "" if holder.kinds[0][0] == "plain" else holder.kinds[0][0]
    return ", ".join(f"{kind} {_size(nbytes)}" for kind, nbytes in holder.kinds)


def _description(storages: Sequence[Storage]) -> str:
    first = storages[0]
    details = ["" if first.kind == "plain" else first.kind, first.tensor, first.made]
    if first.graph:
        kind = f"{first.kind}s " if len(storages) > 1 else ""
        details = [f"{kind}kept alive by its autograd graph", first.made]
    if first.also:
        names = ", ".join(map(_shorten, first.also[:_OTHER_NAMES]))
        details.append(f"also {names}{', ...' if len(first.also) > _OTHER_NAMES else ''}")
    return " · ".join(detail for detail in details if detail)


def _shorten(name: str) -> str:
    if len(name) <= _NAME_WIDTH:
        return name
    half = (_NAME_WIDTH - 3) // 2
    return f"{name[:half]}...{name[-half:]}"


def _size(nbytes: int) -> str:
    return "<0.1 MiB" if 0 < abs(nbytes) < VISIBLE else size(nbytes)


def _freeable(holders: Holders, device: str) -> list[str]:
    if holders.since:
        return []
    freeable, with_outputs = holders.freeable(device, "traceback"), holders.freeable(device, "traceback", "output")
    sentences = []
    if freeable >= VISIBLE:
        sentences.append(f"%gpumem free would free {size(freeable)} held by the last exception or unreachable cycles")
    if with_outputs - freeable >= VISIBLE:
        sentences.append(f"%gpumem free --out would free {size(with_outputs)}, including the output history")
    return sentences
