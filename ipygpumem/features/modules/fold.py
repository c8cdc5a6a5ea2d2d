"""Folding identical modules: the twelve blocks of a transformer become one row."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ipygpumem.core.units import MIB

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ipygpumem.features.modules.model import ModuleRow

__all__ = ["FoldedModule", "fold_modules"]

_FIGURES = ("parameters", "buffers", "gradients", "optimizer", "activations", "peak", "own", "temporary")
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
    """Build the tree of a model's modules, each listed before its submodules, with identical neighbors folded."""
    queue = deque(rows)
    return _build(queue.popleft(), queue)


def _build(row: ModuleRow, following: deque[ModuleRow]) -> FoldedModule:
    groups: list[list[FoldedModule]] = []
    while following and following[0].depth > row.depth:
        child = _build(following.popleft(), following)
        if groups and _follows(groups[-1][-1].name, child.name) and _alike(groups[-1][0], child):
            groups[-1].append(child)
        else:
            groups.append([child])
    return FoldedModule(row.path.rpartition(".")[2], 1, row, tuple(map(_merge, groups)))


def _follows(previous: str, name: str) -> bool:
    return previous.isdecimal() and name.isdecimal() and int(name) == int(previous) + 1


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
    totals: dict[str, Any] = {}
    for name in _FIGURES:
        values = [getattr(module.row, name) for module in group]
        total = max if name == "temporary" else sum
        totals[name] = None if None in values else total(values)
    return FoldedModule(
        first.name if first.name == last.name else f"{first.name}-{last.name}",
        sum(module.count for module in group),
        replace(first.row, **totals),
        tuple(_merge(children) for children in zip(*(module.children for module in group), strict=True)),
    )
