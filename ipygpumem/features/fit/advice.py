"""Changes that reduce the memory usage of a step, each predicted by a replay of the changed requests.

No saved bytes are added up: a change lowers the peak only until another part of the step determines it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ipygpumem.core.introspection import attempt
from ipygpumem.core.units import many
from ipygpumem.features.fit.advice_model import Advice, Change, Kind
from ipygpumem.features.fit.axes import Axis, Size
from ipygpumem.features.fit.blocks import block_expressions, checkpoint_code
from ipygpumem.features.fit.step_facts import OptimizerUpdate, StepFacts
from ipygpumem.features.fit.update import ComputedUpdate, computed_update, selected_foreach
from ipygpumem.snapshot.scaling.edits import StepEdit, peak_order
from ipygpumem.snapshot.scaling.recomputation import ModuleCall, checkpoint
from ipygpumem.snapshot.scaling.scaled_recording import ScaledRecording, ScaledStep

_MIN_SAVED = 0.01
"""Share of the peak that a change must save."""
_MAX_UNITS = 48
"""Largest number of groups of blocks among which those to checkpoint are chosen."""
_ROWS = 4
"""Number of selections of blocks that are shown."""
_PARTS = (2, 4, 8)
_BLOCKWISE = 1 / 4 + 1 / 64
"""Size of optimizer state with 8 bits relative to 32 bits, including one scale for each block of 256 elements."""
_MIN_8_BIT = 4096 * 4
"""Size in bytes from which bitsandbytes stores the state of a parameter with 8 bits."""
_8_BIT = {"Adam", "AdamW", "SGD", "RMSprop", "Adagrad"}
_EXPANDABLE = "expandable_segments:True"


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A changed step, not yet predicted. At a size, it runs ``parts`` times with a part of the size."""

    name: str
    kind: Kind | None
    step: ScaledStep
    added_time: float | None
    code: str
    note: str = ""
    parts: int = 1
    settings: str | None = None


class Advisor:
    """Prediction of changes of a step.

    Args:
        scaled: The prediction of the step.
        facts: Observations of the step.
        axes: Variables that determine the size.
        capacity: Memory that PyTorch can use.
    """

    def __init__(self, scaled: ScaledRecording, facts: StepFacts, axes: tuple[Axis, ...], capacity: int) -> None:
        self._scaled, self._facts, self._axes, self._capacity = scaled, facts, axes, capacity

    def advice(self, size: Size) -> Advice:
        """Return the changes that save at least 1% of the peak at a size."""
        step = self._scaled if len(size) == 1 else self._scaled.at(1, size[1])
        first = size[0]
        current = self._predicted(_Candidate("as it is", None, step, 0.0, ""), first)
        changes = []
        for find in (self._checkpointing, self._accumulation, self._set_to_none, self._optimizers, self._settings):
            for candidate in find(step, first):
                change = self._predicted(candidate, first)
                before, after = current.allocated, change.allocated
                if candidate.settings is not None:
                    before, after = current.reserved, change.reserved
                if after <= (1 - _MIN_SAVED) * before:
                    changes.append(change)
        return Advice(size, self._axes[0].name, current, tuple(changes))

    def checkpointed(self, step: ScaledStep, blocks: Sequence[int]) -> ScaledStep:
        """Return a step with activation checkpointing of some blocks."""
        return self._checkpoint_edit(step, blocks).apply()

    def block_order(self, step: ScaledStep, size: int) -> list[list[int]]:
        """Return groups of blocks in the order in which checkpointing them lowers the peak most per added time."""
        seconds: dict[int, float] = {}
        for call in self._facts.calls:
            seconds[call.block] = seconds.get(call.block, 0.0) + call.seconds
        kinds = {block: self._facts.blocks[block].type for block in seconds}
        of_kind: dict[str, list[float]] = {}
        for block, kind in kinds.items():
            of_kind.setdefault(kind, []).append(seconds[block])
        means = {kind: sum(values) / len(values) for kind, values in of_kind.items()}  # a single time is irregular
        blocks = sorted(seconds)
        length = -(-len(blocks) // _MAX_UNITS)
        units = [blocks[start : start + length] for start in range(0, len(blocks), length)] if blocks else []
        costs = [sum(means[kinds[block]] for block in unit) for unit in units]
        edits = [self._checkpoint_edit(step, unit) for unit in units]
        return [units[number] for number in peak_order(step, edits, costs, (size,))]

    def selections(self, step: ScaledStep, size: int, count: int) -> list[list[int]]:
        """Return about ``count`` selections of blocks, the last of which contains all blocks."""
        order = self.block_order(step, size)
        ends = sorted({-(-len(order) * number // count) for number in range(1, count + 1)} - {0})
        chosen = [sorted(block for unit in order[:end] for block in unit) for end in ends]
        every = sorted({call.block for call in self._facts.calls})
        return chosen if not chosen or chosen[-1] == every else [*chosen, every]

    def selection_name(self, blocks: Sequence[int]) -> str:
        """Return the name of the change that applies activation checkpointing to blocks."""
        return f"checkpoint {len(blocks)} of {many(len({call.block for call in self._facts.calls}), 'block')}"

    def _checkpoint_edit(self, step: ScaledStep, blocks: Sequence[int]) -> StepEdit:
        edit = StepEdit(step)
        for call in self._calls(blocks):
            checkpoint(edit, call)
        return edit

    def _calls(self, blocks: Sequence[int]) -> list[ModuleCall]:
        return [call for call in self._facts.calls if call.block in blocks]

    def _checkpointing(self, step: ScaledStep, size: int) -> Iterator[_Candidate]:
        total = len({call.block for call in self._facts.calls})
        for blocks in self.selections(step, size, _ROWS):
            seconds = sum(call.seconds for call in self._calls(blocks))
            names = [self._facts.blocks[block] for block in blocks]
            yield _Candidate(
                self.selection_name(blocks),
                "checkpointing",
                self.checkpointed(step, blocks),
                seconds / self._facts.seconds if self._facts.seconds else None,
                checkpoint_code(names, total),
                ", ".join(block_expressions(names)),
            )

    def _accumulation(self, step: ScaledStep, size: int) -> Iterator[_Candidate]:
        updates = self._facts.updates
        if not updates or updates[0].begin <= step.step_requests.backward:
            return
        edit = StepEdit(step)
        requests = step.step_requests
        gradients = np.unique(np.concatenate([update.gradients for update in updates]))
        sizes = step.model.sizes((size,))
        blocks = requests.state.state.blocks["requested"]
        replaced = np.isin(blocks, sizes[gradients]) & (requests.block_ends < len(requests.operations))
        edit.block_end[replaced] = edit.time(0)
        order = np.arange(len(gradients))
        temporary = [
            edit.insert(int(requests.start[number]) + 1, np.asarray([number]), *_SHORT) for number in gradients
        ]
        del temporary
        edit.start[gradients] = edit.time(0) + 1 + order
        accumulated = edit.apply()
        for parts in _PARTS:
            if size // parts >= self._axes[0].first_run:
                code = (
                    "optimizer.zero_grad()\n"
                    f"for part in range({parts}):\n"
                    f"    loss = ...  # for 1/{parts} of the batch\n"
                    f"    (loss / {parts}).backward()\n"
                    "optimizer.step()"
                )
                note = "batch normalization uses the statistics of each part" if parts == _PARTS[0] else ""
                yield _Candidate(
                    f"accumulate gradients over {parts} parts", "accumulation", accumulated, None, code, note, parts
                )

    def _set_to_none(self, step: ScaledStep, size: int) -> Iterator[_Candidate]:
        """Yield the step without gradients that exist before its backward pass."""
        if not self._facts.updates:
            return
        edit, requests = StepEdit(step), step.step_requests
        old = np.unique(np.concatenate([update.old_gradients for update in self._facts.updates]))
        edit.block_end[old] = edit.time(0)
        sizes, nbytes = step.model.sizes((size,)), requests.state.state.blocks["requested"]
        before = self._facts.updates[0].begin
        added = np.flatnonzero((requests.start >= requests.backward) & (requests.end < before)).tolist()
        for gradient in old.tolist():  # the backward pass computes each gradient before it is added to the old one
            found = next((number for number in added if sizes[number] == nbytes[gradient]), None)
            if found is not None:
                added.remove(found)
                edit.keep(found)
        if len(old):
            code = "optimizer.zero_grad(set_to_none=True)"
            yield _Candidate(code, "optimizer", edit.apply(), 0.0, code)

    def _optimizers(self, step: ScaledStep, _: int) -> Iterator[_Candidate]:
        by_optimizer: dict[Any, list[OptimizerUpdate]] = {}
        for update in self._facts.updates:
            by_optimizer.setdefault(update.optimizer, []).append(update)
        for reference, updates in by_optimizer.items():
            optimizer = reference()
            if optimizer is None:
                continue
            name = type(optimizer).__name__
            for options, text in (
                ({"foreach": False, "fused": False}, "foreach=False"),
                ({"foreach": False, "fused": True}, "fused=True"),
            ):
                changed = _update_with(optimizer, options)
                if changed is not None:
                    candidate = _with_update(step, updates, changed.events)
                    code = f"optimizer = {_constructor(optimizer)}(..., {text})"
                    slower = "slower if there are many parameters" if text == "foreach=False" else ""
                    yield _Candidate(f"{name}({text})", "optimizer", candidate, None, code, slower)
            if name in _8_BIT and type(optimizer).__module__.startswith("torch.optim"):
                state = np.concatenate([update.state for update in updates])
                nbytes = step.step_requests.state.state.blocks["requested"][state]
                code = f"import bitsandbytes\noptimizer = bitsandbytes.optim.{name}8bit(...)"
                yield _Candidate(
                    f"{name} with 8-bit state",
                    "optimizer",
                    _with_update(step, updates, (), state[nbytes >= _MIN_8_BIT]),
                    None,
                    code,
                    "rounds the state, which can change training",
                )

    def _settings(self, step: ScaledStep, _: int) -> Iterator[_Candidate]:
        if not step.step_requests.state.recording.settings.expandable:
            fresh = ScaledStep(step.model, step.step_requests, keeps_state=False)
            code = f'import os\nos.environ["PYTORCH_ALLOC_CONF"] = "{_EXPANDABLE}"  # before torch is imported'
            yield _Candidate(_EXPANDABLE, "settings", fresh, 0.0, code, "in a new process", settings=_EXPANDABLE)

    def _predicted(self, candidate: _Candidate, size: int) -> Change:
        parts, settings, axis = candidate.parts, candidate.settings, self._axes[0]
        prediction = candidate.step.predict(-(-size // parts), settings=settings)
        largest = candidate.step.largest(
            self._capacity, first=-(-axis.first // parts), last=max(axis.last // parts, 1), settings=settings
        )
        return Change(
            candidate.name,
            candidate.kind,
            prediction.allocated,
            prediction.reserved,
            None if largest is None else axis.at_most(largest * parts),
            candidate.added_time,
            candidate.code,
            candidate.note,
        )


_SHORT = (np.asarray([0]), np.asarray([1]))
"""Start and end of a temporary tensor that is freed at once."""


def _constructor(optimizer: Any) -> str:
    name = type(optimizer).__name__
    return f"torch.optim.{name}" if type(optimizer).__module__.startswith("torch.optim") else name


def _update_with(optimizer: Any, options: dict[str, bool]) -> ComputedUpdate | None:
    """Return the update of an optimizer with other options; None if it does not have them."""
    groups = [{**group, **selected_foreach(group)} for group in optimizer.param_groups]
    if any(name not in group for group in groups for name in options):
        return None
    if all(bool(group[name]) == value for group in groups for name, value in options.items()):
        return None
    compute: Callable[[], ComputedUpdate] = lambda: computed_update(sys.modules["torch"], optimizer, **options)  # noqa: E731
    result: ComputedUpdate | None = attempt(compute)
    return result


def _with_update(
    step: ScaledStep,
    updates: Sequence[OptimizerUpdate],
    events: Sequence[tuple[int, str, int | None]],
    small_state: Any = (),
) -> ScaledStep:
    """Return a step in which the temporary tensors of updates are replaced by those of ``events``.

    The blocks ``small_state`` are reduced to 8 bits.
    """
    edit, requests = StepEdit(step), step.step_requests
    order: dict[int, list[int]] = {}
    for place, (number, device, nbytes) in enumerate(events):
        if nbytes is None:
            order[number][1] = place
        elif not (device == "cpu" and _is_on_gpu(updates)):
            order[number] = [place, len(events), nbytes]
    starts, ends, sizes = np.asarray([*order.values()], np.int64).reshape(-1, 3).T
    for update in updates:
        inside = (requests.start >= update.begin) & (requests.end < update.end)
        removed = np.flatnonzero(inside)
        edit.remove(removed)
        if len(sizes) and len(requests.start):
            source = removed[0] if len(removed) else np.argmax(requests.start >= update.begin)
            coefficients = np.zeros((len(sizes), *step.model.coefficients.shape[1:]))
            coefficients.reshape(len(sizes), -1)[:, 0] = sizes
            edit.insert(update.begin, np.full(len(sizes), source), starts, ends, coefficients)
    state = np.asarray(small_state, np.int64)
    edit.block_factor[state] = _BLOCKWISE
    return edit.apply(keeps_state=not len(state))


def _is_on_gpu(updates: Sequence[OptimizerUpdate]) -> bool:
    optimizer = updates[0].optimizer()
    return optimizer is not None and any(
        parameter.is_cuda for group in optimizer.param_groups for parameter in group["params"]
    )
