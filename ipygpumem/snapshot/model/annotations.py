"""Annotated regions: ``record_function`` and the optimizer's steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ipygpumem.core.to_dict import PlainData
from ipygpumem.snapshot.model.intervals import Intervals

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Annotation", "innermost"]

_FOREVER = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class Annotation(PlainData):
    """One region.

    Attributes:
        name: Its name, ``Optimizer.step#AdamW.step``.
        device: The current device; -1 if there was none.
        start_us: Microseconds since 1970; None if it started before the recording.
        end_us: Microseconds since 1970; None if it had not ended.
        depth: Number of enclosing regions.
        ambiguous: It overlaps another region without being nested in it. Files do not name threads: either several were
            active, or an entry is missing, and START and END of the same name may be paired incorrectly.
    """

    name: str
    device: int
    start_us: int | None
    end_us: int | None
    depth: int
    ambiguous: bool


def innermost(annotations: tuple[Annotation, ...], times: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each time the number of the innermost region, the later one of two at the same depth; -1 if there is none."""
    if not annotations or not len(times):
        return np.full(len(times), -1, np.int64)
    starts = [-1 if region.start_us is None else region.start_us for region in annotations]
    ends = [_FOREVER if region.end_us is None else region.end_us for region in annotations]
    ranks = [(region.depth, start) for region, start in zip(annotations, starts, strict=True)]
    # unknown times are -1, too: a region that started before the recording does not contain them
    return np.where(times < 0, -1, Intervals(starts, ends, ranks).at(times))
