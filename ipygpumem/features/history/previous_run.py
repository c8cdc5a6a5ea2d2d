"""A cell that ran before, in one sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ipygpumem.core.units import duration, signed
from ipygpumem.display.columns import VISIBLE
from ipygpumem.features.history.model import HOST, Entry, entries

if TYPE_CHECKING:
    from ipygpumem.core.report import Report

__all__ = ["last_run"]

_FIGURES = (("held", "{} held"), ("peak", "peak {}"), ("outside", "outside PyTorch {}"))


def last_run(report: Report, earlier: Report, least: int, *, always: bool = False) -> str | None:
    """What the cell's last run did where this one differs by ``least`` bytes; None where it did the same.

    ``always``: then say that it did the same.
    """
    then = {row.device: row for row in entries(earlier)}
    rows = [(then[row.device], row) for row in entries(report) if row.device in then]
    several = len(rows) > 1
    parts = []
    for old, new in rows:
        if _differs(old, new, least):
            figures = _figures(old, new)
            parts.append(f"{old.device} {figures}" if several else figures)
    where = "last run" if earlier.cell is None else f"last run, In [{earlier.cell}]"
    if parts:
        return f"{where}: {'; '.join(parts)}, {duration(earlier.seconds)}"
    return f"{where}: the same, {duration(earlier.seconds)}" if always and rows else None


def _differs(old: Entry, new: Entry, least: int) -> bool:
    for name, _ in _FIGURES:
        one, other = getattr(old, name), getattr(new, name)
        if None not in {one, other} and abs(one - other) >= max(least, VISIBLE) and _comparable(old, new, name):
            return True
    return False


def _comparable(old: Entry, new: Entry, name: str) -> bool:
    """A bound says nothing of its own run, nor does what is true of the whole card."""
    trusts = {getattr(old, f"{name}_trust", "exact"), getattr(new, f"{name}_trust", "exact")}
    return trusts == {"exact"}


def _figures(old: Entry, new: Entry) -> str:
    words = []
    for name, text in _FIGURES:
        one, other = getattr(old, name), getattr(new, name)
        if one is None or (name == "outside" and old.device == HOST):
            continue
        if max(abs(one), abs(other or 0)) >= VISIBLE and _comparable(old, new, name):
            words.append(text.format(signed(one) if abs(one) >= VISIBLE else "0"))
    return " · ".join(words)
