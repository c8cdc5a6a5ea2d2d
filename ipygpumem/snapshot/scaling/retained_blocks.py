"""Allocations that a run of a step leaves for later runs, such as an output that is kept until it is replaced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ipygpumem.snapshot.model.timeline import Ints
from ipygpumem.snapshot.scaling.matching import MatchedRecordings, Run


class RetainedBlocks(NamedTuple):
    """Blocks that earlier runs of a step have created and not freed.

    Attributes:
        sources: For each block that a later run will free, the index of the allocation of the step that created it; -1
            for the other blocks.
        ages: For each block whose source is not -1, the number of runs since its creation (1 for the previous run); 0
            for the other blocks.
        older: Dict that maps the rows of allocations older than the recorded step to the corresponding blocks. A block
            corresponds to an allocation if both were created by the same allocation of the step, and equally many runs
            before the recorded step and before the state, respectively.
    """

    sources: Ints
    ages: Ints
    older: dict[int, int]


class _BlockOrigin(NamedTuple):
    """Number of the run that created a block, and index of the corresponding allocation in `MatchedRecordings.step`.

    The index is -1 if there is no such allocation.
    """

    run: int
    source: int


def find_retained_blocks(runs: Sequence[Run], matched: MatchedRecordings, rows: Ints) -> RetainedBlocks:
    """Return the blocks that earlier runs have created and not freed.

    Args:
        runs: All runs, in the order in which they were recorded.
        matched: Runs from which the step is predicted.
        rows: Row of each block that exists after the last run, in the timeline of this run.
    """
    origins: dict[int, _BlockOrigin] = {}  # the allocations that exist before a run, by ID
    freed: set[int] = set()
    older: dict[_BlockOrigin, int] = {}
    for number, (size, run) in enumerate(runs):
        allocations, counterparts = run.timeline.allocations, matched.counterparts((size, run))
        ids, ended = run.ids.tolist(), allocations.end <= run.last
        existing = {ids[row]: row for row in allocations.live(run.first).tolist()}
        origins = {key: origin for key, origin in origins.items() if key in existing and origin.source >= 0}
        if run is matched.step:
            older = {_BlockOrigin(origin.run - number, origin.source): existing[key] for key, origin in origins.items()}
        freed |= {origin.source for key, origin in origins.items() if ended[existing[key]]}
        origins = {key: origin for key, origin in origins.items() if not ended[existing[key]]}
        new = zip(run.rows.tolist(), counterparts.tolist(), strict=True)
        origins |= {ids[row]: _BlockOrigin(number, index) for row, index in new if not ended[row]}
    sources, ages, blocks = np.full(len(rows), -1, np.int64), np.zeros(len(rows), np.int64), {}
    for block, key in enumerate(runs[-1][1].ids[rows].tolist()):
        origin = origins.get(key)
        if origin is not None and origin.source >= 0:
            blocks[_BlockOrigin(origin.run - len(runs), origin.source)] = block
            if origin.source in freed:
                sources[block], ages[block] = origin.source, len(runs) - origin.run
    return RetainedBlocks(sources, ages, {row: blocks[origin] for origin, row in older.items() if origin in blocks})
