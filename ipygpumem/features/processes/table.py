"""Other processes in words: rows below a device's own, a sentence for a cell, and every card's table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.units import signed, size
from ipygpumem.display.columns import VISIBLE
from ipygpumem.display.table import Table, TableRow
from ipygpumem.features.explain.model import TWICE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ipygpumem.core.report import Report
    from ipygpumem.features.processes.model import DeviceProcesses, OtherProcess, OtherProcessChange

__all__ = ["other_process_sentences", "processes_tables", "with_change_rows", "with_other_process_rows"]

_ROW = "other processes"
_MOST = 5
"""Neighbours that have rows of their own."""
_NAMED = 3
"""Neighbours that a cell's sentence names."""


def other_process_sentences(report: Report) -> list[str]:
    """One line for each device where others moved: ``cuda:0 other processes: pid 7 (python a.py) began, +3.0 GiB``."""
    found = []
    for device in dict.fromkeys(one.device for one in report.neighbours):
        moved = [one for one in report.neighbours if one.device == device and abs(one.change) >= VISIBLE]
        if moved:
            parts = [_words(one) for one in moved[:_NAMED]]
            rest = moved[_NAMED:]
            if rest:
                parts.append(f"{len(rest)} more {signed(sum(one.change for one in rest))}")
            found.append(f"{device} other processes: {' · '.join(parts)}")
    return found


def _words(one: OtherProcessChange) -> str:
    event = f" {one.event}," if one.event else ""
    return f"{one.neighbour.title}{event} {signed(one.change)}"


def with_change_rows(tables: Iterable[Table], report: Report) -> list[Table]:
    """A report's tables with a row for each neighbour below that of all of them."""
    found = []
    for table in tables:
        here = [one for one in report.neighbours if one.device == table.title.partition(" ")[0]]
        found.append(_below(table, _change_rows(here)))
    return found


def _change_rows(changes: Sequence[OtherProcessChange]) -> list[TableRow]:
    rows = [_change_row(one) for one in changes[:_MOST]]
    rest = changes[_MOST:]
    if rest:
        cells = (_change(sum(one.change for one in rest)), "", size(sum(one.after for one in rest)))
        rows.append(TableRow(f"{len(rest)} more", cells, 2))
    return rows


def _change_row(one: OtherProcessChange) -> TableRow:
    return TableRow(one.neighbour.title, (_change(one.change), "", size(one.after)), 2, remark=one.event)


def with_other_process_rows(tables: Iterable[Table], neighbours: dict[str, tuple[OtherProcess, ...]]) -> list[Table]:
    """The books of now with a row for each neighbour below that of all of them; by device."""
    return [
        _below(table, [_level_row(one) for one in _shortened(neighbours.get(table.title.partition(" ")[0], ()))])
        for table in tables
    ]


def _shortened(neighbours: Sequence[OtherProcess]) -> list[tuple[str, int | None]]:
    found: list[tuple[str, int | None]] = [(one.title, one.amount) for one in neighbours[:_MOST]]
    rest = neighbours[_MOST:]
    return [*found, (f"{len(rest)} more", sum(one.amount or 0 for one in rest))] if rest else found


def _level_row(one: tuple[str, int | None]) -> TableRow:
    return TableRow(one[0], (_level(one[1]),), 2)


def _below(table: Table, rows: Sequence[TableRow]) -> Table:
    at = next((i for i, row in enumerate(table.rows, 1) if row.label == _ROW), 0)
    if not at or not rows:
        return table
    return Table(table.title, table.header, (*table.rows[:at], *rows, *table.rows[at:]), table.remarks)


def processes_tables(cards: Iterable[DeviceProcesses]) -> list[Table]:
    """Each card with everybody on it, this process first: what they have, whose they are, and what they run."""
    return [_card(card) for card in cards]


def _card(card: DeviceProcesses) -> Table:
    whole = card.used or sum(one.amount or 0 for one in card.neighbours) + (card.own or 0)
    wide = max((len(str(one)) for one in (card.pid or 0, *(one.pid for one in card.neighbours))), default=0)
    rows = []
    if card.pid is not None:
        rows.append(_row(f"pid {card.pid:<{wide}}  this process", "", card.own, whole))
    for one in card.neighbours:
        remark = one.command or one.name or one.why
        rows.append(_row(f"pid {one.pid:<{wide}}  {_relation(one)}", one.user, one.amount, whole, remark))
    if card.unattributed is not None and card.unattributed >= VISIBLE:
        rows.append(_row("in nobody's entry", "", card.unattributed, whole, "page tables, managed memory"))
    elif card.unattributed is not None and -card.unattributed >= VISIBLE:
        rows.append(_row(TWICE, "", card.unattributed, 0, "NVML's entries add up to more than the card has given away"))
    if card.used is not None:
        rows.append(
            TableRow(
                f"used, by {card.source}" if card.source else "used, as nvidia-smi shows it", ("", size(card.used)), 0
            )
        )
    remarks = [card.why] if card.why else []
    if not card.neighbours and not card.why:
        remarks.append("nobody else is on this card")
    title = f"{card.device} {card.label}".rstrip()
    return Table(title, ("user", "bytes"), tuple(rows), tuple(remarks))


def _row(label: str, user: str, amount: int | None, whole: int, remark: str = "") -> TableRow:
    share = (amount or 0) / whole if whole else 0
    return TableRow(label, (user, _level(amount)), 1, bar=share or None, remark=remark)


def _relation(one: OtherProcess) -> str:
    """Whose it is, and what for."""
    if one.role == "kernel":
        return one.label
    file = one.notebook.replace("\\", "/").rpartition("/")[2]
    words = {"child": "child", "own": f"from {file}" if file else "yours", "other": "other user", "unknown": "unknown"}
    return ", ".join(part for part in (words[one.relation], one.role) if part)


def _change(amount: int) -> str:
    if abs(amount) >= VISIBLE:
        return signed(amount)
    return "0" if amount == 0 else "<0.1 MiB"


def _level(amount: int | None) -> str:
    return "unknown" if amount is None else size(amount)
