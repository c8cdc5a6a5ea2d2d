"""A model's step as tables: its phases, what stood at the peak, the tree of its modules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.units import amount, duration, signed
from ipygpumem.display.table import Table, TableRow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.features.modules.model import ModuleRow, ModuleTree, StepPhase

__all__ = ["module_tables"]

_MOST_ROWS = 60
_REMARK = (
    "parameters to activations: the most at one time; temporary: the most that a forward had and did not keep, "
    "at different times; at the peak: adds up"
)
_KINDS = {
    "forward, temporary": "forward, temporary (gone when it returned)",
    "activations": "activations (kept for backward, and outputs)",
    "recomputed": "computed again in backward",
    "backward": "backward, other (gradients of activations, workspaces)",
    "optimizer": "optimizer, other",
    "other threads": "other threads, meanwhile",
    "not the model's": "not the model's (inputs, loss, anything else)",
}


def module_tables(trees: Iterable[ModuleTree]) -> list[Table]:
    """Three tables a device."""
    return [table for tree in trees for table in (_phases(tree), _parts(tree), _modules(tree))]


def _phases(tree: ModuleTree) -> Table:
    highest = max((phase.peak or 0 for phase in tree.phases), default=0) or 1
    rows = [
        TableRow(
            phase.name,
            (
                f"{phase.times:,}",
                duration(phase.seconds),
                _change(phase.change),
                amount(phase.after),
                _known(phase.peak),
            ),
            1,
            bar=(phase.peak or 0) / highest,
        )
        for phase in tree.phases
    ]
    rows.append(TableRow("all", ("", *_all(tree.phases)), 0))
    header = ("times", "time", "change", "after", "peak")
    return Table(f"{tree.device} by phase", header, tuple(rows))


def _all(phases: tuple[StepPhase, ...]) -> tuple[str, str, str, str]:
    peaks = [phase.peak for phase in phases]
    return (
        duration(sum(phase.seconds for phase in phases)),
        _change(sum(phase.change for phase in phases)),
        "",
        "unknown" if None in peaks else amount(max((peak or 0 for peak in peaks), default=0)),
    )


def _parts(tree: ModuleTree) -> Table:
    whole = max((part.peak for part in tree.parts), default=0) or 1
    rows = [
        TableRow(_KINDS.get(part.kind, part.kind), (amount(part.peak), amount(part.end)), 1, bar=part.peak / whole)
        for part in tree.parts
        if part.peak or part.end
    ]
    for label, (peak, end) in (
        ("rounding by the allocator", tree.rounding),
        ("freed, wait for a stream", tree.pending),
    ):
        if peak or end or peak is None:
            rows.append(TableRow(label, (_known(peak), amount(end)), 1))
    rows.append(TableRow("allocated", (_known(tree.allocated[0]), amount(tree.allocated[1])), 0))
    return Table(f"{tree.device} at its peak and at the end, by kind", ("peak", "end"), tuple(rows))


def _modules(tree: ModuleTree) -> Table:
    shown, hidden = _fitting(tree.rows)
    buffers = any(row.buffers for row in tree.rows)
    header = ("parameters", *(("buffers",) if buffers else ()), "gradients", "optimizer", "activations", "temporary")
    whole = max((row.peak or 0 for row in tree.rows), default=0) or 1
    parents = {tree.rows[place - 1].path for place in range(1, len(tree.rows)) if _below(tree.rows, place)}
    rows = []
    for row in shown:
        cells = (row.parameters, *((row.buffers,) if buffers else ()), row.gradients, row.optimizer)
        texts = (*(_blank(cell) for cell in cells), _blank(row.activations), _blank(row.temporary), _blank(row.peak))
        name = row.path.rpartition(".")[2] or "the model"
        label = f"{name}: {row.type}"
        rows.append(TableRow(label, texts, row.depth, remark=row.note, bar=(row.peak or 0) / whole))
        if row.own and row.path in parents:
            empty = ("",) * (len(texts) - 1)
            rows.append(TableRow("(itself)", (*empty, amount(row.own)), row.depth + 1, bar=row.own / whole))
    remarks = [_REMARK, *tree.notes]
    if hidden:
        remarks.insert(0, f"{hidden:,} modules further inside are counted in those above: report.modules has all")
    return Table(f"{tree.device} by module", (*header, "at the peak"), tuple(rows), tuple(remarks))


def _below(rows: tuple[ModuleRow, ...], place: int) -> bool:
    """Whether a row is a child of the one before it."""
    return rows[place].depth > rows[place - 1].depth


def _fitting(rows: tuple[ModuleRow, ...]) -> tuple[list[ModuleRow], int]:
    """As many levels of the tree as fit a screen, and how many modules are left out; the first two levels always."""
    deepest = max((row.depth for row in rows), default=0)
    while deepest > 1 and sum(row.depth <= deepest for row in rows) > _MOST_ROWS:
        deepest -= 1
    shown = [row for row in rows if row.depth <= deepest]
    if len(shown) > _MOST_ROWS:  # a list of hundreds of layers: the largest, in their order
        largest = {id(row) for row in sorted(shown, key=lambda row: -(row.peak or 0))[:_MOST_ROWS]}
        shown = [row for row in shown if id(row) in largest or row.depth == 0]
    return shown, len(rows) - len(shown)


def _change(count: int) -> str:
    return signed(count) if abs(count) >= 1 << 16 or not count else f"{'+' if count > 0 else '-'}{amount(abs(count))}"


def _known(count: int | None) -> str:
    return "unknown" if count is None else amount(count)


def _blank(count: int | None) -> str:
    """Zeros would hide what there is: a tree has hundreds of cells."""
    return "unknown" if count is None else amount(count) if count else "-"
