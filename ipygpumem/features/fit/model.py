"""Data classes for predictions of the memory usage of a step. All memory sizes are in bytes."""

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
class ProbeRun(Serializable):
    """The peak memory usage of one recorded run of the step.

    Attributes:
        size: Size of the step.
        role: ``"fit"`` for a run that determines the prediction, including a failed check; ``"again"`` for the second
            recorded run at the smallest size that was run; ``"check"`` for a run that checks the prediction; and
            ``"verification"`` for a final check at or near the largest size that the allowed memory permits. The
            warm-up run, which precedes these runs, is not recorded.
        allocated: Peak allocated memory of the process on the device.
        reserved: Peak reserved memory of the process on the device.
        predicted: Predicted peak allocated memory; None for the roles ``"fit"`` and ``"again"``.
    """

    size: Size
    role: ProbeRole
    allocated: int
    reserved: int
    predicted: int | None = None

    @property
    def error(self) -> float | None:
        """Relative error of `predicted`, such as 0.01 if it is 1% too high; None if `predicted` is None."""
        return None if self.predicted is None else self.predicted / self.allocated - 1


@dataclass(frozen=True, slots=True)
class SizeCombination(Serializable):
    """The largest values of the first size variable that fit for one value of the second size variable.

    Attributes:
        size: Value of the second variable.
        largest: Largest value of the first variable that fits; None if none fits.
        recommended: Largest value of the first variable that leaves the margin free; None if there is none.
        reserved: Predicted peak reserved memory at the recommended value; None if ``recommended`` is None.
    """

    size: int
    largest: int | None
    recommended: int | None
    reserved: int | None


@dataclass(frozen=True, slots=True, repr=False)
class Fit(Serializable, TableRepr):
    """Prediction of the memory usage of a step, based on runs at small sizes.

    Attributes:
        step: The statement or the name of the function that runs the step.
        axes: Variables whose values determine the size of the step.
        device: Name of the device, such as ``"cuda:0"``; ``"GPU"`` for an estimate for a GPU given by its memory.
        label: Product name of the device, followed by the memory of another GPU if the prediction is for that GPU.
        capacity: Memory that PyTorch can use on the device, including the memory that it has reserved; None if it is
            unknown.
        margin: Share of the capacity that remains free at the recommended size.
        largest: Largest size that fits without PyTorch having to free its cache; None if no size fits, the result is
            unknown, or there are two variables.
        recommended: Largest size that leaves the margin free; None if there is no such size, the result is unknown, or
            there are two variables.
        after_release: Largest size that fits if PyTorch frees its cache when necessary, which is slow; None if no size
            fits, the result is unknown, or there are two variables.
        probes: The runs of the step and their peaks.
        pieces: Ranges of sizes in which the peak occurs at the same allocation; empty for two variables.
        combinations: For several values of the second variable, the largest values of the first; empty for a single
            variable.
        trials: Runs of the step with changes that `advice` suggests.
        refusal: Reason why the memory usage cannot be predicted; an empty string if it can be predicted.
        notes: Sentences about side effects of the runs and about limits of the prediction.
        estimated: Whether the step was run on fake tensors, so that all values are estimates.
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
    probes: tuple[ProbeRun, ...] = ()
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
        """Largest absolute value of the relative errors of `probes`; None if all these errors are None."""
        errors = [abs(probe.error) for probe in self.probes if probe.error is not None]
        return max(errors, default=None)

    @property
    def fits(self) -> bool:
        """Whether the step fits at one or more sizes without PyTorch having to free its cache; False if unknown."""
        return self.largest is not None or any(item.largest is not None for item in self.combinations)

    def predict(self, *size: int) -> int:
        """Return the predicted peak allocated memory of the process at a size, in bytes.

        The result includes memory that was allocated before the step.

        Args:
            size: Value of each variable in `axes`.

        Raises:
            OptionError: The memory usage cannot be predicted, or the size is invalid.
        """
        return self._prediction(size).allocated

    def reserved(self, *size: int) -> int:
        """Return the predicted peak reserved memory of the process at a size, in bytes.

        Arguments and errors are the same as for `predict`.
        """
        return self._prediction(size).reserved

    def breakdown(self, *size: int, by: str = "line") -> tuple[Group, ...]:
        """Return the predicted memory at the peak, grouped by line of code, module or phase, largest group first.

        Args:
            size: Value of each variable in `axes`.
            by: ``"line"``. If the prediction is an estimate, also ``"module"``, or ``"phase"`` for parameters,
                gradients, the optimizer's state, and the tensors of the forward pass and the backward pass.

        Raises:
            OptionError: The memory usage cannot be predicted, or the size or ``by`` is invalid.
        """
        keys = {"line": "line", **({"module": "metadata", "phase": "context"} if self.estimated else {})}
        if by not in keys:
            raise OptionError(f"the breakdown by {by!r} is not available: choose from {', '.join(keys)}")
        # existing tensors of an estimate, such as parameters, have no call stack
        without_stack = "context" if self.estimated and by == "line" else None
        return self._require_advisor().scaled.breakdown(size, keys[by], without_stack)

    def advice(self, *size: int) -> Advice:
        """Predict how changes to the program would reduce the memory usage at a size.

        The first call runs the step at small sizes in context managers that can reduce its memory usage, such as
        autocast. Afterwards, the state of the step is restored as by `fit`.

        Args:
            size: Value of each variable in `axes`. The default is the largest size that fits (for two variables, the
                one with the largest value of the second variable), or the smallest size if none fits.

        Raises:
            OptionError: The memory usage cannot be predicted, the size is invalid, or this object was unpickled.
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
