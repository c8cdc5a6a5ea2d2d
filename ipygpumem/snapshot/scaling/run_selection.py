"""Selection of the runs of a step that determine its prediction."""

from __future__ import annotations

from collections.abc import Sequence

from ipygpumem.core.units import size as size_text
from ipygpumem.snapshot.scaling.growth_bounds import bounded_sizes
from ipygpumem.snapshot.scaling.matching import Run
from ipygpumem.snapshot.scaling.step_predictor import RecordedStepPredictor
from ipygpumem.snapshot.scaling.step_requests import InitialState

_MAX_EXCESS = 0.25
"""Share by which the upper bound on the memory usage may exceed the prediction without a note."""


def predict_runs(runs: Sequence[Run], state: InitialState) -> RecordedStepPredictor:
    """Return a predictor of the step that is based on ``runs``.

    For one variable, runs at the smallest sizes are excluded if the prediction is reliable only without them: they may
    use other kernels. For two variables, sizes of allocations may grow quadratically with the second, such as a length.
    """
    if len(runs[0][0]) > 1:
        return RecordedStepPredictor.from_recordings(runs, ("automatic", "quadratic"), state, runs)
    result = RecordedStepPredictor.from_recordings(runs, state=state, runs=runs)
    for smallest in sorted({size for size, _ in runs})[1:-1] if result.reasons else ():
        larger = [run for run in runs if run[0] >= smallest]
        candidate = RecordedStepPredictor.from_recordings(larger, state=state, runs=runs)
        if not candidate.reasons:
            return candidate
    return result


def growth_note(scaled: RecordedStepPredictor, size: int, limit: int) -> str:
    """Return a sentence if a step may need much more memory at a size than predicted; otherwise an empty string.

    ``limit``: Number of bytes above which bounds may be too low, as in `RecordedStepPredictor.bound`.
    """
    bound = scaled.bound(size, limit)
    if bound <= (1 + _MAX_EXCESS) * scaled.allocated(size, limit):
        return ""
    matched, model = scaled.matched, scaled.model
    sizes = bounded_sizes(matched, model, (size,), scaled.is_confirmed)
    live, _ = matched.step.peak_with(sizes)
    line = matched.step.main_line(live, (sizes - model.sizes((size,)))[live])
    return (
        f"At size {size:,}, the step may need up to {size_text(bound)}: its runs do not show whether all allocations,"
        f" mainly those in {line}, grow as predicted. Run the step at smaller sizes first."
    )


def releases_once(runs: Sequence[Run]) -> bool:
    """Return whether only the first run at each size frees cached segments, as when cuDNN searches for algorithms.

    The first of ``runs`` is not the first run at its size: the warm-up, which is not recorded, has the same size.
    """
    sizes = {size for size, step in runs if step.frees_segments}
    return bool(sizes) and runs[0][0] not in sizes
