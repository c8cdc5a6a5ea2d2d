"""Prediction of the memory of a step at any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ipygpumem.core.errors import OptionError
from ipygpumem.core.units import many, parse_size
from ipygpumem.snapshot.queries.groups import Group, group_rows
from ipygpumem.snapshot.replay.recording import Recording
from ipygpumem.snapshot.replay.run import Run, run
from ipygpumem.snapshot.replay.settings import AllocatorSettings
from ipygpumem.snapshot.scaling.pieces import find_pieces
from ipygpumem.snapshot.scaling.results import DOES_NOT_FIT, FITS, FITS_AFTER_RELEASE, Piece, Prediction
from ipygpumem.snapshot.scaling.sequence import StepSequence
from ipygpumem.snapshot.scaling.size_model import Size, SizeModel

MAX_SIZE = 1 << 20
"""Largest size that is considered by default."""


class ScaledStep:
    """A step at any size. A size is an integer, or a tuple with one integer per axis, such as ``(batch, length)``.

    Attributes:
        model: Sizes of the allocations of the step and of its insertions.
        sequence: The requests of the step.
    """

    def __init__(self, model: SizeModel, sequence: StepSequence) -> None:
        self.model = model
        self.sequence = sequence

    def predict(
        self, size: int | Sequence[int], capacity: int | str | None = None, settings: str | None = None
    ) -> Prediction:
        """Predict the memory of the step at a size, by a replay of its requests.

        Args:
            size: Size of the step.
            capacity: Limit of reserved memory, in bytes or as text such as ``"24 GiB"``; by default without a limit.
            settings: Allocator settings in the format of ``PYTORCH_ALLOC_CONF``; by default those of the recording.
        """
        at, limit = check_size(size, len(self.model.nodes)), None if capacity is None else parse_size(capacity)
        sizes = self.model.sizes(at)
        levels = self.sequence.base + self.sequence.levels(sizes)
        event = int(np.argmax(levels)) - 1
        chosen = None if settings is None else AllocatorSettings.parse(settings)
        requests = self.sequence.requests(sizes)
        result = _run(requests, chosen, limit)
        outcome, missing = FITS, 0
        if result.failures:
            failure = result.failures[0]
            outcome, missing = DOES_NOT_FIT, failure.reserved + failure.segment - (limit or 0)
        elif result.allocator.retries:
            outcome = FITS_AFTER_RELEASE
        retries = result.allocator.retries
        if result.failures:
            result = _run(requests, chosen, None)
        phase, line = self.sequence.position(event)
        return Prediction(
            size=at,
            capacity=limit,
            requested=int(levels.max()),
            allocated=int(result.allocated().max()),
            reserved=result.allocator.peak,
            outcome=outcome,
            retries=retries,
            missing=missing,
            left=int(levels[-1] - levels[0]),
            phase=phase,
            line=line,
        )

    def events(self, size: int | Sequence[int]) -> Recording:
        """Return the requests of the step at a size, in the form that `ipygpumem.snapshot.replay.run.run` replays."""
        return self.sequence.requests(self.model.sizes(check_size(size, len(self.model.nodes))))

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
        """Return the largest size at which the step fits; None if it does not fit even at the smallest one.

        Args:
            capacity: Limit of reserved memory, in bytes or as text.
            margin: Share of the capacity that must remain unused.
            first: Smallest size.
            last: Largest size.
            after_release: Whether to include sizes that fit only after PyTorch freed cached segments.
            settings: Allocator settings, as in `predict`.
        """
        self._require_one_axis()
        limit = int(parse_size(capacity) * (1 - margin))
        accepted = (FITS, FITS_AFTER_RELEASE) if after_release else (FITS,)

        def fits(size: int) -> bool:
            requested = (self.sequence.base + self.sequence.levels(self.model.sizes((size,)))).max()
            return requested <= limit and self.predict(size, limit, settings).outcome in accepted

        if not fits(first):
            return None
        fitting, failing = first, last + 1
        while failing - fitting > 1:
            middle = (fitting + failing) // 2
            fitting, failing = (middle, failing) if fits(middle) else (fitting, middle)
        return fitting

    def pieces(self, first: int = 1, last: int = MAX_SIZE) -> tuple[Piece, ...]:
        """Return the events that are the peak at the sizes from ``first`` to ``last``, ordered by size."""
        self._require_one_axis()
        return find_pieces(self.sequence, self.model, first, last)

    def breakdown(self, size: int | Sequence[int], key: str = "line") -> tuple[Group, ...]:
        """Return the requested bytes that exist at the peak of a size by line, or by another key of `KEYS`."""
        sequence, sizes = self.sequence, self.model.sizes(check_size(size, len(self.model.nodes)))
        event = int(np.argmax(sequence.base + sequence.levels(sizes))) - 1
        step, state = sequence.step, sequence.state
        live = np.flatnonzero((sequence.start <= event) & (sequence.end > event))
        own, inserted = live[live < len(step.rows)], live[live >= len(step.rows)]
        groups = [*group_rows(step.snapshot, step.timeline, step.rows[own], key, sizes[own])]
        older = state.state.blocks["row"][sequence.blocks_at(event)]
        groups += group_rows(state.snapshot, state.recording.timeline, older, key)
        groups += [Group(sequence.insertion_of(number).line, int(sizes[number]), 1) for number in inserted.tolist()]
        merged: dict[str, Group] = {}
        for group in groups:
            same = merged.get(group.label)
            both = (group.bytes + same.bytes, group.count + same.count) if same else (group.bytes, group.count)
            merged[group.label] = replace(same or group, bytes=both[0], count=both[1])
        return tuple(sorted(merged.values(), key=lambda group: -group.bytes))

    def _require_one_axis(self) -> None:
        if len(self.model.nodes) != 1:
            raise OptionError("there are two axes: fix the size on one of them with at()")


def _run(requests: Recording, settings: AllocatorSettings | None, limit: int | None) -> Run:
    chosen = settings or requests.settings
    return run(requests, chosen, limit=limit, by_fraction=chosen.collection_threshold > 0)


def check_size(size: int | Sequence[int], axes: int | None = None) -> Size:
    """Return a size as a tuple; raise `OptionError` if it is invalid or does not have the given number of axes."""
    values = (size,) if isinstance(size, (int, np.integer)) else tuple(size)
    if not values or any(
        isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1 for value in values
    ):
        raise OptionError(f"{size!r} is not the size of a step: expected positive integers")
    if axes is not None and len(values) != axes:
        raise OptionError(f"the size {size!r} does not have {many(axes, 'value')}, as the recorded sizes do")
    return tuple(int(value) for value in values)
