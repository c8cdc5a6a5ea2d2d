"""Prediction of the memory of a step from recordings of the step at small sizes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ipygpumem.core.errors import OptionError
from ipygpumem.snapshot.replay.verification import ReplayError
from ipygpumem.snapshot.scaling.fitting import MatchedRecordings, Run
from ipygpumem.snapshot.scaling.judgment import choose_model, find_reasons
from ipygpumem.snapshot.scaling.results import Misfit, PredictionError
from ipygpumem.snapshot.scaling.scaled_step import ScaledStep, check_size
from ipygpumem.snapshot.scaling.sequence import StepSequence
from ipygpumem.snapshot.scaling.size_model import SizeModel
from ipygpumem.snapshot.scaling.start_state import StartState
from ipygpumem.snapshot.scaling.step import StepRecording
from ipygpumem.snapshot.snapshot_data import SnapshotData


class ScaledRecording(ScaledStep):
    """A step at any size, predicted from recordings at small sizes. Create it with `from_recordings`.

    Attributes:
        misfits: Comparison of the predictions with each of the recordings.
        reasons: Reasons for not trusting the predictions, as complete sentences; empty if there are none.
    """

    def __init__(self, matched: MatchedRecordings, model: SizeModel, sequence: StepSequence) -> None:
        super().__init__(model, sequence)
        self._matched = matched
        self.misfits = matched.misfits(model)
        self.reasons = find_reasons(matched, model, self.misfits)

    @classmethod
    def from_recordings(
        cls,
        recordings: Iterable[tuple[int | Sequence[int], SnapshotData | StepRecording]],
        axis: str | Sequence[str] = "automatic",
        state: StartState | None = None,
    ) -> ScaledRecording:
        """Predict a step from recordings of the step at small sizes.

        Args:
            recordings: Sizes and recordings. Two sizes are needed for each axis, three for a quadratic one; for two
                axes, all their combinations. The other recordings check the prediction; two recordings of the same size
                show whether the step repeats its allocations.
            axis: How the sizes of allocations grow: ``"linear"``; ``"quadratic"``, as for the length of a sequence; or
                ``"automatic"`` for quadratic only if four sizes were recorded that are not on a line. A sequence
                contains one of these for each axis.
            state: The state from which the step will start; by default the state after the last of ``recordings``.

        Raises:
            OptionError: An argument is invalid, or sizes are missing.
            PredictionError: The step cannot be predicted. This includes recordings that cannot be replayed.
        """
        runs: list[Run] = [(check_size(size), _as_step(recording)) for size, recording in recordings]
        if not runs or len({len(size) for size, _ in runs}) > 1:
            raise OptionError("recordings of a step at several sizes are needed, with the same number of axes")
        matched = MatchedRecordings(runs)
        model = choose_model(matched, axis)
        last = runs[-1][1]
        try:
            sequence = StepSequence(matched.step, state or StartState.at(last.snapshot, last.device, last.last))
        except ReplayError as error:
            raise PredictionError(str(error)) from None
        return cls(matched, model, sequence)

    def misfit(self, size: int | Sequence[int], recording: SnapshotData | StepRecording) -> Misfit:
        """Compare the prediction for a size with a recording of the step at this size."""
        return self._matched.misfit(self.model, (self._check(size), _as_step(recording)))

    def at(self, axis: int, size: int) -> ScaledStep:
        """Return the step with a fixed size on one of several axes. Its sizes are those on the other axes."""
        axes = len(self.model.nodes)
        if axes == 1 or not 0 <= axis < axes:
            raise OptionError(f"axis {axis!r} cannot be fixed: the recordings have {axes} axes, numbered from 0")
        return ScaledStep(self.model.at(axis, *check_size(size)), self.sequence)


def _as_step(recording: SnapshotData | StepRecording) -> StepRecording:
    return recording if isinstance(recording, StepRecording) else StepRecording(recording)
