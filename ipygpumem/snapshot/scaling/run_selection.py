"""Selection of the runs of a step that determine its prediction."""

from __future__ import annotations

from collections.abc import Sequence

from ipygpumem.snapshot.scaling.matching import Run
from ipygpumem.snapshot.scaling.step_predictor import RecordedStepPredictor
from ipygpumem.snapshot.scaling.step_requests import InitialState


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


def releases_once(runs: Sequence[Run]) -> bool:
    """Return whether only the first run at a size frees cached segments, as cuDNN's search for algorithms does.

    The first of ``runs`` is not the first run at its size: the warm-up, which is not recorded, has the same size.
    """
    sizes = {size for size, step in runs if step.frees_segments}
    return bool(sizes) and runs[0][0] not in sizes
