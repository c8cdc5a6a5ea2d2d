"""Data classes for changes that reduce the memory usage of a step. All memory sizes are in bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from ipygpumem.core.serialization import Serializable
from ipygpumem.core.tables import Table, TableRepr

if TYPE_CHECKING:
    from ipygpumem.snapshot.scaling.step_predictor import StepPredictor

ChangeKind: TypeAlias = Literal[
    "checkpointing", "accumulation", "optimizer", "loss", "precision", "offloading", "settings", "variables"
]


@dataclass(frozen=True, slots=True)
class PredictedChange(Serializable):
    """A change to the program and the predicted memory usage of the changed step.

    Attributes:
        name: Name of the change, such as ``"checkpoint 6 of 12 blocks"``.
        kind: Kind of the change; None for the step without changes.
        allocated: Predicted peak allocated memory.
        reserved: Predicted peak reserved memory.
        largest: Largest value of the variable `Advice.axis` at which the changed step fits; None if none fits.
        added_time: Additional duration as a fraction of the duration of the forward and backward pass; None if unknown.
        code: Python code that makes the change.
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
    """A changed step whose memory usage is to be predicted.

    Attributes:
        name, kind, added_time, code, note: As in `PredictedChange`.
        step: The changed step.
        parts: For gradient accumulation, the number of parts of the batch; otherwise 1.
        settings: Allocator settings with which the step is replayed; None for the recorded settings.
    """

    name: str
    kind: ChangeKind | None
    step: StepPredictor
    added_time: float | None
    code: str
    note: str = ""
    parts: int = 1
    settings: str | None = None


@dataclass(frozen=True, slots=True)
class ChangeTrial(Serializable):
    """The predicted and the measured peak of one run of the changed step.

    Attributes:
        name: Name of the change.
        size: Size of the step.
        predicted: Predicted peak allocated memory.
        measured: Measured peak allocated memory.
    """

    name: str
    size: tuple[int, ...]
    predicted: int
    measured: int

    @property
    def error(self) -> float:
        """Relative error of the prediction, such as 0.01 if it is 1% too high."""
        return self.predicted / self.measured - 1


@dataclass(frozen=True, slots=True, repr=False)
class Advice(Serializable, TableRepr):
    """Changes that would reduce the memory usage of a step. Iterating over the object yields the changes.

    Attributes:
        size: Size of the step for which the changes are predicted.
        axis: Name of the variable whose largest values are predicted.
        current: Prediction of the step without changes.
        changes: The changes, each with the prediction of the changed step.
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
