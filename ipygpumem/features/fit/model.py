"""Predictions of the memory usage of a step. Amounts of memory are in bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from ipygpumem.core.errors import OptionError
from ipygpumem.core.serialization import Serializable
from ipygpumem.core.tables import Table, TableRepr
from ipygpumem.features.fit.advice.model import Advice, ChangeTrial
from ipygpumem.features.fit.axes import Size, SizeAxis
from ipygpumem.snapshot.scaling.results import Prediction, PredictionPiece

if TYPE_CHECKING:
    from ipygpumem.features.fit.advice.advisor import Advisor
    from ipygpumem.snapshot.queries.groups import Group

ProbeRole: TypeAlias = Literal["warm-up", "fit", "again", "check", "verification"]


@dataclass(frozen=True, slots=True)
class Probe(Serializable):
    """A run of the step at a small size.

    Attributes:
        size: Size of the step.
        role: ``"fit"`` for a run that determines the prediction, ``"again"`` for the second run at the smallest size,
            ``"check"`` for a larger run that was predicted first, and ``"verification"`` for the largest run.
        allocated: Highest allocated memory of the process on the device.
        reserved: Highest reserved memory.
        predicted: Predicted highest allocated memory; None if the run was not predicted.
    """

    size: Size
    role: ProbeRole
    allocated: int
    reserved: int
    predicted: int | None = None

    @property
    def error(self) -> float | None:
        """Relative error of the prediction; None if the run was not predicted."""
        return None if self.predicted is None else self.predicted / self.allocated - 1


@dataclass(frozen=True, slots=True)
class SizeCombination(Serializable):
    """Largest values of the first variable for one value of the second.

    Attributes:
        size: Value of the second variable.
        largest: Largest value of the first variable that fits; None if none fits.
        recommended: Largest value that leaves the margin free; None if there is none.
        reserved: Highest reserved memory at the recommended value.
    """

    size: int
    largest: int | None
    recommended: int | None
    reserved: int | None


@dataclass(frozen=True, slots=True, repr=False)
class Fit(Serializable, TableRepr):
    """Prediction of the memory usage of a step, from runs at small sizes.

    Attributes:
        step: The statement or the name of the function.
        axes: Variables whose values determine the size.
        device: Name of the device, such as ``"cuda:0"``.
        label: Product name of the device, followed by the memory of another GPU if the prediction is for that GPU.
        capacity: Memory that PyTorch can use on the device, including the memory that it has reserved.
        margin: Share of the capacity that remains free at the recommended size.
        largest: Largest size that fits without PyTorch having to free its cache; None if none fits or it is unknown.
        recommended: Largest size that leaves the margin free.
        after_release: Largest size that fits once PyTorch has freed cached memory, which is slow.
        probes: Runs of the step.
        pieces: Ranges of sizes in which the peak occurs at the same event.
        combinations: With two variables, the largest sizes of the first for several values of the second.
        trials: Runs with changes.
        refusal: Reason why nothing is predicted; empty if there is none.
        notes: Sentences about side effects of the runs that were not undone, and about limits of the prediction.
        estimated: Whether the step was run without data, so that all values are estimates.
    """

    step: str
    axes: tuple[SizeAxis, ...]
    device: str
    label: str
    capacity: int | None
    margin: float
    largest: int | None = None
    recommended: int | None = None
    after_release: int | None = None
    probes: tuple[Probe, ...] = ()
    pieces: tuple[PredictionPiece, ...] = ()
    combinations: tuple[SizeCombination, ...] = ()
    trials: tuple[ChangeTrial, ...] = ()
    refusal: str = ""
    notes: tuple[str, ...] = ()
    estimated: bool = False
    _advisor: Advisor | None = field(default=None, metadata={"key": None}, compare=False)

    written_properties = ("error",)

    @property
    def error(self) -> float | None:
        """Largest relative error of the predictions that were checked; None if none was checked."""
        errors = [abs(probe.error) for probe in self.probes if probe.error is not None]
        return max(errors, default=None)

    @property
    def fits(self) -> bool:
        """Whether the step fits at any size."""
        return self.largest is not None or any(item.largest is not None for item in self.combinations)

    def predict(self, *size: int) -> int:
        """Return the highest allocated memory of the process while the step runs at a size.

        The result includes memory that was allocated before the step.

        Raises:
            OptionError: Nothing is predicted, or the size is invalid.
        """
        return self._prediction(size).allocated

    def reserved(self, *size: int) -> int:
        """Return the highest reserved memory while the step runs at a size. Raises the same errors as `predict`."""
        return self._prediction(size).reserved

    def breakdown(self, *size: int, by: str = "line") -> tuple[Group, ...]:
        """Return the memory at the peak by line of code, largest first.

        If the prediction is an estimate, ``by`` can also be ``"module"``, or ``"phase"`` for parameters, gradients, the
        optimizer's state, and the tensors of the forward pass and the backward pass.

        Raises:
            OptionError: Nothing is predicted, or the size or ``by`` is invalid.
        """
        keys = {"line": "line", **({"module": "metadata", "phase": "context"} if self.estimated else {})}
        if by not in keys:
            raise OptionError(f"the breakdown by {by!r} is not available: choose from {', '.join(keys)}")
        return self._require_advisor().scaled.breakdown(size, keys[by])

    def advice(self, *size: int) -> Advice:
        """Predict how changes to the program would reduce the memory usage at a size.

        The default is the largest size that fits, or the smallest size if none fits. The first call runs the step at
        small sizes, with autocast and with saved tensors in host memory, and restores its state as `fit` does.
        Raises the same errors as `predict`.
        """
        size = size or self._largest_size()
        self._prediction(size)  # checks the size
        return self._require_advisor().advice(size)

    def _largest_size(self) -> Size:
        fitting = [item for item in self.combinations if item.largest is not None]
        if fitting:
            return fitting[-1].largest or 1, fitting[-1].size
        return (self.largest or self.axes[0].first, *(axis.first for axis in self.axes[1:]))

    def tables(self) -> list[Table]:
        """Return the tables to display."""
        from ipygpumem.features.fit.table import fit_tables

        return fit_tables(self)

    def _prediction(self, size: Size) -> Prediction:
        return self._require_advisor().scaled.predict(size)

    def _require_advisor(self) -> Advisor:
        if self._advisor is None:
            raise OptionError(f"the memory usage of {self.step} cannot be predicted: {self.refusal}")
        return self._advisor

    __repr__ = TableRepr.__str__
