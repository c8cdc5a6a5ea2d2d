"""Prediction of the memory usage of a step at any size, from recordings of the step at small sizes."""

from __future__ import annotations

import copy
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ipygpumem.core.errors import OptionError
from ipygpumem.core.units import GIB, many, parse_size
from ipygpumem.snapshot.model.timeline import Ints
from ipygpumem.snapshot.queries.groups import Group, group_rows, merge_groups
from ipygpumem.snapshot.replay.recording import Recording, ReplayError
from ipygpumem.snapshot.replay.run import ReplayRun
from ipygpumem.snapshot.scaling import results
from ipygpumem.snapshot.scaling.consecutive_runs import ConsecutiveRuns, replay_outcome
from ipygpumem.snapshot.scaling.growth_bounds import bounded_sizes, confirmed_growth
from ipygpumem.snapshot.scaling.matching import MatchedRecordings, Run
from ipygpumem.snapshot.scaling.prediction_checks import choose_model, find_notes, find_reasons
from ipygpumem.snapshot.scaling.retained_blocks import find_retained_blocks
from ipygpumem.snapshot.scaling.size_model import Floats, Size, SizeModel, check_size, polynomial
from ipygpumem.snapshot.scaling.step import StepRecording
from ipygpumem.snapshot.scaling.step_requests import CreatedBlocks, InitialState, StepRequests
from ipygpumem.snapshot.snapshot_data import SnapshotData

MAX_SIZE = 1 << 20  # largest size that is considered by default
_MAX_BYTES = 1 << 46  # largest peak that can be replayed, because addresses are limited
_FIRST_INTERVAL = 1 / 64  # first interval of the search for the largest size that fits, as a share of the size
_ROUNDING = 1.0  # bytes by which rounding may change the predicted requested bytes at an event

SizeOrValue: TypeAlias = int | Sequence[int]


class StepPredictor:
    """Predictor of the memory usage of a step at any size.

    A size is an integer, or a tuple with one integer per axis, such as ``(batch, length)``.

    Attributes:
        model: Sizes of the allocations as functions of the size of the step.
        step_requests: Allocations and frees of the step.
        keeps_state: Whether the step starts with the recorded segments. Otherwise, everything that exists before the
            step is allocated first, as in a new process.
    """

    def __init__(self, model: SizeModel, step_requests: StepRequests, *, keeps_state: bool = True) -> None:
        self.model = model
        self.step_requests = step_requests
        self.keeps_state = keeps_state
        self._runs = ConsecutiveRuns(step_requests)
        self._outcomes: dict[tuple[Any, ...], str] = {}

    def predict(
        self, size: SizeOrValue, capacity: int | str | None = None, settings: str | None = None
    ) -> results.Prediction:
        """Predict the memory usage of the step by replaying its requests, or those of several runs if it is repeated.

        ``capacity``: Limit on reserved memory, in bytes or as a string such as ``"24 GiB"``; None for no limit.
        ``settings``: Allocator settings in the format of ``PYTORCH_ALLOC_CONF``; by default the recorded settings.
        Raises `OptionError` if an argument is invalid or the step needs 64 TiB or more.
        """
        limit = None if capacity is None else parse_size(capacity)
        sizes, levels, event = self._sizes_levels_and_peak_event(size)
        if (requested := int(levels.max())) >= _MAX_BYTES:
            text = " by ".join(f"{value:,}" for value in check_size(size))
            raise OptionError(f"the size {text} is too large: the step needs {_MAX_BYTES // GIB:,} GiB or more")
        result = self._replay(sizes, limit, settings)
        outcome, retries, missing_bytes = replay_outcome(result), result.allocator.retries, 0
        if (failure := result.failure) is not None:
            missing_bytes = failure.reserved + failure.segment - (limit or 0)
            result = self._replay(sizes, None, settings)
        phase, line = self.step_requests.position(event)
        return results.Prediction(
            size=self._check(size),
            capacity=limit,
            requested=requested,
            allocated=int(result.allocated().max()),
            reserved=result.allocator.peak,
            outcome=outcome,
            retries=retries,
            missing=missing_bytes,
            left=int(levels[-1] - levels[0]),
            phase=phase,
            line=line,
        )

    def allocated(self, size: SizeOrValue, limit: int, sizes: Ints | None = None) -> int:
        """Return the peak of the allocated bytes with the predicted or given sizes; above ``limit``, a lower bound."""
        sizes = self.model.sizes(self._check(size)) if sizes is None else sizes
        requested = int((self.step_requests.base + self.step_requests.levels(sizes)).max())
        return requested if requested > limit else int(self._replay(sizes, None, None).allocated().max())

    def events(self, size: SizeOrValue) -> Recording:
        """Return a recording of the requests of the step, or of several runs of the step if it is repeated."""
        return self._runs.with_sizes(self.model.sizes(self._check(size)))

    def largest(
        self,
        capacity: int | str,
        margin: float = 0.0,
        *,
        first: int = 1,
        last: int = MAX_SIZE,
        after_release: bool = False,
        settings: str | None = None,
    ) -> int | None:
        """Return the largest tested size at which the step fits; None if the step does not fit at size ``first``.

        At this size, the step fits even if the sizes of irregular workspaces are at their upper bounds. The step may
        also fit at a larger size that was not tested, because reserved memory can be lower at a larger size.

        ``capacity``, ``settings``: As in `predict`. ``margin``: Fraction of the capacity that must remain unused.
        ``first``, ``last``: Smallest and largest size to consider.
        ``after_release``: Whether to include sizes that fit only after PyTorch frees cached segments.
        """
        limit = int(parse_size(capacity) * (1 - margin) * (1 - self.model.reserved_error))
        accepted = (results.FITS, results.FITS_AFTER_RELEASE) if after_release else (results.FITS,)
        bounds: list[Floats | float] = [self.model.high, *([1.0] if np.any(self.model.high > 1) else [])]

        def outcome(size: int, number: int) -> str:
            key = size, limit, settings, number
            if key not in self._outcomes:
                sizes = self.model.sizes(self._check(size), bounds[number])
                self._outcomes[key] = replay_outcome(self._replay(sizes, limit, settings))
            return self._outcomes[key]

        def fits(size: int) -> bool:
            return all(outcome(size, number) in accepted for number in range(len(bounds)))

        def exceeds_limit(size: int) -> bool:  # without a replay, which takes much longer
            return bool(self._sizes_levels_and_peak_event(size, self.model.high)[1].max() > limit)

        failing = first + bisect_left(range(first, last + 1), True, key=exceeds_limit)
        if failing == first:
            return None
        fitting, interval = failing - 1, max(int(failing * _FIRST_INTERVAL), 1)
        while not fits(fitting):
            if fitting == first:
                return None
            failing, fitting, interval = fitting, max(fitting - interval, first), 2 * interval
        while failing - fitting > 1:
            middle = (fitting + failing) // 2
            fitting, failing = (middle, failing) if fits(middle) else (fitting, middle)
        return fitting

    def pieces(self, first: int = 1, last: int = MAX_SIZE) -> tuple[results.PredictionPiece, ...]:
        """Divide the sizes from ``first`` to ``last`` into ranges in which the peak occurs at the same event."""
        self._check(first)
        degree = self.model.coefficients.shape[1] - 1

        def levels(size: int) -> Floats:
            values: Floats = self.step_requests.base + self.step_requests.levels(self.model.exact_sizes((size,)))
            return values

        result: list[results.PredictionPiece] = []
        size = first
        while size <= last:
            now = levels(size)
            highest = np.flatnonzero(now >= now.max() - _ROUNDING)
            event = int(highest[np.argmax(levels(last)[highest])])
            end, beyond = size, last + 1
            while beyond - end > 1:
                middle = (end + beyond) // 2
                at = levels(middle)
                end, beyond = (middle, beyond) if at[event] >= at.max() - _ROUNDING else (end, middle)
            span = max(end - size, 1)
            growth = float(levels(size + span)[event] - now[event]) / span
            constant = round(float(now[event]) - growth * size) if degree == 1 else None
            coefficients = polynomial(levels, event, size, end, degree)
            place = self.step_requests.position(event - 1)
            result.append(results.PredictionPiece(size, end, constant, growth, *place, coefficients))
            size = end + 1
        return tuple(result)

    def breakdown(self, size: SizeOrValue, key: str = "line", no_stack: str | None = None) -> tuple[Group, ...]:
        """Return the allocations at the predicted peak for a size, grouped by a key of `KEYS`, largest group first.

        ``no_stack``: Key for memory that was allocated before the step without a call stack; by default ``key``.
        """
        sizes, _, event = self._sizes_levels_and_peak_event(size)
        step, state = self.step_requests.step, self.step_requests.state
        live, blocks = self.step_requests.live(event)
        older, timeline = state.state.blocks["row"][blocks], state.recording.timeline
        has_stack = np.append(state.snapshot.stacks.leaf, -1)[timeline.allocations.stack[older]] >= 0
        groups = list(group_rows(step.snapshot, step.timeline, step.rows[live], key, sizes[live]))
        for rows, by in ((older[has_stack], key), (older[~has_stack], no_stack or key)):
            groups += group_rows(state.snapshot, timeline, rows, by)
        return merge_groups(groups)

    def _sizes_levels_and_peak_event(self, size: SizeOrValue, factors: Floats | float = 1.0) -> tuple[Ints, Ints, int]:
        """Return the sizes of the allocations, the levels (see `StepRequests.levels`), and the event of the peak."""
        sizes = self.model.sizes(self._check(size), factors)
        levels = self.step_requests.base + self.step_requests.levels(sizes)
        return sizes, levels, int(np.argmax(levels)) - 1

    def _replay(self, sizes: Ints, limit: int | None, settings: str | None) -> ReplayRun:
        return self._runs.replay(sizes, limit=limit, settings=settings, keeps_state=self.keeps_state)

    def _check(self, size: SizeOrValue) -> Size:
        checked = check_size(size)
        if len(checked) != (axes := len(self.model.nodes)):
            raise OptionError(f"the size {size!r} must have {many(axes, 'value')}, like the recorded sizes")
        return checked


class RecordedStepPredictor(StepPredictor):
    """Predictor of a step that was recorded at small sizes, created by `from_recordings`.

    Attributes:
        matched: Recordings from which the step is predicted.
        is_confirmed: Result of `confirmed_growth`.
        deviations: Comparisons of the predictions with each of the recordings.
        reasons: Reasons why the predictions are unreliable, as complete sentences; empty if there are none.
        notes: Sentences about assumptions that the recordings do not confirm.
    """

    def __init__(
        self, matched: MatchedRecordings, model: SizeModel, step_requests: StepRequests, others: Iterable[Run] = ()
    ) -> None:
        super().__init__(model, step_requests)
        self.matched, self.is_confirmed = matched, confirmed_growth(matched, model, others)
        self.deviations = matched.deviations(model)
        self.reasons = find_reasons(matched, model, self.deviations)
        self.notes = find_notes(matched, model)

    @classmethod
    def from_recordings(
        cls,
        recordings: Iterable[tuple[SizeOrValue, SnapshotData | StepRecording]],
        axis: str | Sequence[str] = "automatic",
        state: InitialState | None = None,
        runs: Iterable[tuple[Size, StepRecording]] = (),
    ) -> RecordedStepPredictor:
        """Create a predictor from recordings of the step at small sizes.

        Args:
            recordings: Sizes and recordings. Two sizes are required for a linear axis, three for a quadratic axis,
                and all combinations of these sizes. The other recordings check the prediction; two recordings of the
                same size show whether the step repeats its allocations.
            axis: How the sizes of allocations grow: ``"linear"``; ``"quadratic"``, as for the length of a sequence; or
                ``"automatic"``: quadratic or cubic if linear does not fit and four or five sizes were recorded. For
                several axes, a sequence of these strings is also accepted.
            state: State from which the step will start; by default the state after the last of ``recordings``.
            runs: All runs of the step up to ``state``, in order, if there were no other runs in between.

        Raises:
            OptionError: An argument is invalid, or sizes are missing.
            PredictionFailedError: The step cannot be predicted, for example because a recording cannot be replayed.
        """
        runs_by_size: list[Run] = [(check_size(size), _as_step(recording)) for size, recording in recordings]
        if not runs_by_size or len({len(size) for size, _ in runs_by_size}) > 1:
            raise OptionError("recordings at several sizes are required; all sizes must have the same number of axes")
        matched, (_, last) = MatchedRecordings(runs_by_size), runs_by_size[-1]
        model = choose_model(matched, axis)
        try:
            state = state or InitialState.at(last.snapshot, last.device, last.last)
            retained = find_retained_blocks([*runs], matched, state.state.blocks["row"]) if runs else None
            requests = StepRequests(matched.step, state, retained)
        except ReplayError as error:
            raise results.PredictionFailedError(str(error)) from None
        return cls(matched, model, requests, [run for run in runs if run not in runs_by_size])

    def repeated(self, created: CreatedBlocks | None = None, *, releases_once: bool = False) -> RecordedStepPredictor:
        """Return a predictor of several consecutive runs of the step at the same size, as in training.

        Predictions then contain the highest allocated and reserved memory of any run. Allocations that previous runs
        have not freed, such as an output that is kept until it is replaced, grow with the size instead of keeping their
        recorded sizes. This requires that ``runs`` was passed to `from_recordings`.

        ``created``: Blocks of the state that do not exist before the first run, such as the state of an optimizer and
            gradients. ``releases_once``: See `StepRequests`.
        """
        result, requests = copy.copy(self), copy.copy(self.step_requests)
        sources = requests.retained.sources
        requests.resized = (sources >= 0) & self.model.grows[sources]
        requests.repeated, requests.releases_once = True, releases_once
        requests.created = created or CreatedBlocks()
        StepPredictor.__init__(result, self.model, requests)
        return result

    def bound(self, size: SizeOrValue, limit: int, least_power: float = 2) -> int:
        """Return an upper bound on the allocated bytes; see `bounded_sizes`. Bounds above ``limit`` may be too low."""
        sizes = bounded_sizes(self.matched, self.model, self._check(size), self.is_confirmed, least_power)
        return self.allocated(size, limit, sizes)

    def deviation(self, size: SizeOrValue, recording: SnapshotData | StepRecording) -> results.PredictionDeviation:
        return self.matched.deviation(self.model, (self._check(size), _as_step(recording)))

    def at(self, axis: int, size: int) -> StepPredictor:
        """Return a predictor for the other axes at a fixed size on ``axis``, which must not be the only axis."""
        if not 0 <= axis < (axes := len(self.model.nodes)) or axes == 1:
            raise OptionError(f"axis {axis!r} cannot be fixed: the number of axes is {axes} (numbered from 0)")
        return StepPredictor(self.model.at(axis, *check_size(size)), self.step_requests)


def _as_step(recording: SnapshotData | StepRecording) -> StepRecording:
    return recording if isinstance(recording, StepRecording) else StepRecording(recording)
