"""Predicted memory usage of a step, and the accuracy of the prediction. Sizes are in bytes."""

from __future__ import annotations

from dataclasses import dataclass

from ipygpumem.core.errors import SnapshotError
from ipygpumem.core.serialization import Serializable

FITS, FITS_AFTER_RELEASE, DOES_NOT_FIT = "fits", "after release", "does not fit"


class PredictionFailedError(SnapshotError):
    """Raised if the memory of a step cannot be predicted from its recordings. The message contains the reason."""


@dataclass(frozen=True, slots=True)
class UnmatchedAllocations(Serializable):
    """Allocations of one line of code that exist in only some of the recordings.

    Attributes:
        line: Label of the line.
        size: Size of the step at which the allocations were recorded.
        count, bytes: Number and total requested size of the allocations.
        share: Maximum fraction of the peak that these allocations account for at this or a larger size.
    """

    line: str
    size: tuple[int, ...]
    count: int
    bytes: int
    share: float


@dataclass(frozen=True, slots=True)
class AllocationDeviation(Serializable):
    """An allocation whose predicted size differs from the recorded size. Both are requested sizes.

    Attributes:
        line: Label of the line of code that allocated the memory.
        predicted, recorded: Predicted size and recorded size.
    """

    line: str
    predicted: int
    recorded: int


@dataclass(frozen=True, slots=True)
class PredictionDeviation(Serializable):
    """Differences between the prediction for a size and the recording of a step of this size.

    Attributes:
        size: Size of the step.
        predicted, recorded: Peaks of the requested bytes.
        difference: Sum of the absolute differences between the sizes of the allocations that exist at a peak, relative
            to their total recorded size. This is the maximum over several predicted peaks: those at the largest
            recorded size and at multiples of this size.
        allocations: Up to 20 allocations whose sizes differ: first allocations that exist at a peak, then the others;
            within both groups, in descending order of the difference.
        unmatched: Allocations that exist only in the prediction or only in the recording.
    """

    size: tuple[int, ...]
    predicted: int
    recorded: int
    difference: float
    allocations: tuple[AllocationDeviation, ...]
    unmatched: tuple[UnmatchedAllocations, ...]

    @property
    def error(self) -> float:
        """Absolute value of `peak_error`, or `difference` if that is larger."""
        return max(abs(self.peak_error), self.difference)

    @property
    def peak_error(self) -> float:
        """Difference between the peaks, relative to the recorded peak; positive if the prediction is too high.

        The value is 0 if the recorded peak is 0.
        """
        return (self.predicted - self.recorded) / self.recorded if self.recorded else 0.0


@dataclass(frozen=True, slots=True)
class PredictionPiece(Serializable):
    """Range of sizes of the step in which the peak occurs at the same event.

    Attributes:
        first, last: Smallest and largest size of the range.
        bytes: Requested bytes at this event, extrapolated to a size of 0; None if they are not linear in the size.
        bytes_per_unit: Growth of the requested bytes per unit of the size, on average from ``first`` to ``last``.
        phase: Phase of the step: ``"forward"``, ``"backward"`` or ``"optimizer"``; empty before the first event.
        line: Label of the innermost line of user code that ran; empty before the first event.
        coefficients: Coefficients of the polynomial in the size that gives the requested bytes at this event, constant
            first; empty if the requested bytes are not a polynomial.
    """

    first: int
    last: int
    bytes: int | None
    bytes_per_unit: float
    phase: str
    line: str
    coefficients: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Prediction(Serializable):
    """Predicted memory usage of a step at one size, including all memory that is allocated before the step.

    If the step is repeated, ``allocated`` and ``reserved`` are the maximums over several consecutive runs.

    Attributes:
        size: Size of the step.
        capacity: Limit on reserved memory; None for no limit.
        requested, allocated, reserved: Peaks of the requested bytes, of the allocated memory and of reserved memory.
        outcome: ``"fits"``; ``"after release"`` if PyTorch must free cached segments first, which is slow; or ``"does
            not fit"``, in which case ``allocated`` and ``reserved`` are the peaks without a limit.
        retries: Number of requests that are tried again after all cached segments are freed.
        missing: Bytes by which the failing request exceeds the limit; 0 if the step fits.
        left: Change in the requested bytes from the start to the end of the step.
        phase, line: Phase and line of code at the peak of the requested bytes, as in `PredictionPiece`.
    """

    size: tuple[int, ...]
    capacity: int | None
    requested: int
    allocated: int
    reserved: int
    outcome: str
    retries: int
    missing: int
    left: int
    phase: str
    line: str
