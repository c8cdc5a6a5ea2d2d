"""The table of the holders: who keeps how much, the largest first, adding up to what is allocated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ipygpumem.core.units import VISIBLE, signed, size
from ipygpumem.display.table import Table, TableRow

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ipygpumem.features.holders.model import Holder, Holders, Storage, Total

__all__ = ["holders_tables"]

_MOST = 10
_PARTS = 3
_WIDTH = 58
_NAMES = 2


@dataclass(frozen=True, slots=True)
class _Part:
    """Storages of one name: what a tensor's graph keeps is told under that tensor."""

    name: str
    amount: int
    storages: tuple[Storage, ...]


def holders_tables(holders: Holders, *, most: int = _MOST, parts: int = _PARTS) -> list[Table]:
    """A table for each device: the ``most`` largest holders, each with its ``parts`` largest tensors, then the rest."""
    tables = [_table(holders, total, most, parts) for total in holders.totals]
    if not tables:
        tables = [Table("who holds the memory", ("bytes",), (TableRow("no tensor", (size(0),), 1),))]
    last = tables[-1]
    notes = tuple(f"note: {note}" for note in holders.notes)
    return [*tables[:-1], Table(last.title, last.header, last.rows, (*last.remarks, *notes))]


def _table(holders: Holders, total: Total, most: int, parts: int) -> Table:
    every = holders.largest(len(holders.holders), total.device)
    shown, others = every[:most], every[most:]
    whole = total.allocated if total.allocated is not None else total.held
    rows: list[TableRow] = []
    for holder in shown:
        rows += _holder_rows(holder, whole, parts)
    if others:
        amount, count = sum(one.amount for one in others), sum(one.count for one in others)
        text = f"{len(others):,} smaller holder{'s' if len(others) > 1 else ''}"
        rows.append(TableRow(text, (_level(amount), f"{count:,}"), 1))
    if holders.since:
        title = f"{total.device}, new since {holders.since}"
        rows.append(TableRow("new", (_level(sum(one.amount for one in every)), _count(every)), 0))
    else:
        title = f"{total.device}, who holds the memory"
        rest = total.held - sum(one.amount for one in every)
        rows += [TableRow("other names", (_level(rest), ""), 1)] if rest else []
        rows += [TableRow(one.label, (_level(one.amount), ""), 1) for one in total.rest]
        label = "allocated (tensors)" if total.allocated is not None else "tensors"
        rows.append(TableRow(label, (_level(whole), _count(every)), 0))
    notes = tuple(dict.fromkeys(one.note for one in shown if one.note))
    return Table(title, ("bytes", "tensors"), tuple(rows), (*notes, *_freeable(holders, total.device)))


def _count(holders: Sequence[Holder]) -> str:
    return f"{sum(one.count for one in holders):,}"


def _holder_rows(holder: Holder, whole: int, parts: int) -> list[TableRow]:
    grouped = _grouped(holder)
    share = holder.amount / whole if whole else None
    only = grouped[0] if len(grouped) == 1 else None
    label = only.name if only is not None else holder.name
    aside = _aside(only.storages, graph=True) if only is not None else _kinds(holder)
    rows = [TableRow(_short(label), (_level(holder.amount), f"{holder.count:,}"), 1, bar=share, remark=aside)]
    if only is not None or not parts:
        return rows
    for part in grouped[:parts]:
        cells = (_level(part.amount), f"{len(part.storages):,}")
        rows.append(TableRow(_short(part.name), cells, 2, remark=_aside(part.storages, graph=True)))
    left = grouped[parts:]
    if left:
        count = sum(len(part.storages) for part in left)
        rows.append(TableRow(f"{len(left):,} more", (_level(sum(part.amount for part in left)), f"{count:,}"), 2))
    return rows


def _grouped(holder: Holder) -> list[_Part]:
    groups: dict[tuple[str, bool], list[Storage]] = {}
    for part in holder.parts:
        groups.setdefault((part.name, part.graph), []).append(part)
    found = [_Part(name, sum(one.amount for one in some), tuple(some)) for (name, _), some in groups.items()]
    return sorted(found, key=lambda part: -part.amount)


def _kinds(holder: Holder) -> str:
    if len(holder.kinds) == 1:
        return "" if holder.kinds[0][0] == "plain" else holder.kinds[0][0]
    return ", ".join(f"{kind} {_level(amount)}" for kind, amount in holder.kinds)


def _aside(storages: Sequence[Storage], *, graph: bool) -> str:
    """What there is to say of a part: its kind, its shape, where it was made, its other names."""
    first = storages[0]
    if graph and first.graph:
        words = [f"{first.kind}s kept by its autograd graph" if len(storages) > 1 else "kept by its autograd graph"]
    else:
        words = ["" if first.kind == "plain" else first.kind, first.tensor]
    words.append(first.made)
    if first.also:
        more = len(first.also) - _NAMES
        words.append(f"also {', '.join(map(_short, first.also[:_NAMES]))}{', ...' if more > 0 else ''}")
    return " · ".join(word for word in words if word)


def _short(name: str) -> str:
    """A name that fits a column: the middle goes."""
    if len(name) <= _WIDTH:
        return name
    half = (_WIDTH - 3) // 2
    return f"{name[:half]}...{name[-half:]}"


def _level(amount: int) -> str:
    if amount == 0 or abs(amount) >= VISIBLE:
        return size(amount) if amount >= 0 else signed(amount)
    return "<0.1 MiB"


def _freeable(holders: Holders, device: str) -> tuple[str, ...]:
    """What `%gpumem free` would give back, where there is something."""
    if holders.since:
        return ()
    now, outputs = holders.freeable(device, "traceback"), holders.freeable(device, "traceback", "output")
    sentences = []
    if now >= VISIBLE:
        sentences.append(f"%gpumem free gives back {size(now)}: what the last exception and unreachable cycles hold")
    if outputs - now >= VISIBLE:
        sentences.append(f"%gpumem free --out gives back {size(outputs)}: the output history, too")
    return tuple(sentences)
