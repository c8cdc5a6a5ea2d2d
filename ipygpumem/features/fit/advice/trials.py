"""Runs of the step with changes, which check the predictions of these changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ipygpumem.core.errors import first_line
from ipygpumem.features.fit.advice.model import ChangeTrial
from ipygpumem.features.fit.advice.model_blocks import checkpointing
from ipygpumem.features.fit.axes import Size, size_name

if TYPE_CHECKING:
    from ipygpumem.features.fit.advice.advisor import Advisor
    from ipygpumem.features.fit.advice.contexts import ContextManagerChange
    from ipygpumem.features.fit.search import SizeSearch


def run_checkpointed(
    search: SizeSearch, advisor: Advisor, contexts: Sequence[ContextManagerChange]
) -> Iterator[ChangeTrial]:
    """Run the step with activation checkpointing of some and of all blocks, at the largest size of the previous runs.

    These runs need less memory than the run without activation checkpointing. They are omitted in distributed programs,
    because the ranks could select different blocks. If there are no such runs and no ``contexts``, a note states why.
    """
    size, alone = max(probe.size for probe in search.probes), search.ranks.world == 1
    step = advisor.scaled if len(size) == 1 else advisor.scaled.at(1, size[1])
    selections = advisor.selections(step, size[0], 2) if alone else []
    if not selections and not contexts:
        search.notes.append(_nothing_to_try(size) if alone else "Changes are not tried in distributed programs.")
    for blocks in selections:
        name = advisor.selection_name(blocks)
        predicted_peak = advisor.checkpointed(step, blocks).predict(size[0]).allocated
        try:
            with checkpointing([search.collector.blocks[block] for block in blocks]):
                measured = search.runner.run(size).peaks[search.index].allocated
        except Exception as error:
            search.notes.append(f"The step failed with the change {name!r}: {first_line(error)}")
            continue
        yield ChangeTrial(name, size, predicted_peak, measured)


def _nothing_to_try(size: Size) -> str:
    at = size_name(size)
    return (
        f"No change was tried: activation checkpointing does not reduce the peak at size {at}, and autocast and "
        "save_on_cpu cannot be tried with this step."
    )
