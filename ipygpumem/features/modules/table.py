"""Tables of a model's memory usage by phase, by kind and by module. Consecutive identical modules share a row."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.units import MIB, change_text, duration, precise_size
from ipygpumem.features.modules.model import ModuleRow, ModuleTree

_MAX_ROWS = 60
_NOTE = (
    "columns 'parameters' to 'activations': memory of one kind when the whole model's memory of this kind peaks; "
    "'temporary': peak of the memory that the module's forward passes allocated and freed; 'at the peak': usage at the "
    "device's peak"
)
_KIND_LABELS = {
    "forward, temporary": "forward, temporary (freed before forward returned)",
    "activations": "activations (saved for backward, and outputs)",
    "recomputed": "recomputed during backward (checkpointing)",
    "backward": "backward, other (activation gradients, workspaces)",
    "optimizer": "optimizer, other",
    "outside the model": "outside the model (inputs, loss, other code)",
}
_SIZES = ("parameters", "buffers", "gradients", "optimizer", "activations", "peak", "own", "temporary")
_TOLERANCE = MIB // 20  # smaller differences are not visible in a table that shows MiB


def module_tables(trees: Iterable[ModuleTree]) -> list[Table]:
    return [table for tree in trees for table in (_phase_table(tree), _kind_table(tree), _module_table(tree))]


def _phase_table(tree: ModuleTree) -> Table:
    peaks = [phase.peak for phase in tree.phases]
    peak = None if None in peaks else max((peak or 0 for peak in peaks), default=0)
    rows = []
    for phase in tree.phases:
        count, seconds, after = f"{phase.count:,}", duration(phase.seconds), precise_size(phase.after)
        cells = count, seconds, change_text(phase.change), after, precise_size(phase.peak)
        rows.append(TableRow(phase.name, cells, 1, bar=(phase.peak or 0) / (peak or 1)))
    seconds = duration(sum(phase.seconds for phase in tree.phases))
    change = change_text(sum(phase.change for phase in tree.phases))
    rows.append(TableRow("all", ("", seconds, change, "", precise_size(peak)), 0))
    title = f"{tree.device} allocated memory by phase"
    return Table(title, ("times", "time", "change", "after", "peak"), tuple(rows))


def _kind_table(tree: ModuleTree) -> Table:
    largest = max((part.peak for part in tree.parts), default=0) or 1
    rows = []
    for part in tree.parts:
        if part.peak or part.end:
            cells = precise_size(part.peak), precise_size(part.end)
            rows.append(TableRow(_KIND_LABELS.get(part.kind, part.kind), cells, 1, bar=part.peak / largest))
    other_sizes = {"rounding by the allocator": tree.rounding, "freed, waiting for another stream": tree.pending}
    for label, (peak, end) in other_sizes.items():
        if peak != 0 or end:
            rows.append(TableRow(label, (precise_size(peak), precise_size(end)), 1))
    peak, end = tree.allocated
    rows.append(TableRow("allocated", (precise_size(peak), precise_size(end)), 0))
    return Table(f"{tree.device} allocated memory by kind", ("peak", "end"), tuple(rows))


def _module_table(tree: ModuleTree) -> Table:
    title = f"{tree.device} allocated memory by module"
    if not any(getattr(row, name) for row in tree.rows for name in _SIZES):
        reason = f"no module used memory on {tree.device}: the model may be on another device, such as the CPU"
        return Table(title, (), (), (reason, *tree.notes))
    model = _fold(deque(tree.rows))
    shown_modules = _shown_modules(model)
    shown_ids = {id(module) for module in shown_modules}
    columns = ["parameters", "gradients", "optimizer", "activations", "temporary", "peak"]
    if model.row.buffers:
        columns.insert(1, "buffers")
    whole = model.row.peak or 1
    rows = []
    for module in shown_modules:
        row = module.row
        name = module.name or "model"
        count = f" ×{module.count}" if module.count > 1 else ""  # noqa: RUF001 (multiplication sign)
        sizes = [getattr(row, column) for column in columns]
        cells = tuple("-" if nbytes == 0 else precise_size(nbytes) for nbytes in sizes)
        bar = (row.peak or 0) / whole
        rows.append(TableRow(f"{name}: {row.type}{count}", cells, row.depth, note=row.note, bar=bar))
        # the part of the module's peak that no row below includes
        unlisted = any(id(child) in shown_ids for child in module.children) and row.own != row.peak
        if unlisted and row.own and row.own >= whole / 100:
            empty = ("",) * (len(cells) - 1)
            rows.append(TableRow("(itself)", (*empty, precise_size(row.own)), row.depth + 1, bar=row.own / whole))
    notes = [_NOTE, *tree.notes]
    hidden_count = len(tree.rows) - sum(module.count for module in shown_modules)
    if hidden_count:
        notes.insert(0, f"{hidden_count:,} of {len(tree.rows):,} modules are not listed; all are in report.modules")
    return Table(title, (*columns[:-1], "at the peak"), tuple(rows), tuple(notes))


def _shown_modules(model: _FoldedModule) -> list[_FoldedModule]:
    modules = [module for module in model.walk() if module is model or not module.empty]
    level = max(module.row.depth for module in modules)
    while level > 1 and sum(module.row.depth <= level for module in modules) > _MAX_ROWS:
        level -= 1
    shown_modules = [module for module in modules if module.row.depth <= level]
    if len(shown_modules) > _MAX_ROWS:  # hundreds of different layers in one list: show the largest
        largest = {
            id(module) for module in sorted(shown_modules, key=lambda module: -(module.row.peak or 0))[:_MAX_ROWS]
        }
        shown_modules = [module for module in shown_modules if id(module) in largest or module is model]
    return shown_modules


@dataclass(frozen=True, slots=True)
class _FoldedModule:
    """A table row for a module, or for several consecutive modules with the same class, structure and memory usage.

    Attributes:
        name: Name in the parent module, for example ``"attn"``, or ``"0-11"`` for several modules.
        row: Total memory usage of the modules; ``temporary`` is the maximum because the peaks are not simultaneous.
    """

    name: str
    count: int
    row: ModuleRow
    children: tuple[_FoldedModule, ...]

    def walk(self) -> Iterator[_FoldedModule]:
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def empty(self) -> bool:
        return not self.row.note and all(getattr(self.row, name) == 0 for name in _SIZES)


def _fold(rows: deque[ModuleRow]) -> _FoldedModule:
    """Remove the rows of a module and its submodules from the start of ``rows``, and fold similar sibling modules."""
    row = rows.popleft()
    groups: list[list[_FoldedModule]] = []
    while rows and rows[0].depth > row.depth:
        child = _fold(rows)
        previous = groups[-1][-1].name if groups else ""
        follows = previous.isdecimal() and child.name.isdecimal() and int(child.name) == int(previous) + 1
        if follows and _are_similar(groups[-1][0], child):
            groups[-1].append(child)
        else:
            groups.append([child])
    return _FoldedModule(row.path.rpartition(".")[2], 1, row, tuple(map(_merge, groups)))


def _are_similar(first: _FoldedModule, second: _FoldedModule) -> bool:
    return (
        all(getattr(first.row, name) == getattr(second.row, name) for name in ("type", "calls", "note"))
        and all(_is_close(getattr(first.row, name), getattr(second.row, name)) for name in _SIZES if name != "peak")
        and [child.name for child in first.children] == [child.name for child in second.children]
        and all(map(_are_similar, first.children, second.children))
    )


def _is_close(first: int | None, second: int | None) -> bool:
    if first is None or second is None:
        return first is second
    return abs(first - second) <= max(_TOLERANCE, max(first, second) // 1000)


def _merge(group: Sequence[_FoldedModule]) -> _FoldedModule:
    first, last = group[0], group[-1]
    if first is last:
        return first
    totals: dict[str, Any] = {}
    for name in _SIZES:
        values = [getattr(module.row, name) for module in group]
        total = max if name == "temporary" else sum
        totals[name] = None if None in values else total(values)
    return _FoldedModule(
        first.name if first.name == last.name else f"{first.name}-{last.name}",
        sum(module.count for module in group),
        replace(first.row, **totals),
        tuple(_merge(children) for children in zip(*(module.children for module in group), strict=True)),
    )
