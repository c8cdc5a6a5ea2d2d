"""The cells of a shell: a measurement begins and ends with IPython's events of each cell.

The events do not always come in pairs. An empty cell ends without a beginning (ipython#14597), and so does the cell
that loads the extension; magics that run code nest them; a cancelled cell ends with another ExecutionInfo than it began
with, or with None; a subshell of the kernel runs cells in a thread of its own. So each thread has a stack of open
cells, each with a weak reference to its ExecutionInfo, and an end is matched with the beginning that it belongs to.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError

from ipygpumem.features.holders.cell_baseline import Marks
from ipygpumem.features.limits.model import Limits
from ipygpumem.features.oom.history import Ring
from ipygpumem.features.plan import make_plan
from ipygpumem.features.profile.collect import ProfileCollector
from ipygpumem.features.report.notes import recording_text
from ipygpumem.jupyter.cell_numbers import CellNumbers, calling_cell
from ipygpumem.jupyter.cell_report import CellOptions, ReportPresenter
from ipygpumem.jupyter.clear_output import Clearing
from ipygpumem.jupyter.error_boundary import guarded
from ipygpumem.jupyter.live_display import LiveCell, LiveDisplays
from ipygpumem.jupyter.oom_panel import Ooms
from ipygpumem.jupyter.traceback_hook import Failing
from ipygpumem.measurement.build_report import Label
from ipygpumem.measurement.code_label import first_code
from ipygpumem.measurement.finish import finish
from ipygpumem.measurement.measurement import MeasurementOptions
from ipygpumem.measurement.notebook_sources import notebook_sources
from ipygpumem.measurement.plan import Code

if TYPE_CHECKING:
    from collections.abc import Callable

    from ipygpumem.core.errors import GPUMemLimitExceeded
    from ipygpumem.core.report import Report
    from ipygpumem.features.recordings.across_cells import AcrossCells
    from ipygpumem.jupyter.settings import Settings
    from ipygpumem.measurement.measurement import Measurement
    from ipygpumem.measurement.plan import Plan
    from ipygpumem.measurement.recording_keys import CellFacts
    from ipygpumem.measurement.runtime import Runtime

__all__ = ["Cells"]


@dataclass(slots=True)
class _OpenCell:
    """A cell that has begun. Holds no strong reference to anything of the user's."""

    info: weakref.ref[Any]
    stored: bool
    cell_id: str | None
    number: int | None = None
    measurement: Measurement | None = None
    plan: Plan | None = None
    options: CellOptions | None = None
    live: LiveCell | None = None
    traceback_hook: Failing | None = None
    began: float = field(default_factory=time.time)
    reported: bool = False
    code: tuple[str | None, str] | None = None
    """File name and text of the measured code, if that is not the whole cell, as under another cell magic."""

    @property
    def raw(self) -> str:
        """Text of the cell; empty after IPython has dropped it."""
        return getattr(self.info(), "raw_cell", None) or ""

    def remove_hook(self) -> None:
        if self.traceback_hook is not None:
            self.traceback_hook.remove()
            self.traceback_hook = None

    def abandon(self) -> None:
        self.remove_hook()
        if self.measurement is not None:
            self.measurement.abandon()
            self.measurement = None


class Cells:
    """The cells of one shell while the extension is loaded."""

    def __init__(self, shell: Any, runtime: Runtime, settings: Settings, record: AcrossCells) -> None:
        self._shell = shell
        self._runtime = runtime
        self._settings = settings
        self._record = record
        self._pid = os.getpid()
        self._open_cells: dict[int, list[_OpenCell]] = {}
        self.clearing = Clearing(shell)
        self.live = LiveDisplays(shell, runtime, self.clearing)
        self.numbers = CellNumbers(shell)
        self.marks = Marks(runtime)
        self.ooms = Ooms(shell, runtime, Ring(runtime, self._running_cell, self.numbers.known))
        self.presenter = ReportPresenter(shell, runtime, settings, self.ooms, self.marks)
        self.statements: set[str] = set()
        """File names of statements that were measured by ``%gpumem STATEMENT``."""

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that loaded the extension."""
        return os.getpid() != self._pid

    @property
    def text(self) -> str:
        """Text of the cell that is running; empty if there is none."""
        cells = self._stack()
        return cells[-1].raw if cells else ""

    def _stack(self) -> list[_OpenCell]:
        """The open cells of this thread, the outermost first."""
        return self._open_cells.setdefault(threading.get_ident(), [])

    @guarded
    def pre_run_cell(self, info: Any) -> None:
        """Begin a cell. The outermost cell that the user wrote is measured."""
        if os.getpid() != self._pid:
            return
        stack = self._open_cells.setdefault(threading.get_ident(), [])
        while stack and stack[-1].info() is None:
            self._drop(stack.pop())
        cell = _OpenCell(weakref.ref(info), bool(info.store_history), getattr(info, "cell_id", None))
        stack.append(cell)
        if len(stack) > 1:
            return
        raw = info.raw_cell or ""
        if "gpumem" in raw:
            self.marks.begin(raw)
        self.ooms.report = None
        if self.ooms.ring.template is not None:
            self.ooms.ring.resume()
        settings = self._settings
        measured = settings.report != "off" or settings.limit is not None or self._record.recorder is not None
        # front ends also run code of their own, which is not stored in the history
        if cell.stored and measured and not raw.lstrip().startswith("%%gpumem"):
            cell.plan = self._standing_plan()
            cell.measurement = self._begin(cell.plan)
            self._begin_live(cell)

    def begin(self, options: CellOptions) -> None:
        """Measure the rest of the running cell with the options of ``%%gpumem``.

        Raises:
            UsageError: The measurement cannot begin. The cell does not run.
        """
        stack = self._stack()
        if not stack:  # a silent run has no events and no output
            return
        position = len(stack) - 1
        # another cell magic above this one (%%capture) runs the rest of the cell as a cell: report on the whole cell
        while position > 0 and stack[position - 1].raw.rstrip().endswith(stack[position].raw.rstrip()):
            position -= 1
        cell = stack[position]
        if cell.options is not None:
            raise UsageError("%%gpumem is already used in this cell: put all options on one line")
        cell.abandon()
        if options.plan.records:
            self.ooms.ring.pause()  # PyTorch has only one recording; this one resumes with the next cell
        if not options.quiet:
            self.marks.take_blocks()
        cell.code = (calling_cell(), stack[-1].raw)
        cell.options, cell.plan = options, options.plan
        try:
            cell.measurement = self._begin(options.plan)
        except Exception as error:
            raise UsageError(f"%%gpumem: {error}") from error
        for collector in options.plan.collectors:
            if isinstance(collector, ProfileCollector):
                # formatting the traceback of a failing cell must not be profiled
                cell.traceback_hook = Failing(self._shell, collector.stop)
        if options.quiet:
            self._end_live(cell)
        elif cell.live is None:
            self._begin_live(cell)

    def _begin(self, plan: Plan) -> Measurement:
        settings = self._settings
        return plan.open(
            self._runtime,
            MeasurementOptions(
                reset_peaks=settings.peaks == "exact",
                reset_host_peak=settings.host_peak == "reset",
                synchronize=settings.synchronize,
            ),
        )

    def _standing_plan(self) -> Plan:
        """What the settings ask for in every cell."""
        settings = self._settings
        return make_plan(
            self._runtime, outside=settings.outside == "library", limits=Limits(peak=settings.limit), every_cell=True
        )

    def _begin_live(self, cell: _OpenCell) -> None:
        """Show the memory breakdown below the cell while it runs, if it runs for long."""
        settings = self._settings
        shown = settings.report != "off" or (cell.options is not None and not cell.options.quiet)
        if settings.live == "auto" and self.live.available and cell.stored and shown:

            def number() -> int | None:
                self._find_number(cell)
                return cell.number

            cell.live = self.live.begin(number)

    def _end_live(self, cell: _OpenCell) -> None:
        if cell.live is not None:
            self.live.end(cell.live)
            cell.live.retract()
            cell.live = None

    def _drop(self, cell: _OpenCell) -> None:
        cell.abandon()
        self._end_live(cell)

    @guarded
    def post_run_cell(self, result: Any) -> None:
        """End a cell, whether it succeeded or not."""
        if os.getpid() != self._pid:
            return
        cell = self._pop(result)
        if cell is None or cell.measurement is None or cell.plan is None:
            if cell is not None:
                self._drop(cell)
            if not self._stack():
                self.ooms.drop()
            return
        cell.remove_hook()
        self._find_number(cell, result)
        muted = self.clearing.waits(result)
        try:
            error = self._end(cell, cell.measurement, success=bool(result is not None and result.success), muted=muted)
        except BaseException:
            cell.abandon()
            raise
        finally:
            self._end_live(cell)
        if not self._stack():
            self.ooms.tell(result)
        if error is not None and result is not None and result.success:
            # an exception raised in a callback would only be printed: this one fails the cell, whose value stays
            result.error_in_exec = error
            self._shell.showtraceback((type(_one_line(error)), error, None))

    def _end(
        self, cell: _OpenCell, measurement: Measurement, *, success: bool, muted: bool
    ) -> GPUMemLimitExceeded | None:
        raw, filename = cell.raw, None
        if cell.live is not None:
            self.live.end(cell.live)
        if self.numbers.needed:
            self.numbers.note(raw, cell.number)
        sources: dict[str, str] = {}
        recording = self._record.recorder is not None
        if measurement.recording or recording:
            filename, text = cell.code or (None, raw)
            filename = filename or self._filename(raw, cell.number)
            sources = notebook_sources()
            if filename is not None:
                sources[filename] = text  # the text that the user wrote, not the call that %%gpumem became
        label = Label(first_code(raw), cell.number, cell.cell_id, filename)
        if recording:
            span = measurement.span(label, success=success)
            self._record.add(span, filename, sources.get(filename or "", raw), measurement.samples)
        if cell.reported or cell.plan is None:
            cell.abandon()
            return None

        def code() -> Code:
            numbers = self.numbers.known()
            if filename is None:
                return Code(sources, numbers)
            if cell.number is not None:
                numbers[filename] = cell.number  # the same text may have run before, under another number
            return Code(sources, numbers, (filename, 1, len(sources[filename].splitlines()), ""))

        finished = finish(measurement, cell.plan, label, success=success, code=code)
        if finished is None:
            return None
        self.presenter.present(
            finished.report,
            measurement,
            cell.options,
            notes=self._record.notes if recording else (),
            muted=muted,
            live=cell.live,
        )
        return finished.error

    def claim(self) -> _OpenCell | None:
        """Return the open cell. If it consists of one ``%gpumem`` line, it needs no report of its own."""
        stack = self._stack()
        outer = stack[0] if stack else None
        if outer is not None and outer.options is None and _is_single_magic(outer.raw):
            outer.reported = True
        return outer

    def measure(self, options: CellOptions, run: Callable[[], Any]) -> tuple[Any, Report | None]:
        """Run a statement inside a cell, measure it and show its report. Its error is raised here."""
        __tracebackhide__ = True
        outer = self.claim()
        if outer is not None:
            self._find_number(outer)
        try:
            measurement = self._begin(options.plan)
        except Exception as error:
            raise UsageError(f"%gpumem: {error}") from error
        outcome: list[Any] = []
        success = False
        try:
            value = run()
            success = True
        finally:
            self._end_statement(measurement, options, outer, outcome, success)
        if outcome and outcome[0].error is not None:
            raise _one_line(outcome[0].error)
        return value, outcome[0].report if outcome else None

    @guarded
    def _end_statement(
        self, measurement: Measurement, options: CellOptions, outer: _OpenCell | None, outcome: list[Any], success: bool
    ) -> None:
        def code() -> Code:
            sources = notebook_sources()
            if outer is not None and outer.reported:  # the statement has a file of its own
                sources.pop(calling_cell() or "", None)
            return Code(sources, self.numbers.known())

        number, cell_id = (None, None) if outer is None else (outer.number, outer.cell_id)
        label = Label(options.code, number, cell_id)
        finished = finish(measurement, options.plan, label, success=success, code=code)
        if finished is not None:
            outcome.append(finished)
            live = outer.live if outer is not None and outer.reported else None
            self.live.end(live)
            self.presenter.present(finished.report, measurement, options, notes=self._record.notes, live=live)

    def close(self) -> None:
        """End all open cells and save their recordings: the extension is unloaded while a cell runs."""
        for stack in self._open_cells.values():
            for cell in stack:
                measurement, plan = cell.measurement, cell.plan
                if measurement is not None and plan is not None and (measurement.recording or plan.collectors):
                    label = Label(first_code(cell.raw), cell.number, cell.cell_id)
                    finished = finish(
                        measurement,
                        plan,
                        label,
                        success=None,
                        code=lambda: Code(notebook_sources(), self.numbers.known()),
                    )
                    report = None if finished is None else finished.report
                    if report is not None and report.recording is not None:
                        print(f"ipygpumem: {recording_text(report.recording)}")  # noqa: T201 (the only place to show it)
                    if report is not None and report.profile is not None:
                        print(f"ipygpumem: {'; '.join(report.profile.sentences())}")  # noqa: T201 (as above)
                self._drop(cell)
        self._open_cells.clear()
        self.live.close()

    def open_cell(self) -> tuple[int | None, float] | None:
        """In number and start time (seconds since 1970) of the cell that runs in any thread; None if none does."""
        cell = next((stack[0] for stack in tuple(self._open_cells.values()) if stack), None)
        if cell is None:
            return None
        self._find_number(cell)
        return cell.number, cell.began

    def _running_cell(self) -> CellFacts | None:
        """The open cell, for a recording that is saved while it runs."""
        stack = self._stack() or next((stack for stack in self._open_cells.values() if stack), [])
        if not stack or stack[0].measurement is None:
            return None
        cell = stack[0]
        self._find_number(cell)
        label = Label(cell=cell.number, filename=self._filename(cell.raw, cell.number))
        return stack[0].measurement.span(label, success=False)

    def _pop(self, result: Any) -> _OpenCell | None:
        """Remove the cell that ends with this result, and all cells inside it, from the stack."""
        stack = self._open_cells.get(threading.get_ident(), [])
        info = getattr(result, "info", None)
        position = None
        if result is None:  # ipykernel ends a cell so if run_cell itself failed, as in a cancelled async cell
            position = 0 if stack else None
        else:
            for index in range(len(stack) - 1, -1, -1):
                if stack[index].info() is info:
                    position = index
                    break
        if position is None and info is not None:  # an interrupted event loop leads to another ExecutionInfo
            raw = getattr(info, "raw_cell", None)
            for index in range(len(stack) - 1, -1, -1):
                if raw and stack[index].raw == raw:
                    position = index
                    break
        if position is None:
            return None
        for inner in stack[position + 1 :]:
            self._drop(inner)
        cell = stack[position]
        del stack[position:]
        return cell

    def _find_number(self, cell: _OpenCell, result: Any = None) -> None:
        """Find the In number: the cell's result has it, which the display hook holds while the cell runs."""
        info = cell.info()
        candidates: tuple[Any, ...] = (result, getattr(self._shell.displayhook, "exec_result", None))
        for candidate in candidates:
            if cell.stored and cell.number is None and info is not None and getattr(candidate, "info", None) is info:
                cell.number = candidate.execution_count

    def _filename(self, raw: str, number: int | None) -> str | None:
        """File name of the cell in tracebacks."""
        import linecache

        # ipykernel derives it from the text; a terminal from the number and a hash of the transformed text
        name = self._shell.compile.get_code_name(raw, raw, number)
        if name in linecache.cache:
            return str(name)
        prefix = f"<ipython-input-{number}-"
        names = (name for name in reversed(linecache.cache) if name.startswith(prefix))
        return next((name for name in names if name not in self.statements), None)


def _one_line(error: GPUMemLimitExceeded) -> GPUMemLimitExceeded:
    """Let IPython show the error as one line: it asks an exception for its own traceback."""
    error._render_traceback_ = lambda: [f"{type(error).__name__}: {error}"]  # type: ignore[attr-defined]
    return error


def _is_single_magic(raw: str) -> bool:
    lines = [line for line in raw.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return len(lines) == 1 and "%gpumem" in lines[0]
