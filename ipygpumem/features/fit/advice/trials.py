"""Runs of a step with activation checkpointing, which check the predicted peaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ipygpumem.core.errors import first_line
from ipygpumem.features.fit.advice.blocks import Checkpointing
from ipygpumem.features.fit.advice.model import Trial

if TYPE_CHECKING:
    from ipygpumem.features.fit.advice.advisor import Advisor
    from ipygpumem.features.fit.probes import StepRunner
    from ipygpumem.features.fit.search import Search


def run_trials(search: Search, runner: StepRunner, advisor: Advisor) -> Iterator[Trial]:
    """Run the step with activation checkpointing of some blocks and of all blocks, at the largest size that ran.

    These runs need less memory than the run without activation checkpointing. In a distributed program, there are no
    such runs, because the ranks could choose different blocks.
    """
    scaled, all_blocks = search.scaled, search.observations.blocks
    if scaled is None or search.ranks.world > 1:
        return
    size = max(probe.size for probe in search.probes)
    step = scaled if len(size) == 1 else scaled.at(1, size[1])
    for blocks in advisor.selections(step, size[0], 2):
        name = advisor.selection_name(blocks)
        predicted = advisor.checkpointed(step, blocks).predict(size[0]).allocated
        try:
            with Checkpointing([all_blocks[block] for block in blocks]):
                measured = runner.run(size).peaks[search.index].allocated
        except Exception as error:
            search.notes.append(f"With {name}, the step failed: {first_line(error)}")
            continue
        yield Trial(name, size, predicted, measured)
