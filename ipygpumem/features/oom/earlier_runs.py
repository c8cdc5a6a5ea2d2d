"""Prediction of a size that fits, from earlier runs of a failed cell, and ``%gpumem fit`` commands to find the size."""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from ipygpumem.core.introspection import attempt
from ipygpumem.core.redaction import redact_code
from ipygpumem.features.oom.expandable_segments import ReplayTimeLimit
from ipygpumem.features.oom.model import FailedAllocation
from ipygpumem.features.recording_analysis import EventLookup
from ipygpumem.measurement.recorder import AllocationRecorder
from ipygpumem.measurement.runtime import EventPosition, event_position
from ipygpumem.snapshot import Snapshot
from ipygpumem.snapshot.scaling.size_model import SizeModel
from ipygpumem.snapshot.scaling.step import StepRecording
from ipygpumem.snapshot.scaling.step_predictor import RecordedStepPredictor, StepPredictor
from ipygpumem.snapshot.scaling.step_requests import InitialState, StepRequests

_MAX_RUNS = 50
_MAX_SIZES = 4
_NAME, _NUMBER = re.compile(r"[^\W\d]\w*"), re.compile(r"(?<![\w.])\d+(?![\w.])")


@dataclass(frozen=True, slots=True)
class CellRun:
    """A run of a cell whose allocations were recorded.

    Attributes:
        code: Source code with all integers replaced by 0.
        values: Values of the integer variables by name, and the integers in the source code by index.
        begin: Position in the sequence of allocation events at which the run started.
    """

    code: str
    values: dict[str | int, int]
    begin: EventPosition
    end: EventPosition


class EarlierRuns:
    """The last successful runs of cells while allocations were recorded, and the start of the current run."""

    def __init__(self) -> None:
        self._runs: deque[CellRun] = deque(maxlen=_MAX_RUNS)
        self._recorder: AllocationRecorder | None = None
        self._begin: EventPosition = {}

    def begin(self, recorder: AllocationRecorder | None) -> None:
        if recorder is not self._recorder:
            self._runs.clear()
            self._recorder = recorder
        self._begin = {} if recorder is None else event_position()

    def end(self, source: str, variables: Mapping[str, Any]) -> None:
        if self._begin:
            self._runs.append(self._run(source, variables, event_position()))

    def _run(self, source: str, variables: Mapping[str, Any], end: EventPosition) -> CellRun:
        names = [name for name in _NAME.findall(source) if type(variables.get(name)) is int]
        values: dict[str | int, int] = {name: variables[name] for name in names}
        values |= enumerate(int(number[:18]) for number in _NUMBER.findall(source))
        return CellRun(_NUMBER.sub("0", source), values, self._begin, end)

    def fitting_size(
        self,
        snapshot: Snapshot,
        failure: FailedAllocation,
        source: str,
        variables: Mapping[str, Any],
        time: ReplayTimeLimit,
    ) -> str:
        failed_run = self._run(source, variables, {})
        reserved = None if failure.reading is None else failure.reading.reserved
        if self._recorder is None or reserved is None or not self._runs or not time.allows(0):
            return ""
        timeline = snapshot.timeline(int(failure.device.removeprefix("cuda:")))
        lookup = EventLookup(timeline, self._recorder, complete=False)
        runs: dict[int, CellRun] = {}
        name: str | int | None = None
        for run in self._runs:
            if (
                run.code == failed_run.code
                and run.values.keys() == failed_run.values.keys()
                and lookup.contains(run.begin)
            ):
                different_values = {key: value for key, value in run.values.items() if value != failed_run.values[key]}
                value_pairs = {(value, failed_run.values[key]) for key, value in different_values.items()}
                if len(value_pairs) == 1:
                    key = min(different_values, key=lambda key: not isinstance(key, str))
                    value = different_values[key]
                    if key == (name or key) and 0 < value < failed_run.values[key]:
                        name = key
                        runs[value] = run
        if name is None:
            return ""
        steps = [
            (value, StepRecording(snapshot, timeline.device, lookup.event(run.begin), lookup.event(run.end)))
            for value, run in sorted(runs.items())[-_MAX_SIZES:]
        ]
        steps = [(value, step) for value, step in steps if len(step.rows)]
        state = InitialState.at(snapshot, timeline.device, lookup.event(self._begin))
        capacity, limit = reserved + failure.available, failed_run.values[name]
        label = f"{name} " if isinstance(name, str) else ""
        for scaled, sizes in _predictions(steps, state):
            largest = scaled.largest(capacity, last=limit - 1, after_release=True) if time.allows(0) else None
            if largest is not None and largest >= steps[-1][0]:
                return f"{label}{largest:,} instead of {limit:,} would have fit, {sizes}"
        return ""


def _predictions(steps: list[tuple[int, StepRecording]], state: InitialState) -> Iterator[tuple[StepPredictor, str]]:
    if len(steps) > 1:
        scaled = attempt(lambda: RecordedStepPredictor.from_recordings(steps, "linear", state))
        if scaled is not None and not scaled.reasons:
            *sizes, last = (f"{size:,}" for size, _ in steps)
            yield scaled, f"as predicted from the recorded runs with {', '.join(sizes)} and {last}"
    for size, step in steps[-1:]:
        model = SizeModel.fit(((size, 2 * size),), np.stack([step.sizes, 2 * step.sizes], axis=1))
        yield (
            StepPredictor(model, StepRequests(step, state)),
            f"if the memory of the recorded run with {size:,} grows in proportion to this number",
        )


_LIKELY = re.compile(r"batch|\bbs\b|seq|len|tokens|samples|size|width|height|resolution", re.IGNORECASE)
_UNLIKELY = re.compile(
    r"epoch|iter|seed|worker|rank|device|layer|hidden|dim|channel|class|vocab|head|embed|^(steps?|[ijk_])$",
    re.IGNORECASE,
)
_MAX_STATEMENTS, _MAX_LENGTH = 4, 120
_SIZES = range(2, 1 << 20)
_SMALLEST_RANGE = 8
_NESTED = (ast.For, ast.While, ast.If, ast.Try)
"""Compound statements whose inner statements can run separately. ``with`` is excluded, because it can change the memory
usage."""
_SIMPLE = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Delete)


def fit_command(source: str, line: int, variables: Mapping[str, Any]) -> str:
    """Return a command such as ``%gpumem fit batch=1..512 step(batch)`` for the code on a line.

    The command is empty if it is unclear which variable or argument determines the size, or if the code cannot run
    separately or is too long.
    """
    try:
        statements = _statements(ast.parse(source).body, line)
    except (SyntaxError, ValueError):  # the source may contain magics
        return ""
    fewest = sum((statement.end_lineno or line) >= line for statement in statements)  # number of statements on the line
    for count in range(fewest, min(len(statements), _MAX_STATEMENTS) + 1):
        block = statements[-count:]
        added_statements = block if count == fewest else block[:1]
        if not all(isinstance(statement, _SIMPLE) for statement in added_statements):
            return ""
        names = {node.id for statement in block for node in ast.walk(statement) if isinstance(node, ast.Name)}
        sizes = [
            size
            for statement in added_statements
            for size in _sizes(statement, variables)
            if size.insert_name is None or size.name not in names
        ]
        likely_sizes = [size for size in sizes if _LIKELY.search(size.name)]
        if likely_sizes or len({size.name for size in sizes}) == 1:
            size = min(likely_sizes or sizes, key=lambda size: ("batch" not in size.name.lower(), -size.value))
            if size.insert_name is not None:
                size.insert_name()
            text = "; ".join(map(ast.unparse, block))
            command = f"%gpumem fit {size.name}=1..{max(size.value, _SMALLEST_RANGE)} "
            is_short = len(command + text) <= _MAX_LENGTH and "\n" not in text
            return command + redact_code(text) if is_short else ""
    return ""


class _SizeName(NamedTuple):
    name: str
    value: Any
    insert_name: Callable[[], Any] | None = None
    """Function that replaces the integer with the name in the statement; None if the size is a variable."""


def _statements(body: list[ast.stmt], line: int) -> list[ast.stmt]:
    """Return the statements of the innermost block that contains a line, up to the last statement on that line."""
    for index, statement in reversed([*enumerate(body)]):
        if statement.lineno <= line <= (statement.end_lineno or line):
            if not isinstance(statement, _NESTED):
                return body[: index + 1]
            blocks = (getattr(statement, name, []) for name in ("body", "orelse", "finalbody"))
            return next(filter(None, (_statements(block, line) for block in blocks)), [])
    return []


def _sizes(statement: ast.stmt, variables: Mapping[str, Any]) -> Iterator[_SizeName]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and _is_size(node.id, variables.get(node.id)):
            yield _SizeName(node.id, variables[node.id])
        elif isinstance(node, ast.Call):
            function = variables.get(node.func.id) if isinstance(node.func, ast.Name) else None
            parameters = function.__code__.co_varnames if type(function) is FunctionType else ()
            for index, (name, argument) in enumerate(zip(parameters, node.args, strict=False)):
                if isinstance(argument, ast.Constant) and _is_size(name, argument.value):
                    yield _SizeName(name, argument.value, partial(node.args.__setitem__, index, ast.Name(name)))
            for keyword in node.keywords:
                if (
                    keyword.arg
                    and isinstance(keyword.value, ast.Constant)
                    and _is_size(keyword.arg, keyword.value.value)
                ):
                    replace = partial(setattr, keyword, "value", ast.Name(keyword.arg))
                    yield _SizeName(keyword.arg, keyword.value.value, replace)


def _is_size(name: str, value: Any) -> bool:
    return type(value) is int and value in _SIZES and not _UNLIKELY.search(name)
