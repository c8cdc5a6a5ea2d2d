"""The magics ``%gpumem`` and ``%%gpumem``."""

from __future__ import annotations

import argparse
import builtins
import contextlib
import functools
import threading
from collections import ChainMap
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any

from IPython.core import magic
from IPython.core.error import UsageError

from ipygpumem.core.errors import IpyGpuMemError
from ipygpumem.core.files import check_path
from ipygpumem.core.interrupts import DeferredInterrupts
from ipygpumem.core.introspection import preserve_shown_warnings
from ipygpumem.core.text import error_line
from ipygpumem.features.commands.command import Command, Option, parse_line, show_result, split_command, split_line
from ipygpumem.features.limits.model import MemoryLimits
from ipygpumem.features.plan import make_plan
from ipygpumem.features.processes.collect import other_processes_by_device
from ipygpumem.features.processes.table import with_other_process_rows
from ipygpumem.features.profile.collect import profile_collector
from ipygpumem.features.recordings.command import recording_options
from ipygpumem.features.recordings.multi_cell_recording import MultiCellRecording
from ipygpumem.features.report.table import breakdown_tables
from ipygpumem.jupyter.cell_events import RunningCell
from ipygpumem.jupyter.cell_measurements import CellMeasurements
from ipygpumem.jupyter.cell_report import CellOptions
from ipygpumem.jupyter.commands import COMMANDS, command_error, command_help, help_text
from ipygpumem.jupyter.display import DisplayMixin
from ipygpumem.jupyter.namespace import compile_statement, expand_path, function_regions, run_statement
from ipygpumem.jupyter.options import CELL, STATEMENT, flag_for_measurements, parse_options, split_statement
from ipygpumem.jupyter.settings import Settings
from ipygpumem.measurement.plan import MeasurementPlan
from ipygpumem.measurement.runtime import Runtime

if TYPE_CHECKING:
    from ipygpumem.features.live.monitor import MemoryMonitor


@magic.magics_class
class GPUMem(magic.Magics, Settings, DisplayMixin):
    """Magics, settings and displays of the ipygpumem extension, which measures the GPU memory of each cell.

    Attributes:
        session: Process-wide state of the package.
        record: Recording that ``%gpumem record`` starts and stops.
        cells: Measurements of the running cells.
    """

    def __init__(self, shell: Any, runtime: Runtime, config: Any = None) -> None:
        super().__init__(shell=shell, parent=shell, config=config)
        self.session = runtime
        self.record = MultiCellRecording(runtime)
        self.cells = CellMeasurements(self)
        self._report_when_on = "changed"

    @functools.cached_property
    def monitoring(self) -> MemoryMonitor:
        from ipygpumem.features.live.monitor import MemoryMonitor

        return MemoryMonitor(self.shell, self.session, self.cells.open_cell)

    def close_monitoring(self) -> None:
        if "monitoring" in vars(self):
            self.monitoring.close()

    def expand(self, text: str) -> str:
        return expand_path(self.shell, text)

    def output_path(self, text: str) -> Path:
        return check_path(self.expand(text))

    def evaluate(self, name: str) -> Any:
        from ipygpumem.features.lines.source_code import resolve_name  # on first use, to save memory

        return resolve_name(name, self.shell.user_ns.__getitem__)

    def compiled(self, statement: str) -> tuple[tuple[CodeType, ...], Callable[[], Any]]:
        """Compile a statement; return its code objects and a function that runs it in the notebook's namespace."""
        body, last = code = compile_statement(self.shell, statement)
        self.cells.statements.add(body.co_filename)
        codes = (body,) if last is None else (body, last)
        return codes, functools.partial(run_statement, self.shell, code, None)

    def claim_cell(self) -> RunningCell | None:
        """Return this thread's outermost cell. Suppress its automatic report if it consists of one ``%gpumem`` line."""
        outer = next(iter(self.cells.running.stacks[threading.get_ident()]), None)
        if outer is not None and outer.options is None and outer.is_single_magic:
            outer.reported = True
        return outer

    def set_reports(self, *, on: bool) -> None:
        if not on and self.report != "off":
            self._report_when_on = self.report
        if on is (self.report == "off"):
            self.report = self._report_when_on if on else "off"
        self.print(f"ipygpumem: reports are {'on' if on else 'off'}")

    @magic.no_var_expand
    @magic.line_magic("_gpumem_begin")
    def begin(self, line: str) -> None:
        """Start the measurement of a ``%%gpumem`` cell, whose first line has been replaced by a call to this magic."""
        if self.session.forked:
            return
        arguments = _parse("%%gpumem", CELL, line)
        if arguments.help:
            raise UsageError("%%gpumem --help does not run the code of the cell: use %gpumem --help in a separate cell")
        if arguments.engines:
            raise UsageError("%%gpumem --engines must be on the first line of the cell")
        options = self._cell_options("%%gpumem", arguments, self.cells.text)
        with DeferredInterrupts():
            self.cells.begin(options)

    @magic.no_var_expand
    @magic.needs_local_scope
    @magic.line_cell_magic("gpumem")
    def gpumem(self, line: str, cell: str | None = None, local_ns: Any = None) -> Any:
        """Measure the GPU memory of a cell or a statement, or show the current memory breakdown."""
        __tracebackhide__ = True  # omit this function from tracebacks of errors in the statement
        if self.session.forked:
            return self._run_unmeasured(line, cell, local_ns)
        if cell is not None:
            return self._cell(line, cell)
        command = split_command(COMMANDS, line)
        if command is not None:
            return self._command(*command)
        options, statement = split_statement(STATEMENT, line)
        arguments = _parse("%gpumem", STATEMENT, options)
        if arguments.help:
            self.print(help_text())
            return None
        if statement:
            error = command_error(statement, ChainMap(local_ns or {}, self.shell.user_ns, vars(builtins)))
            if error:
                raise UsageError(error_line(f"%gpumem: {error}"))
            return self._statement(arguments, statement, local_ns)
        if flag := flag_for_measurements(options):
            raise UsageError(f"%gpumem {flag} requires a statement; to measure a cell, use %%gpumem {flag}")
        return self._breakdown(arguments)

    def _command(self, command: Command, rest: str) -> Any:
        __tracebackhide__ = True
        if rest.split()[-1:] in (["-h"], ["--help"]):
            self.print(command_help(command))
            return None
        name = command.name
        if command.subcommands:
            subcommand, _, rest = rest.partition(" ")
            names = [sub.name for sub in command.subcommands]
            if subcommand not in names:
                got = f", but got {subcommand}" if subcommand else ""
                raise UsageError(error_line(f"%gpumem {name}: the subcommand must be one of {', '.join(names)}{got}"))
            command = command.subcommands[names.index(subcommand)]
            name = f"{name} {subcommand}"
        with _usage_errors(f"%gpumem {name}"), preserve_shown_warnings():
            options = command.options_of("magic")
            rest, code = split_statement(options, rest, command.variable) if command.statement else (rest, "")
            arguments = parse_line(f"%gpumem {name}", options, rest)
            if command.statement:
                arguments.statement = code
            return None if command.magic is None else command.magic(self, arguments)

    def _breakdown(self, arguments: argparse.Namespace) -> Any:
        reading = self.session.reading()
        if arguments.device:
            with _usage_errors("%gpumem"):
                reading = reading.only(self.session.monitor.parse_devices(arguments.device))

        def show() -> None:
            tables = breakdown_tables(reading, self.session.baseline)
            self.show_tables(with_other_process_rows(tables, other_processes_by_device(reading)))

        return show_result(self, arguments, reading, show)

    def _run_unmeasured(self, line: str, cell: str | None, local_ns: Any) -> Any:
        """Run code without measuring it, because a forked process must not use CUDA or NVML."""
        __tracebackhide__ = True
        if cell is not None:
            return self.shell.run_cell(cell).raise_error()
        statement = split_statement(STATEMENT, line)[1]
        if statement and split_command(COMMANDS, line) is None:
            return run_statement(self.shell, compile_statement(self.shell, statement), local_ns)
        self.print("ipygpumem: this forked process is not measured, because its parent has loaded the extension")
        return None

    def _statement(self, arguments: argparse.Namespace, statement: str, local_ns: Any) -> Any:
        __tracebackhide__ = True
        options = self._cell_options("%gpumem", arguments, statement)
        code = compile_statement(self.shell, statement)
        self.cells.statements.add(code[0].co_filename)
        value, report = self.cells.measure(options, functools.partial(run_statement, self.shell, code, local_ns))
        if arguments.o:
            return report
        # IPython sees only the transformed line, which does not end with a semicolon
        return None if statement.rstrip().endswith(";") else value

    def _cell(self, line: str, cell: str) -> Any:
        """Run ``%%gpumem`` as an ordinary cell magic, for ``--engines`` and in scripts exported from notebooks."""
        arguments = _parse("%%gpumem", CELL, line)
        if arguments.help:
            self.print(help_text())
            return None
        if arguments.engines:
            from ipygpumem.features.ranks.engines.cell import engines_for_cell, run_on_engines

            with _usage_errors("%%gpumem --engines"):
                engines = engines_for_cell(arguments)
            return run_on_engines(engines, self.shell, arguments, split_line(line), cell)
        options = self._cell_options("%%gpumem", arguments, cell)
        result, _ = self.cells.measure(options, lambda: self.shell.run_cell(cell))
        result.raise_error()
        return None

    def _cell_options(self, program: str, arguments: argparse.Namespace, text: str) -> CellOptions:
        with _usage_errors(program):
            plan = self._plan(arguments, text)
        # %%gpumem without options shows the full breakdown
        sections = arguments.lines or arguments.function or arguments.modules or arguments.outside
        full = program == "%%gpumem" and not sections and arguments.snapshot is None and self.style != "line"
        table = arguments.table or full
        return CellOptions(plan, arguments.quiet, arguments.var, table=table, view=arguments.view, code=text)

    def _plan(self, arguments: argparse.Namespace, text: str) -> MeasurementPlan:
        devices, snapshot, trace, timeline = arguments.device, arguments.snapshot, arguments.trace, arguments.timeline
        path = None if snapshot is None else self.output_path(snapshot)
        modules = None
        if arguments.modules is not None:
            from ipygpumem.features.modules.tracker import ModuleTracker

            modules = ModuleTracker(self.evaluate(arguments.modules), reset=self.peaks == "exact")
        limits = (arguments.limit_held, arguments.limit_outside, arguments.limit_host)
        with_lines = arguments.lines or arguments.function
        return make_plan(
            self.session,
            devices=self.session.monitor.parse_devices(devices) if devices else None,
            lines=function_regions(arguments.function, self.shell.user_ns, text) if with_lines else None,
            all_functions=not arguments.function,
            peak_lines=not arguments.quiet,
            modules=modules,
            outside=arguments.outside or self.outside == "library",
            limits=MemoryLimits.parse(self.limit if arguments.limit is None else arguments.limit, *limits),
            path=path,
            history=recording_options(arguments),
            profile=profile_collector(
                None if trace is None else self.expand(trace),
                None if timeline is None else self.expand(timeline),
                outside=arguments.outside,
                snapshot=path,
            ),
        )


GPUMem.gpumem.__doc__ = f"{GPUMem.gpumem.__doc__}\n\n{help_text()}"


def _parse(program: str, options: tuple[Option, ...], line: str) -> argparse.Namespace:
    with _usage_errors(program):
        return parse_options(program, options, line)


@contextlib.contextmanager
def _usage_errors(program: str) -> Iterator[None]:
    """Convert this package's errors to IPython's ``UsageError``, which IPython shows without a traceback."""
    try:
        yield
    except IpyGpuMemError as error:
        raise UsageError(f"{program}: {error}") from error
