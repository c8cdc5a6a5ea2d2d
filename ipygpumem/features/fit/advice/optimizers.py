"""Predictions of changes to the gradients and the optimizers of a step."""

from __future__ import annotations

import sys
from collections.abc import Container, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np

from ipygpumem.core.introspection import attempt
from ipygpumem.features.fit.advice.model import ChangeCandidate
from ipygpumem.features.fit.advice.observations import OptimizerUpdate, StepObservations
from ipygpumem.features.fit.dry.cuda_kernels import cuda_kernels
from ipygpumem.features.fit.optimizer_updates import ComputedUpdate, computed_update, selected_foreach
from ipygpumem.snapshot.scaling.edits import StepEdit
from ipygpumem.snapshot.scaling.step_predictor import StepPredictor

_BLOCKWISE = 1 / 4 + 1 / 256
"""Ratio of the sizes of 8-bit and 32-bit optimizer state, including a float32 scale per block of 256 elements."""
_MIN_8_BIT = 4096 * 4
"""Minimum size in bytes of a 32-bit state tensor that bitsandbytes would store with 8 bits."""
_8_BIT = {"Adam", "AdamW", "SGD", "RMSprop", "Adagrad"}


def set_to_none(observations: StepObservations, step: StepPredictor, size: int) -> Iterator[ChangeCandidate]:
    """Yield the change to ``zero_grad(set_to_none=True)`` if gradients exist before the step."""
    if not observations.updates:
        return
    edit, requests = StepEdit(step), step.step_requests
    old = np.unique(np.concatenate([update.old_gradients for update in observations.updates]))
    edit.block_end[old] = edit.time(0)
    sizes, nbytes = step.model.sizes((size,)), requests.state.state.blocks["requested"]
    before = observations.updates[0].begin
    new_gradients = np.flatnonzero((requests.start >= requests.backward) & (requests.end < before)).tolist()
    for gradient in old.tolist():  # the backward pass computes each gradient before it is added to the old one
        match = next((number for number in new_gradients if sizes[number] == nbytes[gradient]), None)
        if match is not None:
            new_gradients.remove(match)
            edit.keep(match)
    if len(old):
        code = "optimizer.zero_grad(set_to_none=True)"
        yield ChangeCandidate(code, "optimizer", edit.apply(), 0.0, code)


def other_options(observations: StepObservations, step: StepPredictor) -> Iterator[ChangeCandidate]:
    """Yield changes to the options of the optimizers, and changes to 8-bit optimizer state."""
    by_optimizer: dict[Any, list[OptimizerUpdate]] = {}
    for update in observations.updates:
        by_optimizer.setdefault(update.optimizer, []).append(update)
    for reference, updates in by_optimizer.items():
        optimizer = reference()
        if optimizer is None:
            continue
        name = type(optimizer).__name__
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        devices = {"cpu" if parameter.is_meta else str(parameter.device) for parameter in parameters}
        for options, text in (
            ({"foreach": False, "fused": False}, "foreach=False"),
            ({"foreach": False, "fused": True}, "fused=True"),
        ):
            changed_update = _update_with(optimizer, options)
            if changed_update is not None:
                candidate = _with_update(step, updates, changed_update.events, devices)
                code = f"optimizer = {_constructor(optimizer)}(..., {text})"
                slower = "slower if there are many parameters" if text == "foreach=False" else ""
                yield ChangeCandidate(f"{name}({text})", "optimizer", candidate, None, code, slower)
        if name in _8_BIT and type(optimizer).__module__.startswith("torch.optim"):
            state = np.concatenate([update.state for update in updates])
            nbytes = step.step_requests.state.state.blocks["requested"][state]
            code = f"import bitsandbytes\noptimizer = bitsandbytes.optim.{name}8bit(...)"
            yield ChangeCandidate(
                f"{name} with 8-bit state",
                "optimizer",
                _with_update(step, updates, (), (), state[nbytes >= _MIN_8_BIT]),
                None,
                code,
                "rounds the state, which can change training",
            )


def _constructor(optimizer: Any) -> str:
    name = type(optimizer).__name__
    return f"torch.optim.{name}" if type(optimizer).__module__.startswith("torch.optim") else name


def _update_with(optimizer: Any, options: dict[str, bool]) -> ComputedUpdate | None:
    """Return the update of an optimizer with other options.

    The result is None if the optimizer lacks an option or already uses them all, or if the update cannot be computed.
    """
    torch = sys.modules["torch"]
    on_gpu = any(parameter.is_cuda for group in optimizer.param_groups for parameter in group["params"])
    with nullcontext() if on_gpu else cuda_kernels(torch):
        groups = [{**group, **selected_foreach(group)} for group in optimizer.param_groups]
        if any(name not in group for group in groups for name in options):
            return None
        if all(bool(group[name]) == value for group in groups for name, value in options.items()):
            return None
        result: ComputedUpdate | None = attempt(lambda: computed_update(torch, optimizer, **options))
        return result


def _with_update(
    step: StepPredictor,
    updates: Sequence[OptimizerUpdate],
    events: Sequence[tuple[int, str, int | None]],
    devices: Container[str] = (),
    small_state: Any = (),
) -> StepPredictor:
    """Return the step with the allocations made in ``updates`` replaced by those of ``events`` on ``devices``.

    ``small_state`` contains the indices of the blocks of optimizer state that are stored with 8 bits.
    """
    edit, requests = StepEdit(step), step.step_requests
    order: dict[int, list[int]] = {}
    for place, (number, device, nbytes) in enumerate(events):
        if device in devices and nbytes is None:
            order[number][1] = place
        elif device in devices:
            order[number] = [place, len(events), nbytes or 0]
    starts, ends, sizes = np.asarray([*order.values()], np.int64).reshape(-1, 3).T
    for update in updates:
        inside = (requests.start >= update.begin) & (requests.end < update.end)
        removed_allocations = np.flatnonzero(inside)
        edit.remove(removed_allocations)
        if len(sizes) and len(requests.start):
            source = removed_allocations[0] if len(removed_allocations) else np.argmax(requests.start >= update.begin)
            coefficients = np.zeros((len(sizes), *step.model.coefficients.shape[1:]))
            coefficients.reshape(len(sizes), -1)[:, 0] = sizes
            edit.insert(update.begin, np.full(len(sizes), source), starts, ends, coefficients)
    state = np.asarray(small_state, np.int64)
    edit.block_factor[state] = _BLOCKWISE
    return edit.apply(keeps_state=not len(state))
