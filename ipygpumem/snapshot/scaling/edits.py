"""Changes to the allocations of a step, for predictions of the memory usage of the changed step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ipygpumem.snapshot.model.timeline import Ints
from ipygpumem.snapshot.scaling.retained_blocks import RetainedBlocks
from ipygpumem.snapshot.scaling.size_model import Floats, SizeModel
from ipygpumem.snapshot.scaling.step_predictor import StepPredictor
from ipygpumem.snapshot.scaling.step_requests import CreatedBlocks, StepRequests

_STRIDE = 1 << 24  # distance between the times of two events; inserted requests are in between


class StepEdit:
    """Changes to the allocations of a step.

    A boundary is a position between two events: boundary ``k`` follows ``k`` events. The time of a request is an
    integer, and requests occur in the order of their times.

    Attributes:
        start: Time of each allocation, including inserted allocations.
        end: Time at which each allocation is freed; the time of the end of the step if it is not freed.
        block_end: Time at which each block that is older than the step is freed, as in ``end``.
        block_factor: Factor by which the size of each block that is older than the step is multiplied; 0 removes it.
    """

    def __init__(self, step: StepPredictor) -> None:
        self.step = step
        requests = step.step_requests
        self._events = len(requests.operations)
        self._count = len(requests.start)
        self.start: Ints = requests.start * _STRIDE
        self.end: Ints = requests.end * _STRIDE
        self.block_end: Ints = requests.block_ends * _STRIDE
        self.block_factor: Floats = np.ones(len(self.block_end))
        self._sources = np.arange(self._count)
        self._coefficients = step.model.coefficients
        self._removed = np.zeros(self._count, np.bool_)
        self._used: dict[int, int] = {}

    @staticmethod
    def time(boundary: Any) -> Any:
        """Return the earliest time at a boundary. Inserted requests have later times."""
        return (boundary - 1) * _STRIDE + 1

    def original_end(self, indices: Ints) -> Ints:
        """Return the times at which allocations of the recorded step are freed."""
        return self.step.step_requests.end[indices] * _STRIDE

    def insert(
        self, boundary: int, sources: Ints, starts: Ints, ends: Ints, coefficients: Floats | None = None
    ) -> Ints:
        """Insert allocations at a boundary, and return their indices.

        ``sources``: Indices of the allocations from which the stream, the line and, by default, the sizes are taken.
        ``starts``: Position of each allocation in the order of the inserted requests.
        ``ends``: Position of each free in this order; -1 if the allocation is freed later, at a time that the caller
            stores in the attribute ``end``.
        ``coefficients``: Coefficients of the polynomials for the sizes, as in `SizeModel`.
        """
        first = self.time(boundary) + 1 + self._used.get(boundary, 0)
        self._used[boundary] = self._used.get(boundary, 0) + int(max(starts.max(initial=0), ends.max(initial=0))) + 1
        new_coefficients = self._coefficients[sources] if coefficients is None else coefficients
        indices = len(self.start) + np.arange(len(sources))
        self.start = np.append(self.start, first + starts)
        self.end = np.append(self.end, np.where(ends < 0, self._events * _STRIDE, first + ends))
        self._sources = np.append(self._sources, self._sources[sources])
        self._coefficients = np.concatenate([self._coefficients, new_coefficients])
        self._removed = np.append(self._removed, np.zeros(len(sources), np.bool_))
        return indices

    def keep(self, index: int) -> None:
        """Change an allocation so that it is not freed before the end of the step."""
        self.end[index] = self._events * _STRIDE

    def remove(self, indices: Ints) -> None:
        self._removed[indices] = True

    def scale(self, indices: Ints, factor: float) -> None:
        self._coefficients = self._coefficients.copy()
        self._coefficients[indices] *= factor

    def changes(self, size: tuple[int, ...]) -> tuple[Ints, Ints]:
        """Return the times at which the changes affect the requested bytes at a size, and the differences in bytes."""
        requests, count = self.step.step_requests, self._count
        before = np.append(requests.start, requests.end) * _STRIDE
        old = self.step.model.sizes(size)
        new = np.where(self._removed, 0, self._model().sizes(size))
        changed_indices = np.flatnonzero(
            (self.start[:count] != before[:count]) | (self.end[:count] != before[count:]) | (new[:count] != old)
        )
        new_indices = np.append(changed_indices, np.arange(count, len(new)))
        blocks = np.flatnonzero(self._not_left_over())
        previous = old[requests.retained.sources[blocks]]
        times = [
            before[:count][changed_indices],
            before[count:][changed_indices],
            self.start[new_indices],
            self.end[new_indices],
        ]
        times += [np.full(len(blocks), -2 * _STRIDE), self.block_end[blocks]]
        amounts = [
            -old[changed_indices],
            old[changed_indices],
            new[new_indices],
            -new[new_indices],
            -previous,
            previous,
        ]
        return np.concatenate(times), np.concatenate(amounts)

    def apply(self, *, keeps_state: bool = True) -> StepPredictor:
        """Return a predictor of the changed step. ``keeps_state`` is described in `StepPredictor`."""
        return StepPredictor(self._model(), EditedRequests(self), keeps_state=keeps_state)

    def _not_left_over(self) -> NDArray[np.bool_]:
        """Return a mask of the blocks that previous runs of the changed step would have freed or not allocated."""
        requests = self.step.step_requests
        sources = requests.retained.sources
        freed = self._removed[sources] | (self.end[sources] < self._events * _STRIDE)
        result: NDArray[np.bool_] = requests.resized & freed
        return result

    def _model(self) -> SizeModel:
        model = self.step.model
        names = ("irregular", "low", "high", "limits")
        values: dict[str, Any] = {
            name: np.broadcast_to(getattr(model, name), self._count)[self._sources] for name in names
        }
        return replace(model, coefficients=self._coefficients, **values)

    def build(self, requests: EditedRequests) -> None:
        original, limit = self.step.step_requests, self._events * _STRIDE
        existing = np.flatnonzero((self.block_factor > 0) & ~self._not_left_over())
        block_end, factor = self.block_end[existing], self.block_factor[existing]
        count, blocks = len(self.start), len(existing)
        kept_indices = np.flatnonzero(~self._removed)
        freed, freed_blocks = kept_indices[self.end[kept_indices] < limit], np.flatnonzero(block_end < limit)
        special = np.flatnonzero(original.operations >= self._count + len(self.block_end))
        codes = [kept_indices, ~freed, ~(count + freed_blocks), count + blocks + np.arange(len(special))]
        times = np.concatenate([self.start[kept_indices], self.end[freed], block_end[freed_blocks], special * _STRIDE])
        order = np.argsort(times, kind="stable")
        operations = np.concatenate(codes)[order]
        total = len(operations)
        position = np.empty(total, np.int64)
        position[order] = np.arange(total)
        place = np.full((2, count + blocks), total, np.int64)
        parts = np.split(position, np.cumsum([len(kept_indices), len(freed), len(freed_blocks)]))
        place[0, kept_indices], place[1, freed], place[1, count + freed_blocks], _ = parts
        last = len(original.events) - 1
        requests.operations = operations.astype(np.int32)
        requests.events = original.events[np.clip(-(-times[order] // _STRIDE), 0, last)]
        requests.start, requests.end, requests.block_ends = place[0, :count], place[1, :count], place[1, count:]
        requests.sources = self._sources
        block_table = original.state.state.blocks[existing]
        for name in ("requested", "rounded"):
            block_table[name] = np.where(factor == 1, block_table[name], np.rint(block_table[name] * factor))
        requests.state = replace(original.state, state=replace(original.state.state, blocks=block_table))
        requests.retained = RetainedBlocks(original.retained.sources[existing], original.retained.ages[existing], {})
        number_of = np.full(len(self.block_end), -1, np.int64)
        number_of[existing] = np.arange(blocks)
        is_remaining = number_of[original.created.blocks] >= 0
        before = self.time(original.created.boundaries[is_remaining])
        requests.created = CreatedBlocks(
            number_of[original.created.blocks[is_remaining]],
            np.searchsorted(times[order], before),
            original.created.temporaries[is_remaining],
        )
        requests.resized = original.resized[existing]
        pool_of = original.pool_of
        requests.pool_of = np.concatenate([pool_of[: self._count][self._sources], pool_of[self._count :][existing]])
        requests.count = count


class EditedRequests(StepRequests):
    """Requests of a changed step.

    Attributes:
        sources: For each allocation, the index of the allocation of the recorded step that has its line of code.
    """

    def __init__(self, edit: StepEdit) -> None:
        self.__dict__.update(edit.step.step_requests.__dict__)
        self.sources: Ints = np.zeros(0, np.int64)
        edit.build(self)

    def source(self, number: int) -> int:
        return int(self.sources[number])


def peak_order(
    step: StepPredictor, edits: Iterable[StepEdit], costs: Iterable[float], size: tuple[int, ...]
) -> list[int]:
    """Return indices of changes in the order in which a greedy algorithm selects them.

    The algorithm repeatedly selects the change with the highest ratio of the reduction of the peak at ``size`` to the
    cost. The changes must be independent of each other. Changes that do not reduce the peak are omitted.
    """
    requests, all_costs = step.step_requests, np.maximum(list(costs), 1e-9)
    changes = [edit.changes(size) for edit in edits]
    own = np.arange(len(requests.operations)) * _STRIDE
    times = np.unique(np.concatenate([[-2 * _STRIDE], own, *(at for at, _ in changes)]))
    levels = requests.base + requests.levels(step.model.sizes(size))
    level = levels[np.searchsorted(own, times, side="right")]
    deltas = []
    for at, amounts in changes:
        delta = np.zeros(len(times), np.int64)
        np.add.at(delta, np.searchsorted(times, at), amounts)
        deltas.append(np.cumsum(delta))
    remaining, order = list(range(len(deltas))), []
    while remaining:
        highest = int(np.argmax(level))
        savings = np.asarray([level[highest] - (level + deltas[number]).max() for number in remaining])
        lowered = np.asarray([-deltas[number][highest] for number in remaining])
        values = (savings if savings.max() > 0 else lowered) / all_costs[remaining]  # several peaks may be equally high
        best = int(np.argmax(values))
        if values[best] <= 0:
            break
        level = level + deltas[remaining[best]]
        order.append(remaining.pop(best))
    return order


@dataclass(frozen=True, slots=True, eq=False)
class ModuleCall:
    """Call to a module in the forward pass of a step. Boundaries are those of `StepEdit`.

    Attributes:
        block: Index of the called module.
        begin, end: Boundaries before and after the call.
        backward: Boundary at which the backward pass first needs a saved tensor of the module.
        inputs: Indices of the allocations of the step that contain the arguments.
        outputs: Indices of the allocations of the step that contain the results.
        autocast: Whether autocast was enabled.
        seconds: Duration of the call in seconds.
    """

    block: int
    begin: int
    end: int
    backward: int
    inputs: Ints
    outputs: Ints
    autocast: bool
    seconds: float


def checkpoint(edit: StepEdit, call: ModuleCall) -> bool:
    """Free the activations of a call in the forward pass, and insert their recomputation in the backward pass.

    As with ``torch.utils.checkpoint.checkpoint(use_reentrant=False)``, the recomputation ends with the last activation
    that the backward pass needs. The arguments are kept until the last activation is freed. Return False without a
    change if the call has no activations other than its outputs; otherwise True.
    """
    requests = edit.step.step_requests
    start, end = requests.start, requests.end
    inside = np.flatnonzero((start >= call.begin) & (start < call.end))
    inside = inside[np.argsort(start[inside])]
    saved_for_backward = inside[(end[inside] >= call.backward) & (end[inside] < len(requests.operations))]
    is_output = np.isin(saved_for_backward, call.outputs)
    if is_output.all():
        return False
    last = int(start[saved_for_backward].max()) + 1
    copied = inside[start[inside] < last]
    is_needed = np.isin(copied, saved_for_backward)
    ends = np.where(is_needed, -1, np.minimum(end[copied], last) - call.begin)
    copies = edit.insert(call.backward, copied, start[copied] - call.begin, ends)
    edit.end[copies[is_needed]] = edit.original_end(copied[is_needed])
    edit.end[saved_for_backward[is_output]] = edit.time(call.backward)
    activations = saved_for_backward[~is_output]
    freed = np.full(len(activations), edit.time(call.end))
    if call.autocast:  # the converted parameters remain in the cache of autocast until the forward pass ends
        constant = ~edit.step.model.grows[activations]
        freed[constant] = edit.time(min(call.backward, requests.backward))
    edit.end[activations] = freed
    until = int(edit.original_end(saved_for_backward).max())
    kept_inputs = call.inputs[end[call.inputs] < len(requests.operations)]
    edit.end[kept_inputs] = np.maximum(edit.end[kept_inputs], until)
    return True
