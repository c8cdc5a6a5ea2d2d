"""The event of the peak as a function of the size of the step."""

from __future__ import annotations

import numpy as np

from ipygpumem.snapshot.scaling.results import Piece
from ipygpumem.snapshot.scaling.sequence import StepSequence
from ipygpumem.snapshot.scaling.size_model import Floats, SizeModel

_TOLERANCE = 1.0
"""Bytes by which rounding may change the level of an event."""


def find_pieces(sequence: StepSequence, model: SizeModel, first: int, last: int) -> tuple[Piece, ...]:
    """Return the events that are the peak at the sizes from ``first`` to ``last`` of the only axis, ordered by size."""
    coefficients = sequence.levels(model.coefficients)
    linear = model.coefficients.shape[1] <= 1 + 1

    def levels(size: int) -> Floats:
        values: Floats = sequence.base + model.evaluate(coefficients, (size,))
        return values

    result: list[Piece] = []
    size = first
    while size <= last:
        now = levels(size)
        highest = np.flatnonzero(now >= now.max() - _TOLERANCE)
        event = int(highest[np.argmax(levels(last)[highest])])
        low, high = size, last + 1
        while high - low > 1:
            middle = last if high > last and low == size else (low + high) // 2
            at = levels(middle)
            low, high = (middle, high) if at[event] >= at.max() - _TOLERANCE else (low, middle)
        span = 1 if linear else max(low - size, 1)
        slope = float(levels(size + span)[event] - now[event]) / span
        phase, line = sequence.position(event - 1)
        constant = round(float(levels(0)[event])) if linear else None
        result.append(Piece(size, low, constant, slope, phase, line, event - 1))
        size = low + 1
    return tuple(result)
