"""From nvidia-smi's number down to PyTorch's ``memory_allocated``, step by step: every byte between them has a line.

A waterfall is totals with parts between them; what stands between two totals is their difference, to the byte. What
nobody can name is a part of its own, and so is what is counted twice (below zero).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from ipygpumem.core.grade import Grade, grade
from ipygpumem.core.units import size

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ipygpumem.core.reading import HostReading

__all__ = ["RETURNABLE", "SHOWS", "TWICE", "Kind", "Step", "Waterfall", "host_waterfall"]

Kind = Literal["total", "driver", "others", "unattributed", "outside", "cache", "tensors"]
"""Whose a step's bytes are: the colour of its bar. ``total``: no part, but what is left so far."""

SHOWS = "nvidia-smi shows"
TWICE = "in two entries at once"
RETURNABLE = "cached, can go back"
_WORDS: dict[Kind, str] = {
    "others": "of other processes",
    "unattributed": "in nobody's entry",
    "outside": "of this process outside PyTorch",
    "cache": "of PyTorch's cache",
}
_HOST_WORDS = {"others": "of other processes and the system", "outside": "of this process beside them"}
_VISIBLE = 0.05 * (1 << 20)


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a waterfall.

    Attributes:
        label: What it is.
        kind: Whose.
        amount: Bytes; None where nobody can tell.
        grade: The trust in them.
        todo: What can be done about it, in a few words; empty where nothing can.
        remark: What else is to be known.
    """

    label: str
    kind: Kind
    amount: int | None
    grade: Grade
    todo: str = ""
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Waterfall:
    """One device at one instant.

    Attributes:
        device: Its name; ``host`` for main memory.
        label: The card's name.
        steps: Totals, the largest first, with the parts between them.
        notes: What the reader should know.
    """

    device: str
    label: str
    steps: tuple[Step, ...]
    notes: tuple[str, ...] = ()

    @property
    def totals(self) -> list[Step]:
        """The levels, from the whole card down to the tensors."""
        return [step for step in self.steps if step.kind == "total"]

    @property
    def imbalance(self) -> int:
        """Bytes by which totals and parts do not add up: 0, where every total is known."""
        places = [i for i, step in enumerate(self.steps) if step.kind == "total" and step.amount is not None]
        off = 0
        for start, end in pairwise(places):
            parts = sum(step.amount or 0 for step in self.steps[start + 1 : end])
            off += abs((self.steps[start].amount or 0) - parts - (self.steps[end].amount or 0))
        return off

    @property
    def words(self) -> str:
        """The whole in two sentences."""
        end = self.steps[-1]
        start = next((step for step in self.steps if step.label == SHOWS), self.steps[0])
        for step in (start, end):
            if step.amount is None:
                return f"{self.device}: {step.label}: unknown ({step.grade.reason})"
        text = f"{self.device}: {start.label} {_size(start)}, and {_size(end)} of it are {end.label}."
        parts = self.steps[self.steps.index(start) + 1 :]
        sums = {kind: sum(step.amount or 0 for step in parts if step.kind == kind) for kind in _WORDS}
        said = [self._said(kind, amount) for kind, amount in sums.items() if abs(amount) >= _VISIBLE]
        back = next((step for step in parts if step.label == RETURNABLE), None)
        if back is not None and said:
            said[-1] += f", of which torch.cuda.empty_cache() gives back {_size(back)}"
        return f"{text} Between them: {'; '.join(said)}." if said else f"{text} There is nothing between them."

    def _said(self, kind: Kind, amount: int) -> str:
        if kind == "unattributed" and amount < 0:
            return f"{size(-amount)} {TWICE}"
        return f"{size(amount)} {self._whose(kind)}"

    def _whose(self, kind: Kind) -> str:
        if kind == "outside" and any(step.grade.trust == "device" for step in self.steps):
            return "outside PyTorch, of this process or of others"
        return _HOST_WORDS.get(kind, "") if self.device == "host" else _WORDS[kind]

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "words": self.words}


def _size(step: Step) -> str:
    return size(step.amount or 0)


def host_waterfall(reading: HostReading, tensors: int | None, why: str, notes: Iterable[str] = ()) -> Waterfall:
    """Main memory: from what the machine has given away to this process's tensors on the CPU, where there is no GPU.

    Args:
        reading: The host, with what is available.
        tensors: Bytes of the tensors' storages; None where they cannot be counted.
        why: Why not.
        notes: What else is to be known.
    """
    steps = []
    own = grade("exact", "resident memory of this process")
    if reading.total is not None and reading.available is not None:
        used, kernel = reading.total - reading.available, grade("derived", "the machine's memory that is not available")
        steps.append(Step("machine used", "total", used, kernel))
        if reading.rss is not None:
            rest = grade("derived", "what is left; shared pages count with each process")
            steps.append(Step("other processes and the system", "others", used - reading.rss, rest))
    trust = own if reading.rss is not None else grade("unknown", "this system does not tell")
    steps.append(Step("this process (RSS)", "total", reading.rss, trust))
    if tensors is None:
        return Waterfall("host", "main memory", tuple(steps), (*notes, f"tensors are not counted: {why}"))
    if reading.rss is not None:
        left = reading.rss - tensors
        if left >= 0:
            rest = grade("derived", "what is left: the interpreter, libraries, NumPy arrays, whatever Python keeps")
            steps.append(Step("everything else in it", "outside", left, rest))
        else:
            rest = grade("derived", "tensors whose pages nobody has written yet are not resident")
            steps.append(Step("not resident", "outside", left, rest))
    bound = grade("bound", "storages whole, as far as the walk found them; pages nobody wrote take no memory")
    holder = "%gpumem who --host names the holders"
    steps.append(Step("tensors in main memory", "total", tensors, bound if tensors else own, holder))
    return Waterfall("host", "main memory", tuple(steps), tuple(notes))
