"""Prediction of the memory usage of a step, from runs at small sizes that leave the program's state unchanged."""

from __future__ import annotations

import contextvars
import functools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from ipygpumem.core.errors import IpyGpuMemError, OptionError, first_line
from ipygpumem.core.interrupts import AllowedInterrupts, DeferredInterrupts
from ipygpumem.features.fit.advice.advisor import Advisor
from ipygpumem.features.fit.advice.model import Trial
from ipygpumem.features.fit.advice.trials import run_trials
from ipygpumem.features.fit.axes import Axis
from ipygpumem.features.fit.dry.runner import DryRunner
from ipygpumem.features.fit.model import Combination, Fit
from ipygpumem.features.fit.probes import FitError, StepRunner
from ipygpumem.features.fit.ranks import RankCommunicator
from ipygpumem.features.fit.search import MAX_SHARE, Search
from ipygpumem.features.fit.state import SavedState
from ipygpumem.features.fit.step_code import StepCode, function_step
from ipygpumem.features.holders.reference_graph import naming_functions
from ipygpumem.measurement.measurement import notebook_sources
from ipygpumem.measurement.runtime import current
from ipygpumem.snapshot.scaling.scaled_recording import ScaledRecording, ScaledStep

_ROWS = 6
"""Number of values of the second variable for which the largest sizes are shown."""


def fit(
    step: Callable[..., Any],
    sizes: Any = range(1, 4097),
    margin: float = 0.02,
    *,
    on: int | str | None = None,
    most: float = 0.25,
    try_changes: bool = False,
    dry: bool = False,
    device: int | str | None = None,
) -> Fit:
    """Predict the memory usage of a step at sizes at which it has not run, and the largest size that fits.

    The step runs five or six times, at small sizes. Afterwards, the state that the step can reach is restored: tensors,
    gradients, the optimizer's state, objects and random numbers. PyTorch's optimizers are not run; the memory of their
    updates is computed.

    Args:
        step: Function that runs one step of training or inference at the size that it is called with.
        sizes: Possible sizes, such as ``range(1, 4097)``. For a function of two sizes, a dict from the names of its
            arguments to their ranges.
        margin: Share of the memory that remains free at the recommended size.
        on: Memory of another GPU, such as ``"24 GiB"``, on which to find the sizes that fit; by default, this GPU.
        most: Share of the free memory that a run may use, at most 0.5.
        try_changes: Whether to run the step also with activation checkpointing, to check predictions of changes.
        dry: Whether to run the step without data and to estimate its memory usage, for which no GPU is required.
        device: With ``dry``, the memory of the GPU, such as ``"80 GiB"``, or the name of a GPU in this machine.

    Raises:
        OptionError: An argument is invalid, or the step uses no GPU memory.
        RecordingError: There is no GPU.
    """
    __tracebackhide__ = True  # omit this function from tracebacks of errors in the step
    if device is not None and (on is not None or not dry):
        raise OptionError(f"device={device!r} requires dry=True, and cannot be combined with on")
    if dry and try_changes:
        raise OptionError("try_changes requires runs on a GPU, and cannot be combined with dry")
    code = function_step(step, sizes)
    return fit_step(code, margin=margin, on=device or on, most=most, try_changes=try_changes, dry=dry)


def fit_step(
    code: StepCode,
    *,
    margin: float = 0.02,
    on: int | str | None = None,
    most: float = 0.25,
    try_changes: bool = False,
    dry: bool = False,
) -> Fit:
    """Predict the memory usage of a step as `fit` does."""
    __tracebackhide__ = True
    if not 0 <= margin < 1:
        raise OptionError(f"the margin must be at least 0 and less than 1, not {margin}")
    if not 0 < most <= MAX_SHARE:
        raise OptionError(f"a run may use at most half of the free memory: {most} is not between 0 and 0.5")
    sources = notebook_sources()
    context: Any = contextvars.copy_context()  # so that the step does not change context variables of the program
    code = replace(
        code, run=functools.partial(context.run, code.run), sources=sources, numbers=_execution_counts(sources)
    )
    runner: StepRunner | DryRunner = DryRunner(code, on) if dry else StepRunner(current(), code)
    ranks = RankCommunicator()
    search = Search(code, runner, ranks, on, 1.0 if dry else most)
    try:
        runner.start()
        ranks.join()
        saved = _saved_state(runner, code)
    except FitError as refusal:
        return _result(search, margin, str(refusal))
    advisor, trials = None, []
    with DeferredInterrupts():  # an interrupt immediately before the restoration must not prevent it
        try:
            with runner.updates(saved.objects, search.allows_update) as updates, AllowedInterrupts():
                refusal_text = search.run(saved, updates)
                if isinstance(runner, StepRunner) and search.scaled is not None and search.capacity is not None:
                    facts = search.observations.facts(search.scaled, updates)
                    advisor = Advisor(search.scaled, facts, code.axes, search.capacity)
                    trials = [*run_trials(search, runner, advisor)] if try_changes else []
        finally:
            search.files.__exit__()
            search.notes += [*search.files.notes(), *saved.restore(), *runner.close()]
    try:
        return _result(search, margin, refusal_text, advisor, trials)
    except FitError as refusal:  # another rank has failed
        return _result(search, margin, str(refusal))


def _saved_state(runner: StepRunner | DryRunner, code: StepCode) -> SavedState:
    try:
        return SavedState(runner.torch, code.roots, code.namespaces, contents=not runner.keeps_contents)
    except IpyGpuMemError as error:
        raise FitError(str(error)) from None
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise FitError(f"the state of the step cannot be saved ({reason})") from error


def _execution_counts(files: Iterable[str]) -> dict[str, int]:
    """Return the execution count of each notebook cell by file name, read from the label of a line of the cell."""
    label = naming_functions().label
    matches = {file: re.match(r"In \[(\d+)\]", label(file, 1, "<module>")) for file in files}
    return {file: int(match[1]) for file, match in matches.items() if match is not None}


def _result(
    search: Search, margin: float, refusal: str, advisor: Advisor | None = None, trials: Sequence[Trial] = ()
) -> Fit:
    axes, scaled, capacity = search.code.axes, search.scaled, search.capacity
    device, label = search.runner.describe(search.index, search.on)
    values: dict[str, Any] = {}
    if not refusal and scaled is not None and capacity is not None:
        if len(axes) == 1:
            values |= _largest(search.ranks, axes[0], scaled, capacity, margin)
            values["pieces"] = scaled.pieces(axes[0].first, axes[0].last)
        else:
            values["combinations"] = tuple(_combinations(search.ranks, axes, scaled, capacity, margin))
        values["_scaled"] = scaled
        values |= {"_advisor": advisor, "trials": tuple(trials)}
    return Fit(
        step=search.code.text,
        axes=axes,
        device=device,
        label=label,
        estimated=isinstance(search.runner, DryRunner),
        capacity=capacity,
        margin=margin,
        probes=tuple(search.probes),
        refusal=refusal,
        notes=tuple(search.notes),
        **values,
    )


def _largest(
    ranks: RankCommunicator, axis: Axis, scaled: ScaledStep, capacity: int, margin: float
) -> dict[str, int | None]:
    """Return the largest sizes at which the step fits into memory on all ranks."""
    first, last = axis.first, axis.last
    sizes = {
        "largest": scaled.largest(capacity, first=first, last=last),
        "recommended": scaled.largest(capacity, margin, first=first, last=last),
        "after_release": scaled.largest(capacity, first=first, last=last, after_release=True),
    }
    return {name: axis.at_most(ranks.minimum(size or 0)) for name, size in sizes.items()}


def _combinations(
    ranks: RankCommunicator, axes: tuple[Axis, ...], scaled: ScaledRecording, capacity: int, margin: float
) -> Iterable[Combination]:
    first, second = axes
    ratio = second.last / second.first
    sizes = {second.at_most(round(second.first * ratio ** (row / (_ROWS - 1)))) or 0 for row in range(_ROWS)}
    for size in sorted(sizes - {0}):
        remaining = scaled.at(1, size)
        values = _largest(ranks, first, remaining, capacity, margin)
        recommended = values["recommended"]
        reserved = None if recommended is None else remaining.predict(recommended).reserved
        yield Combination(size, values["largest"], recommended, reserved)
