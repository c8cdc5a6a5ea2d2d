"""Tables and one-line summaries of the processes on a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ipygpumem.core.other_process import OtherProcess, OtherProcessChange
from ipygpumem.core.report import Report
from ipygpumem.core.tables import Table, TableRow, is_visible
from ipygpumem.core.units import VISIBLE, change_text, many, signed, size, usage_text
from ipygpumem.features.processes.model import DeviceProcesses

_Process = tuple[str, tuple[int | None, ...], str]  # label, sizes in bytes, and description of the event

_ROW_LABEL = "other processes"
_MAX_ROWS = 5
_MAX_IN_SENTENCE = 3
_EVENTS = {"began": "started", "came": "started using the GPU", "left": "stopped using the GPU", "ended": "ended"}
_RELATIONS = {"child": "child", "other": "other user", "unknown": "unknown"}


def other_process_sentence(device: str, changes: Iterable[OtherProcessChange]) -> str:
    """Return a summary such as ``cuda:0 other processes: pid 7 (a.py) started, +3.0 GiB``.

    Changes of less than 0.05 MiB are omitted. If no changes remain, the summary is empty.
    """
    visible = [change for change in changes if change.device == device and is_visible(change.change)]
    parts = [
        f"{change.neighbour.title}{f' {_EVENTS[change.event]},' if change.event else ''} {signed(change.change)}"
        for change in visible[:_MAX_IN_SENTENCE]
    ]
    other_changes = visible[_MAX_IN_SENTENCE:]
    if other_changes:
        change = signed(sum(change.change for change in other_changes))
        parts.append(f"{many(len(other_changes), 'other')}: {change}")
    return f"{device} other processes: {' · '.join(parts)}" if parts else ""


def with_change_rows(tables: Iterable[Table], report: Report) -> list[Table]:
    processes: dict[str, list[_Process]] = {}
    for change in report.neighbours:
        process = (change.neighbour.title, (change.change, change.after), _EVENTS.get(change.event, ""))
        processes.setdefault(change.device, []).append(process)
    return _with_rows(tables, processes, lambda change, after: (change_text(change), "", usage_text(after)))


def with_other_process_rows(tables: Iterable[Table], processes: dict[str, tuple[OtherProcess, ...]]) -> list[Table]:
    rows = {name: [(process.title, (process.amount,), "") for process in users] for name, users in processes.items()}
    return _with_rows(tables, rows, lambda usage: (usage_text(usage),))


def _with_rows(
    tables: Iterable[Table], processes: Mapping[str, Sequence[_Process]], cells: Callable[..., tuple[str, ...]]
) -> list[Table]:
    result = []
    for table in tables:
        of_device = processes.get(table.title.partition(" ")[0], ())
        listed_processes, other_processes = list(of_device[:_MAX_ROWS]), of_device[_MAX_ROWS:]
        if other_processes:
            columns = zip(*(sizes for _, sizes, _ in other_processes), strict=True)
            listed_processes.append(
                (f"{len(other_processes)} more", tuple(sum(nbytes or 0 for nbytes in column) for column in columns), "")
            )
        rows = [TableRow(label, cells(*sizes), 2, note=note) for label, sizes, note in listed_processes]
        end = next((i for i, row in enumerate(table.rows, 1) if row.label == _ROW_LABEL), 0)
        result.append(replace(table, rows=(*table.rows[:end], *rows, *table.rows[end:])) if end else table)
    return result


def processes_table(device: DeviceProcesses) -> Table:
    total = device.used or sum(process.amount or 0 for process in device.neighbours) + (device.own or 0)
    width = max(len(str(pid)) for pid in (device.pid or 0, *(process.pid for process in device.neighbours)))
    rows = []
    if device.pid is not None:
        rows.append(_row(f"pid {device.pid:<{width}}  this process", "", device.own, total))
    for process in device.neighbours:
        note = process.command or process.name or process.why
        label = f"pid {process.pid:<{width}}  {_relation(process)}"
        rows.append(_row(label, process.user, process.amount, total, note))
    unattributed = device.unattributed or 0
    if unattributed >= VISIBLE:
        rows.append(_row("not attributed to any process", "", unattributed, total, "page tables, managed memory"))
    elif -unattributed >= VISIBLE:
        rows.append(_row("listed twice", "", unattributed, 0, "the sum of the listed sizes exceeds the memory in use"))
    if device.used is not None:
        rows.append(TableRow(f"used ({device.source or 'nvidia-smi'})", ("", size(device.used)), 0))
    note = device.why or ("" if device.neighbours else "no other process uses this device")
    title = f"{device.device} {device.label}".rstrip()
    return Table(title, ("user", "size"), tuple(rows), (note,) if note else ())


def _row(label: str, user: str, nbytes: int | None, total: int, note: str = "") -> TableRow:
    share = (nbytes or 0) / total if total else 0
    return TableRow(label, (user, usage_text(nbytes)), 1, bar=share or None, note=note)


def _relation(process: OtherProcess) -> str:
    if process.role == "kernel":
        return process.label
    relation = _RELATIONS.get(process.relation) or (f"from {process.file}" if process.file else "yours")
    return ", ".join(part for part in (relation, process.role) if part)
