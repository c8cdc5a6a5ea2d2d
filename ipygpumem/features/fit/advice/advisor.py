"""Predictions of how changes to a program would reduce the memory usage of a step.

A change that runs the step in a context manager is predicted from such runs. Other changes are applied to the
allocations and frees of the step, which are then replayed. The savings of several changes are never added up, because
another part of the step may determine the peak after a change.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ipygpumem.core.errors import OptionError
from ipygpumem.core.units import many
from ipygpumem.features.fit.advice.contexts import ContextManagerChange
from ipygpumem.features.fit.advice.model import Advice, ChangeCandidate, PredictedChange
from ipygpumem.features.fit.advice.model_blocks import block_expressions, checkpoint_code
from ipygpumem.features.fit.advice.observations import StepObservations
from ipygpumem.features.fit.advice.optimizers import other_options, set_to_none
from ipygpumem.features.fit.axes import Size, SizeAxis
from ipygpumem.snapshot.replay.settings import settings_variable, version_note
from ipygpumem.snapshot.scaling.edits import ModuleCall, StepEdit, checkpoint, peak_order
from ipygpumem.snapshot.scaling.step_predictor import RecordedStepPredictor, StepPredictor

_MIN_SAVED = 0.01
"""Smallest relative reduction of the peak for which a change is shown."""
_MAX_UNITS = 48
"""Maximum number of groups into which the blocks are divided before the groups to checkpoint are selected."""
_ROWS = 4
"""Maximum number of selections of blocks to checkpoint; a selection of all blocks may be added."""
_PARTS = (2, 4, 8)
_CHUNKS = 8
_MIN_LOSS = 0.1
"""Smallest share of the peak in the last layer and the loss for which the loss in chunks is predicted."""
_LOSS_CODE = """\
def chunk_loss(x, target):  # x: input of the last layer
    return torch.nn.functional.cross_entropy(last_layer(x), target, reduction="sum")
parts = zip(x.chunk(8), target.chunk(8))
losses = [torch.utils.checkpoint.checkpoint(chunk_loss, *part, use_reentrant=False) for part in parts]
loss = sum(losses) / target.numel()"""
_NAMES = 5
"""Maximum number of variables that the name of a change lists."""
_EXPANDABLE = "expandable_segments:True"
_SHORT = (np.asarray([0]), np.asarray([1]))
"""Relative positions of the allocation and the free of a tensor that is freed immediately."""


@dataclass(frozen=True, eq=False)
class Advisor:
    """Predicts how changes to a program would reduce the memory usage of a step.

    Attributes:
        scaled: The prediction of the step without changes.
        observations: Observations of the step.
        axes: Variables that determine the size of the step.
        capacity: Memory that PyTorch can use, in bytes.
        run_contexts: Function that runs the step in the context managers that can reduce its memory usage, and returns
            the items of `in_contexts`; None in an unpickled copy, which cannot run the step.
    """

    scaled: RecordedStepPredictor
    observations: StepObservations
    axes: tuple[SizeAxis, ...]
    capacity: int
    run_contexts: Callable[[], Iterable[tuple[ContextManagerChange, RecordedStepPredictor | str]]] | None

    def __reduce__(self) -> tuple[Any, ...]:
        return Advisor, (self.scaled, StepObservations(), self.axes, self.capacity, None)

    def advice(self, size: Size) -> Advice:
        """Return the changes that reduce the peak memory usage of the step at a size by at least 1%.

        For allocator settings, this is the peak of the reserved memory, otherwise that of the allocated memory.

        Raises:
            OptionError: This object is an unpickled copy, or the size is invalid.
        """
        if self.run_contexts is None:
            raise OptionError("changes require the process that ran the step: call advice() before you save the result")
        step = self.scaled if len(size) == 1 else self.scaled.at(1, size[1])
        first = size[0]
        current = self._predicted(ChangeCandidate("as it is", None, step, 0.0, ""), first)
        changes, notes = [], list[str]()
        candidates = itertools.chain(
            self._checkpointing(step, first),
            self._accumulation(step, first),
            set_to_none(self.observations, step, first),
            other_options(self.observations, step),
            self._loss_in_chunks(step, first),
            self._in_contexts(size, notes),
            self._settings(step),
            self._unused_variables(step),
        )
        for candidate in candidates:
            change = self._predicted(candidate, first)
            before, after = current.allocated, change.allocated
            if candidate.settings is not None:
                before, after = current.reserved, change.reserved
            if after <= (1 - _MIN_SAVED) * before:
                changes.append(change)
        return Advice(size, self.axes[0].name, current, tuple(changes), tuple(notes))

    @cached_property
    def in_contexts(self) -> list[tuple[ContextManagerChange, RecordedStepPredictor | str]]:
        """Context managers, each with the prediction of the step that runs in it, or the reason why there is none.

        The first access runs the step. The list is empty in an unpickled copy.
        """
        return list(self.run_contexts()) if self.run_contexts is not None else []

    def checkpointed(self, step: StepPredictor, blocks: Sequence[int]) -> StepPredictor:
        return self._checkpoint_edit(step, blocks).apply()

    def block_order(self, step: StepPredictor, size: int) -> list[list[int]]:
        """Return groups of block indices in the order in which to checkpoint the blocks.

        A greedy algorithm selects the group that saves the most bytes at the peak per second of recomputation, then the
        next group. Groups that do not reduce the peak are omitted.
        """
        seconds = self.observations.block_seconds
        of_kind: dict[str, list[float]] = {}
        for block, value in seconds.items():
            of_kind.setdefault(self.observations.blocks[block].type, []).append(value)
        means = {kind: sum(values) / len(values) for kind, values in of_kind.items()}  # a single time is irregular
        blocks = sorted(seconds)
        length = -(-len(blocks) // _MAX_UNITS)
        units = [blocks[start : start + length] for start in range(0, len(blocks), length)] if blocks else []
        costs = [sum(means[self.observations.blocks[block].type] for block in unit) for unit in units]
        edits = [self._checkpoint_edit(step, unit) for unit in units]
        return [units[number] for number in peak_order(step, edits, costs, (size,))]

    def selections(self, step: StepPredictor, size: int, count: int) -> list[list[int]]:
        """Return up to ``count + 1`` lists of the indices of blocks to checkpoint, shortest first.

        The last list contains all blocks. The result is empty if no block reduces the peak.
        """
        order = self.block_order(step, size)
        ends = sorted({-(-len(order) * number // count) for number in range(1, count + 1)} - {0})
        selections = [sorted(block for unit in order[:end] for block in unit) for end in ends]
        every = sorted({call.block for call in self.observations.calls})
        return selections if not selections or selections[-1] == every else [*selections, every]

    def selection_name(self, blocks: Sequence[int]) -> str:
        return f"checkpoint {len(blocks)} of {many(len({call.block for call in self.observations.calls}), 'block')}"

    def _checkpoint_edit(self, step: StepPredictor, blocks: Sequence[int]) -> StepEdit:
        edit = StepEdit(step)
        for call in self._calls(blocks):
            checkpoint(edit, call)
        return edit

    def _calls(self, blocks: Sequence[int]) -> list[ModuleCall]:
        return [call for call in self.observations.calls if call.block in blocks]

    def _checkpointing(self, step: StepPredictor, size: int) -> Iterator[ChangeCandidate]:
        total = len({call.block for call in self.observations.calls})
        for blocks in self.selections(step, size, _ROWS):
            seconds = sum(self.observations.block_seconds[block] for block in blocks)
            names = [self.observations.blocks[block] for block in blocks]
            yield ChangeCandidate(
                self.selection_name(blocks),
                "checkpointing",
                self.checkpointed(step, blocks),
                seconds / (self.observations.step_seconds or 1),
                checkpoint_code(names, total),
                ", ".join(block_expressions(names)),
            )

    def _accumulation(self, step: StepPredictor, size: int) -> Iterator[ChangeCandidate]:
        updates = self.observations.updates
        if not updates or updates[0].begin <= step.step_requests.backward:
            return
        edit = StepEdit(step)
        requests = step.step_requests
        gradients = np.unique(np.concatenate([update.gradients for update in updates]))
        sizes = step.model.sizes((size,))
        blocks = requests.state.state.blocks["requested"]
        is_replaced = np.isin(blocks, sizes[gradients]) & (requests.block_ends < len(requests.operations))
        edit.block_end[is_replaced] = edit.time(0)
        order = np.arange(len(gradients))
        temporary = [
            edit.insert(int(requests.start[number]) + 1, np.asarray([number]), *_SHORT) for number in gradients
        ]
        del temporary
        edit.start[gradients] = edit.time(0) + 1 + order
        accumulated = edit.apply()
        for parts in _PARTS:
            if size // parts >= self.axes[0].first_run:
                code = (
                    "optimizer.zero_grad()\n"
                    f"for part in range({parts}):\n"
                    f"    loss = ...  # for 1/{parts} of the batch\n"
                    f"    (loss / {parts}).backward()\n"
                    "optimizer.step()"
                )
                name = f"accumulate gradients over {parts} parts"
                yield ChangeCandidate(name, "accumulation", accumulated, None, code, parts=parts)

    def _loss_in_chunks(self, step: StepPredictor, size: int) -> Iterator[ChangeCandidate]:
        """Yield the change that computes the last layer and the loss in chunks, if this could reduce the peak.

        The output of the last layer is often the largest tensor. The chunks are recomputed in the backward pass, one at
        a time.
        """
        calls, edit, requests = self.observations.calls, StepEdit(step), step.step_requests
        if not calls:
            return
        begin, end = max(call.end for call in calls), min(call.backward for call in calls)
        sizes = step.model.sizes((size,))
        levels = requests.base + requests.levels(sizes)
        last = np.flatnonzero((requests.start >= begin) & (requests.start < end))
        growing = last[step.model.grows[last]]
        large = growing[4 * sizes[growing] >= sizes[growing].max(initial=0)]
        at_peak = np.isin(large, requests.live(int(np.argmax(levels)) - 1)[0])
        if sizes[large[at_peak]].sum() < _MIN_LOSS * levels.max():
            return
        edit.scale(large, 1 / _CHUNKS)
        gradients = last[(requests.start[last] >= requests.backward) & (requests.end[last] >= end)]
        edit.start[gradients] = edit.time(requests.backward) + np.arange(len(gradients))  # the parts are added up
        for gradient in gradients[~step.model.grows[gradients]].tolist():
            edit.insert(int(requests.start[gradient]) + 1, np.asarray([gradient]), *_SHORT)
        yield ChangeCandidate(
            f"loss in {_CHUNKS} chunks", "loss", edit.apply(), None, _LOSS_CODE, "recomputes the last layer"
        )

    def _in_contexts(self, size: Size, notes: list[str]) -> Iterator[ChangeCandidate]:
        """Yield a candidate for each context manager, or append to ``notes`` the reason why it cannot be predicted."""
        for context, scaled in self.in_contexts:
            if isinstance(scaled, str):
                notes.append(f"{context.name} is not predicted: {scaled.rstrip('.')}.")
            else:
                step = scaled if len(size) == 1 else scaled.at(1, size[1])
                yield ChangeCandidate(context.name, context.kind, step, None, context.code, context.note)

    def _unused_variables(self, step: StepPredictor) -> Iterator[ChangeCandidate]:
        edit = StepEdit(step)
        names = [name for name, blocks in self.observations.unused if len(blocks)]
        if names:
            edit.block_factor[np.concatenate([blocks for _, blocks in self.observations.unused]).astype(np.int64)] = 0
            code = f"del {', '.join(names)}"
            label = code if len(names) <= _NAMES else f"del {', '.join(names[:_NAMES])}, ..."
            yield ChangeCandidate(label, "variables", edit.apply(), 0.0, code, "the step does not use these variables")

    def _settings(self, step: StepPredictor) -> Iterator[ChangeCandidate]:
        if not step.step_requests.state.recording.settings.expandable:
            fresh = StepPredictor(step.model, step.step_requests, keeps_state=False)
            version = step.step_requests.state.recording.snapshot.own.torch_version
            note = f"before torch is imported{version_note(_EXPANDABLE, version)}"
            code = f'import os\nos.environ["{settings_variable(version)}"] = "{_EXPANDABLE}"  # {note}'
            yield ChangeCandidate(_EXPANDABLE, "settings", fresh, 0.0, code, "in a new process", settings=_EXPANDABLE)

    def _predicted(self, candidate: ChangeCandidate, size: int) -> PredictedChange:
        parts, settings, axis = candidate.parts, candidate.settings, self.axes[0]
        prediction = candidate.step.predict(-(-size // parts), settings=settings)
        largest = candidate.step.largest(
            self.capacity, first=-(-axis.first // parts), last=max(axis.last // parts, 1), settings=settings
        )
        return PredictedChange(
            candidate.name,
            candidate.kind,
            prediction.allocated,
            prediction.reserved,
            None if largest is None else axis.at_most(largest * parts),
            candidate.added_time if self.observations.seconds else None,
            candidate.code,
            candidate.note,
        )
