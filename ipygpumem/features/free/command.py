"""The command ``%gpumem free`` and its tables of the memory usage before and after."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace

from ipygpumem.core.introspection import collect_garbage
from ipygpumem.core.reading import DeviceReading, Reading
from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.units import MIB, change_text, difference, many, size, usage_text
from ipygpumem.features.commands.command import HELP, Command, Notebook, Option
from ipygpumem.features.holders.model import Holders
from ipygpumem.sources import allocator

_MAX_HOLDERS = 5


def _run(notebook: Notebook, arguments: argparse.Namespace) -> None:
    from ipygpumem.features.free.delete import check_names, delete_exception, delete_outputs, delete_variables
    from ipygpumem.features.holders.collect import holders

    shell = notebook.shell
    check_names(shell, arguments.names)
    holders_before = holders() if arguments.names else None
    before = notebook.session.reading()
    freed_items = delete_variables(shell, dict.fromkeys(arguments.names))
    if arguments.out or arguments.cache or not arguments.names:
        freed_items += delete_exception(shell)
    if arguments.out:
        freed_items += delete_outputs(shell)
    objects = collect_garbage()
    if objects:
        freed_items.append(f"{many(objects, 'object')} in unreachable cycles")
    if arguments.cache and allocator.empty_cache():
        freed_items.append("PyTorch's cache")
    after = notebook.session.reading()
    notes = []
    if holders_before is not None:
        freed_bytes = -sum(_changes(before, after, "allocated").values())
        notes += _still_held(arguments.names, holders_before, freed_bytes)
    if not arguments.cache:
        notes += [
            f"{name}: {size(change)} remains in PyTorch's cache for new tensors; use --cache to release it"
            for name, change in _changes(before, after, "cached").items()
            if change >= MIB
        ]
    notebook.claim_cell()
    notebook.show_tables(release_tables(before, after, freed_items, notes))


def _changes(before: Reading, after: Reading, counter: str) -> dict[str, int]:
    names = before.devices.keys() & after.devices.keys()
    values = {name: (getattr(before.devices[name], counter), getattr(after.devices[name], counter)) for name in names}
    return {name: last - first for name, (first, last) in values.items() if None not in (first, last)}


def _still_held(names: list[str], holders_before: Holders, freed_bytes: int) -> list[str]:
    from ipygpumem.features.holders.collect import holders

    if sum(holders_before.amount(name) for name in names) - freed_bytes < MIB:
        return []
    size_before = {(holder.name, holder.device): holder.amount for holder in holders_before.holders}
    other_holders = []
    for holder in holders().holders:
        increase = holder.amount - size_before.get((holder.name, holder.device), 0)
        if increase >= MIB:
            other_holders.append(f"{holder.name} ({size(increase)})")
    names_and_sizes = ", ".join(other_holders[:_MAX_HOLDERS])
    return [f"the memory of these variables is still held by {names_and_sizes}"] if other_holders else []


FREE = Command(
    "free",
    "free the memory held by the last traceback and by unreachable reference cycles",
    (
        Option(
            ("names",),
            "NAME",
            "delete these variables and all references to their values in Out and in the last traceback",
            accepts_many=True,
            usage="[NAME...]",
        ),
        Option(("--out",), None, "also delete the output history: Out, _, __, ___ and variables such as _3"),
        Option(("--cache",), None, "also release PyTorch's cache with torch.cuda.empty_cache()"),
        HELP,
    ),
    magic=_run,
)


_HEADER = ("before", "after", "change")


def release_tables(before: Reading, after: Reading, freed_items: Sequence[str], notes: Sequence[str]) -> list[Table]:
    tables = [
        _device_table(before.devices[name], device)
        for name, device in after.devices.items()
        if device.context and name in before.devices
    ]
    if not tables:
        rss = _row("this process (RSS)", before.host.rss, after.host.rss, 0)
        tables = [Table("host memory", _HEADER, (rss,))]
    summary = f"freed: {'; '.join(freed_items)}" if freed_items else "nothing to free"
    return [*tables[:-1], replace(tables[-1], notes=(summary, *notes))]


def _device_table(before: DeviceReading, after: DeviceReading) -> Table:
    rows = [_row("allocated (tensors)", before.allocated, after.allocated, 1)]
    if before.pending or after.pending:
        rows.append(_row("pending (freed, waiting for another stream)", before.pending, after.pending, 1))
    rows.append(_row("cached", before.cached, after.cached, 1))
    rows.append(_row("free", before.free, after.free, 0))
    return Table(after.name, _HEADER, tuple(rows))


def _row(label: str, before: int | None, after: int | None, level: int) -> TableRow:
    return TableRow(label, (usage_text(before), usage_text(after), change_text(difference(before, after))), level)
