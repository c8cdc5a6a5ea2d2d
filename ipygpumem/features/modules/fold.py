"""Folding identical modules: the twelve blocks of a transformer become one row."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ipygpumem.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ipygpumem.features.modules.model import ModuleRow

__all__ = ["FoldedModule", "fold_modules"]

_SUMMED = ("parameters", "buffers", "gradients", "optimizer", "activations", "peak", "own")
_FIGURES = (*_SUMMED, "temporary")
_TOLERANCE = MIB // 20  # smaller differences are not visible in a table that shows MiB


@dataclass(frozen=True, slots=True)
class FoldedModule:
    """A module, or consecutive modules of a list with the same class, structure and memory.

    Attributes:
        name: Its name in its parent: ``"attn"``, or ``"0-11"`` for several.
        count: Number of modules.
        row: The memory of all of them; of ``temporary`` the largest, as they reach it at different times.
        children: Its submodules, folded.
    """

    name: str
    count: int
    row: ModuleRow
    children: tuple[FoldedModule, ...]

    def walk(self) -> Iterator[FoldedModule]:
        """Yield this module and everything inside it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to show: no memory and no note."""
        return not self.row.note and all(getattr(self.row, name) == 0 for name in _FIGURES)


def fold_modules(rows: Sequence[ModuleRow]) -> FoldedModule:
    """Build the tree of a model's modules, with identical neighbours folded.

    Args:
        rows: Every module before its submodules; the first is the model itself.
    """
    return _build(rows, 0)[0]


def _build(rows: Sequence[ModuleRow], index: int) -> tuple[FoldedModule, int]:
    """The module at an index, and the index behind its last submodule."""
    row = rows[index]
    groups: list[list[FoldedModule]] = []
    index += 1
    while index < len(rows) and rows[index].depth > row.depth:
        child, index = _build(rows, index)
        if groups and _continues(groups[-1], child):
            groups[-1].append(child)
        else:
            groups.append([child])
    return FoldedModule(row.path.rpartition(".")[2], 1, row, tuple(map(_merge, groups))), index


def _continues(group: list[FoldedModule], module: FoldedModule) -> bool:
    previous = group[-1].name
    if not (previous.isdecimal() and module.name.isdecimal() and int(module.name) == int(previous) + 1):
        return False
    return _alike(group[0], module)


def _alike(first: FoldedModule, second: FoldedModule) -> bool:
    return (
        all(getattr(first.row, name) == getattr(second.row, name) for name in ("type", "calls", "note"))
        and all(_close(getattr(first.row, name), getattr(second.row, name)) for name in _FIGURES)
        and [child.name for child in first.children] == [child.name for child in second.children]
        and all(map(_alike, first.children, second.children))
    )


def _close(first: int | None, second: int | None) -> bool:
    if first is None or second is None:
        return first is second
    return abs(first - second) <= max(_TOLERANCE, max(first, second) // 1000)


def _merge(group: Sequence[FoldedModule]) -> FoldedModule:
    first, last = group[0], group[-1]
    if first is last:
        return first
    figures = {name: [getattr(module.row, name) for module in group] for name in _FIGURES}
    totals: dict[str, Any] = {name: None if None in values else sum(values) for name, values in figures.items()}
    temporary = figures["temporary"]
    totals["temporary"] = None if None in temporary else max(temporary)
    return FoldedModule(
        first.name if first.name == last.name else f"{first.name}-{last.name}",
        sum(module.count for module in group),
        replace(first.row, **totals),
        tuple(_merge(children) for children in zip(*(module.children for module in group), strict=True)),
    )
