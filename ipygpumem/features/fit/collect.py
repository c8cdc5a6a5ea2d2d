"""Prediction of the memory usage of a step from runs at small sizes, which leave the program's state unchanged."""

from __future__ import annotations

import contextvars
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ipygpumem.core.errors import IpyGpuMemError, OptionError, check_argument, first_line
from ipygpumem.core.interrupts import DeferredInterrupts, ImmediateInterrupts
from ipygpumem.features.fit.advice.advisor import Advisor
from ipygpumem.features.fit.advice.contexts import ContextManagerChange, applicable
from ipygpumem.features.fit.advice.model import ChangeTrial
from ipygpumem.features.fit.advice.trials import run_checkpointed
from ipygpumem.features.fit.axes import SizeAxis, largest_sizes, size_name
from ipygpumem.features.fit.dry.runner import DryRunner
from ipygpumem.features.fit.model import Fit, SizeCombination
from ipygpumem.features.fit.ranks import RankCommunicator
from ipygpumem.features.fit.search import SizeSearch
from ipygpumem.features.fit.state import SavedState
from ipygpumem.features.fit.step_code import StepCode, function_step
from ipygpumem.features.fit.step_runner import MAX_SHARE, FitError, StepRunner
from ipygpumem.features.holders.reference_graph import naming_functions
from ipygpumem.measurement.measurement import notebook_sources
from ipygpumem.measurement.runtime import current
from ipygpumem.snapshot.scaling.run_selection import growth_note
from ipygpumem.snapshot.scaling.step_predictor import RecordedStepPredictor

if TYPE_CHECKING:
    from ipygpumem.features.fit.dry.optimizer_state import OptimizerStateTracker
    from ipygpumem.features.fit.optimizer_updates import OptimizerUpdateReplacer

_MAX_DIFFERENCE = 0.005
"""Largest difference in the size of existing tensors, relative to the peak, at which two predictions are comparable."""
_MAX_ERROR = 0.2
"""Largest expected relative error of estimates on fake tensors."""
_SMALL = 2
"""Largest size at which the memory usage of the first run is not estimated beforehand."""
_Result = TypeVar("_Result")
_ROWS = 6
"""Maximum number of values of the second variable for which the largest sizes are shown."""


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

    The step usually runs five or six times at small sizes. Afterwards, the state that the step can change is restored:
    tensors, gradients, the optimizer's state, Python objects and the states of random number generators. The
    updates of most optimizers of ``torch.optim`` are not run; their memory usage is computed.

    Args:
        step: Function that takes a size and runs one step of training or inference at this size.
        sizes: Possible sizes, such as ``range(1, 4097)``. For a function with two sizes, a dict that maps the names of
            its parameters to their ranges.
        margin: Share of the memory that remains free at the recommended size.
        on: Memory of the target GPU, in bytes or as a string such as ``"24 GiB"``; by default, the memory of this GPU.
        most: Share of the free memory that a run may use, at most 0.5.
        try_changes: Whether to also run the step with some of the changes that `Fit.advice` lists, to check their
            predictions.
        dry: Whether to run the step on fake tensors, which have no data, and to estimate its memory usage. No GPU is
            required.
        device: If ``dry`` is true, the target GPU: its memory, as for ``on``, or the name of a device in this machine,
            such as ``"cuda:0"``.

    Returns:
        The prediction. If the memory usage cannot be predicted, its attribute ``refusal`` contains the reason.
        Exceptions of the step are raised unchanged.

    Raises:
        OptionError: An argument is invalid, or the step uses no GPU memory or returns a generator or coroutine.
        RecordingError: ``dry`` is false, and PyTorch is missing, is too old or finds no GPU.
    """
    __tracebackhide__ = True  # omit this function from tracebacks of errors in the step
    if device is not None and (on is not None or not dry):
        raise OptionError(f"device={device!r} requires dry=True, and cannot be combined with the argument on")
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
    """Predict the memory usage of a step given as `StepCode`. The other arguments and the errors are those of `fit`."""
    __tracebackhide__ = True
    check_argument("margin", margin, (int, float), "a share of the memory, such as 0.02")
    check_argument("most", most, (int, float), "a share of the free memory, such as 0.25")
    if not 0 <= margin < 1:
        raise OptionError(f"the margin must be at least 0 and less than 1, but got {margin}")
    if not 0 < most <= MAX_SHARE:
        raise OptionError(f"most must be greater than 0 and at most {MAX_SHARE} of the free memory, but got {most}")
    sources = notebook_sources()
    code = replace(code, sources=sources, numbers=_execution_counts(sources))
    options: dict[str, Any] = {"on": on, "most": 1.0 if dry else most, "dry": dry}
    search = _search(code, **options)
    advisor: Advisor | None = None
    trials: list[ChangeTrial] = []

    def run(saved: SavedState, updates: OptimizerUpdateReplacer | OptimizerStateTracker) -> str:
        nonlocal advisor
        __tracebackhide__ = True
        refusal = search.run(saved, updates)
        if search.scaled is not None and search.capacity is not None:
            observations = search.observations
            search.notes.extend(search.scaled.notes)
            small = [probe for probe in search.probes if probe.role != "verification"]
            ends = map(max, zip(*[probe.size for probe in small], strict=True))
            axes = tuple(axis.until(end) for axis, end in zip(code.axes, ends, strict=True))
            contexts = applicable(search, saved.objects.tensors, observations, max(probe.allocated for probe in small))
            kept_bytes = search.scaled.step_requests.base[-1]
            run_contexts = partial(_run_contexts, replace(code, axes=axes), contexts, kept_bytes, trials, **options)
            advisor = Advisor(search.scaled, observations, code.axes, search.capacity, run_contexts)
            trials.extend(run_checkpointed(search, advisor, contexts) if try_changes else ())
        return refusal

    try:
        refusal_text = _run(search, run, most)
        if advisor is not None and try_changes:
            _ = advisor.in_contexts  # runs the step, which adds trials
        return _result(search, margin, refusal_text, advisor, trials)
    except FitError as refusal:  # raised before the first run, or because another rank has failed
        return _result(search, margin, str(refusal))


def _search(code: StepCode, on: Any, most: Any, dry: Any) -> SizeSearch:
    context: Any = contextvars.copy_context()  # so that the step does not change context variables of the program
    code = replace(code, run=partial(context.run, code.run))
    runner: StepRunner | DryRunner = DryRunner(code, on) if dry else StepRunner(current(), code)
    return SizeSearch(code, runner, RankCommunicator(), on, most)


def _run(search: SizeSearch, run: Callable[[SavedState, Any], _Result], most: float | None = None) -> _Result:
    """Call a function that runs the step, restore the state of the step, and return the result of the function.

    ``most``: Share of the free memory that the first run may use, which is checked beforehand; None for no check.
    """
    __tracebackhide__ = True
    runner = search.runner
    runner.start()
    search.ranks.join()
    state = _saved_state(runner, search.code)
    with DeferredInterrupts():  # an interrupt immediately before the restoration must not prevent it
        try:
            if most is not None and isinstance(runner, StepRunner) and search.ranks.world == 1:
                _check_first_run(search, runner, state, most)
            with runner.updates(state.objects, search.allows_update) as updates, ImmediateInterrupts():
                return run(state, updates)
        finally:
            with DeferredInterrupts():  # in case a second interrupt was raised while `ImmediateInterrupts` exited
                search.side_effects.__exit__()
                notes = [*search.side_effects.notes(), *state.restore(search.side_effects.advanced)]
                search.notes += [*notes, *runner.close()]


def _check_first_run(search: SizeSearch, runner: StepRunner, state: SavedState, most: float) -> None:
    """Raise `FitError` if the first run needs too much memory, as estimated by running the step on fake tensors.

    No estimate is made for the smallest sizes, if no tensor of the step is on a GPU, if the step cannot run on fake
    tensors, or if functions have cached results, which would be lost: a cache that may contain fake tensors is cleared.
    """
    size, tensors = tuple(axis.first_run for axis in search.code.axes), state.objects.tensors
    has_results = any(function.cache_info().currsize for function in state.objects.caches)
    if max(size) <= _SMALL or has_results or not _use_gpu(tensors):
        return
    try:
        with ImmediateInterrupts():
            dry = _search(search.code, None, most, dry=True)
            estimated = _run(dry, lambda *_: dry.runner.run(size).step(0).own_peak)
    except Exception:  # the first run will raise it, too, unless only fake tensors cause it
        return
    gradients = [leaf.grad for leaf in tensors if leaf.is_leaf and leaf.grad is not None]
    needed_bytes = estimated - sum(gradient.nbytes for gradient in gradients)  # fake tensors have no gradients before
    available = runner.available(runner.current_device())
    if needed_bytes > (1 + _MAX_ERROR) * most * available.free:
        search.notes += dry.notes
        raise available.refusal(f"the first run, at size {size_name(size)},", needed_bytes, most)


def _use_gpu(tensors: Iterable[Any]) -> bool:
    return any(tensor.is_cuda for tensor in tensors)


def _run_contexts(
    code: StepCode, contexts: Iterable[ContextManagerChange], kept_bytes: int, trials: list[ChangeTrial], **options: Any
) -> Iterator[tuple[ContextManagerChange, RecordedStepPredictor | str]]:
    """Run the step in each context manager, and yield it with the prediction, or the reason why there is none.

    ``kept_bytes`` is the size of the tensors that the step does not free. The last run in each context manager, which
    checks the prediction, is appended to ``trials``.
    """
    for context in contexts:
        search = _search(code, **options)
        search.runner.context, search.is_repeatable = context.manager, search.runner.keeps_contents
        try:
            reason = _run(search, search.run)
        except Exception as error:
            reason = str(error) if isinstance(error, FitError) else f"the step failed: {first_line(error)}"
        if search.scaled is not None:
            last, difference = search.probes[-1], abs(search.scaled.step_requests.base[-1] - kept_bytes)
            trials.append(ChangeTrial(context.name, last.size, last.predicted or 0, last.allocated))
            if difference > _MAX_DIFFERENCE * last.allocated and not search.runner.keeps_contents:
                reason = "the size of existing tensors has changed since fit ran; run fit again"
        yield context, reason or search.scaled or ""


def _saved_state(runner: StepRunner | DryRunner, code: StepCode) -> SavedState:
    try:
        return SavedState(runner.torch, code.roots(), code.namespaces, contents=not runner.keeps_contents)
    except IpyGpuMemError as error:
        raise FitError(str(error)) from None
    except Exception as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise FitError(f"the state of the step cannot be saved ({reason})") from error


def _execution_counts(files: Iterable[str]) -> dict[str, int]:
    """Return the execution counts of notebook cells by the file names of their code."""
    label = naming_functions().label
    matches = {file: re.match(r"In \[(\d+)\]", label(file, 1, "<module>")) for file in files}
    return {file: int(match[1]) for file, match in matches.items() if match is not None}


def _result(
    search: SizeSearch, margin: float, refusal: str, advisor: Advisor | None = None, trials: Sequence[ChangeTrial] = ()
) -> Fit:
    axes, scaled, capacity = search.code.axes, search.scaled, search.capacity
    device, label = search.runner.describe(search.index, search.on)
    values: dict[str, Any] = {}
    if not refusal and scaled is not None and capacity is not None:
        if len(axes) == 1:
            values |= largest_sizes(search.ranks, axes[0], scaled, capacity, margin)
            size = values["recommended"] or values["largest"]
            search.notes += filter(None, [growth_note(scaled, size, capacity)] if size else ())
            values["pieces"] = scaled.pieces(axes[0].first, axes[0].last)
        else:
            values["combinations"] = tuple(_combinations(search.ranks, axes, scaled, capacity, margin))
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


def _combinations(
    ranks: RankCommunicator, axes: tuple[SizeAxis, ...], scaled: RecordedStepPredictor, capacity: int, margin: float
) -> Iterable[SizeCombination]:
    first, second = axes
    ratio = second.last / second.first
    sizes = {second.at_most(round(second.first * ratio ** (row / (_ROWS - 1)))) or 0 for row in range(_ROWS)}
    for size in sorted(sizes - {0}):
        scaled_at_size = scaled.at(1, size)
        values = largest_sizes(ranks, first, scaled_at_size, capacity, margin)
        recommended = values["recommended"]
        reserved = None if recommended is None else scaled_at_size.predict(recommended).reserved
        yield SizeCombination(size, values["largest"], recommended, reserved)
