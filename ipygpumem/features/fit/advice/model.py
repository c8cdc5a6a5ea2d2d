"""Changes that reduce the memory usage of a step. Amounts of memory are in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ipygpumem.core.serialization import Serializable
from ipygpumem.core.tables import Table, TableRepr

if TYPE_CHECKING:
    from ipygpumem.snapshot.scaling.scaled_recording import ScaledStep

ChangeKind: TypeAlias = Literal[
    "checkpointing", "accumulation", "optimizer", "loss", "precision", "offloading", "settings", "variables"
]


@dataclass(frozen=True, slots=True)
class PredictedChange(Serializable):
    """A change to the program, with the predicted memory usage of the changed step.

    Attributes:
        name: The change, such as ``"checkpoint 6 of 12 blocks"``.
        kind: ChangeKind of the change; None for the step without changes.
        allocated: Highest allocated memory.
        reserved: Highest reserved memory.
        largest: Largest size that fits; None if none fits.
        added_time: Additional duration of a step, relative to its forward and backward pass; None if it is unknown.
        code: Code that makes the change.
        note: Side effects of the change, and limits of the prediction.
    """

    name: str
    kind: ChangeKind | None
    allocated: int
    reserved: int
    largest: int | None
    added_time: float | None
    code: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class ChangeCandidate:
    """A changed step to predict. For gradient accumulation, ``parts`` is the number of parts of the batch."""

    name: str
    kind: ChangeKind | None
    step: ScaledStep
    added_time: float | None
    code: str
    note: str = ""
    parts: int = 1
    settings: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeTrial(Serializable):
    """A run of the step with a change.

    Attributes:
        name: Name of the change.
        size: Size of the step.
        predicted: Predicted highest allocated memory.
        measured: Measured highest allocated memory.
    """

    name: str
    size: tuple[int, ...]
    predicted: int
    measured: int

    @property
    def error(self) -> float:
        """Relative error of the prediction."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True, repr=False)
class Advice(Serializable, TableRepr):
    """Iterable of changes that reduce the memory usage of a step.

    Attributes:
        size: Size of the step to which the predictions refer.
        axis: Name of the variable to which the largest sizes refer.
        current: The step without changes.
        changes: The changes.
        notes: Sentences about changes that could not be predicted.
    """

    size: tuple[int, ...]
    axis: str
    current: PredictedChange
    changes: tuple[PredictedChange, ...]
    notes: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[PredictedChange]:
        return iter(self.changes)

    def __len__(self) -> int:
        return len(self.changes)

    def tables(self) -> list[Table]:
        """Return the tables to display."""
        from ipygpumem.features.fit.advice.table import advice_tables

        return advice_tables(self)

    __repr__ = TableRepr.__str__
