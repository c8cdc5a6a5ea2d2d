"""Tables of changes that reduce the memory usage of a step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ipygpumem.core.tables import Table, TableRow
from ipygpumem.core.units import size
from ipygpumem.features.fit.axes import size_name

if TYPE_CHECKING:
    from ipygpumem.features.fit.advice.model import Advice, ChangeTrial, PredictedChange


def advice_tables(advice: Advice) -> list[Table]:
    at = f"{advice.axis} {size_name(advice.size)}"
    if not advice.changes:
        return [Table(f"No known change reduces the peak at {at} by at least 1%.", (), (), advice.notes)]
    header = ("allocated", "saved", "reserved", f"largest {advice.axis}", "added time")
    columns = len(header) - all(change.added_time is None for change in advice)
    changes = (advice.current, *advice)
    rows = [TableRow(change.name, _cells(advice, change)[:columns], 1, note=change.note) for change in changes]
    # if the code of several changes begins with the same line, only the last change is included
    shown_changes = {change.code.partition("\n")[0]: change for change in advice}.values()
    code = [
        TableRow(line, (), 2 if number else 1)
        for change in shown_changes
        for number, line in enumerate((change.name, *change.code.splitlines()))
    ]
    return [
        Table(f"changes, predicted at {at}", header[:columns], tuple(rows), advice.notes),
        Table("how to make these changes", (), tuple(code), code=True),
    ]


def _cells(advice: Advice, change: PredictedChange) -> tuple[str, ...]:
    current = advice.current
    savings = "" if change.kind in {None, "settings"} else size(current.allocated - change.allocated)
    time = "" if change is current or change.added_time is None else f"{change.added_time:+.0%}"
    largest = "none" if change.largest is None else f"{change.largest:,}"
    return size(change.allocated), savings, size(change.reserved), largest, time


def trial_table(trials: Sequence[ChangeTrial]) -> Table:
    rows = (
        TableRow(
            trial.name, (size_name(trial.size), size(trial.predicted), size(trial.measured), f"{trial.error:+.1%}"), 1
        )
        for trial in trials
    )
    return Table("runs with changes", ("size", "predicted", "measured", "error"), tuple(rows))
