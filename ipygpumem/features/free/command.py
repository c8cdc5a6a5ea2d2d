"""``%gpumem free``: free what a notebook keeps alive although the user does not need it, and report the effect."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from ipygpumem.core.units import MIB, difference, size
from ipygpumem.features.commands.command import HELP, Command, Option
from ipygpumem.sources import allocator

if TYPE_CHECKING:
    import argparse

    from ipygpumem.core.reading import Reading
    from ipygpumem.features.holders.model import Holders
    from ipygpumem.jupyter.magics import GPUMem

_MAX_HOLDERS = 5


def _run(notebook: GPUMem, arguments: argparse.Namespace) -> None:
    from ipygpumem.features.free.collect import check_names, forget_exception, forget_outputs, forget_variables
    from ipygpumem.features.free.table import release_tables
    from ipygpumem.features.holders.collect import holders

    shell = notebook.shell
    check_names(shell, arguments.names)
    holders_before = holders() if arguments.names else None
    before = notebook.session.reading()
    removed = forget_variables(shell, dict.fromkeys(arguments.names))
    if arguments.out or arguments.cache or not arguments.names:
        removed += forget_exception(shell)
    if arguments.out:
        removed += forget_outputs(shell)
    objects = gc.collect()
    if objects:
        removed.append(f"{objects:,} object{'' if objects == 1 else 's'} in unreachable cycles")
    if arguments.cache and allocator.empty_cache():
        removed.append("PyTorch's cache")
    after = notebook.session.reading()
    notes = []
    if holders_before is not None:
        freed = -sum(_changes(before, after, "allocated").values())
        notes += _still_held(arguments.names, holders_before, freed)
    if not arguments.cache:
        notes += [
            f"{name}: {size(change)} went to PyTorch's cache, for its next tensors; --cache returns it to the device"
            for name, change in _changes(before, after, "cached").items()
            if change >= MIB
        ]
    notebook.cells.claim()
    notebook.show_tables(release_tables(before, after, removed, notes))


def _changes(before: Reading, after: Reading, counter: str) -> dict[str, int]:
    """The change of a counter in bytes on each device where it is known."""
    changes = {}
    for name, device in after.devices.items():
        if name in before.devices:
            changes[name] = difference(getattr(before.devices[name], counter), getattr(device, counter))
    return {name: change for name, change in changes.items() if change is not None}


def _still_held(names: list[str], holders_before: Holders, freed: int) -> list[str]:
    """The holders that hold more than before: what the names held and did not free."""
    from ipygpumem.features.holders.collect import holders

    if sum(holders_before.amount(name) for name in names) - freed < MIB:
        return []
    size_before = {(holder.name, holder.device): holder.amount for holder in holders_before.holders}
    remaining = []
    for holder in holders().holders:
        increase = holder.amount - size_before.get((holder.name, holder.device), 0)
        if increase >= MIB:
            remaining.append(f"{holder.name} ({size(increase)})")
    return [f"still held by {', '.join(remaining[:_MAX_HOLDERS])}"] if remaining else []


FREE = Command(
    "free",
    "free the memory of the last traceback and of unreachable cycles, and report how much",
    (
        Option(
            ("names",),
            "NAME",
            "delete these variables and their copies in Out and in the last traceback",
            many=True,
            usage="[NAME...]",
        ),
        Option(("--out",), None, "delete the output history, too: Out, _, __, ___ and every _3"),
        Option(("--cache",), None, "release PyTorch's cache, too: torch.cuda.empty_cache()"),
        HELP,
    ),
    magic=_run,
)
