"""The magics: ``%gpumem``, ``%%gpumem`` and the call that `rewrite` makes of it, with their settings."""

from __future__ import annotations

import ast
import functools
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import (
    Magics,
    line_cell_magic,
    line_magic,
    magics_class,
    needs_local_scope,
    no_var_expand,
)

from ipygpumem.core.code_label import first_code
from ipygpumem.core.errors import IpyGpuMemError
from ipygpumem.display.table import books_tables
from ipygpumem.features.limits.model import Limits
from ipygpumem.features.lines.source import resolve_name
from ipygpumem.features.live.monitor import Monitor
from ipygpumem.features.modules.tracker import ModuleTracker
from ipygpumem.features.processes.collect import other_processes_by_device
from ipygpumem.features.processes.table import with_other_process_rows
from ipygpumem.features.profile.collect import profile_collector
from ipygpumem.features.ranks.engines.cell import engines_for_cell, run_on_engines
from ipygpumem.features.recordings.across_cells import AcrossCells
from ipygpumem.features.release.collect import Debugger
from ipygpumem.jupyter import display as show
from ipygpumem.jupyter.cells import Asked, Cells
from ipygpumem.jupyter.commands import command_of
from ipygpumem.jupyter.help import help_text
from ipygpumem.jupyter.options import CELL, STATEMENT, history_options, parse, split_statement, split_words
from ipygpumem.jupyter.paths import expanded, filled
from ipygpumem.jupyter.settings import Settings
from ipygpumem.jupyter.user_functions import functions
from ipygpumem.measurement import fork
from ipygpumem.measurement.plan import Study

if TYPE_CHECKING:
    import argparse

    from ipygpumem.jupyter.commands import Command
    from ipygpumem.measurement.session import Session

__all__ = ["GPUMem"]


@magics_class
class GPUMem(Magics, Settings):
    """GPU memory of each cell: settings of the extension ipygpumem."""

    def __init__(self, shell: Any, session: Session, config: Any = None) -> None:
        super().__init__(shell=shell, parent=shell, config=config)
        self.session = session
        self.record = AcrossCells(session)
        self.cells = Cells(shell, session, self, self.record)
        self.monitoring = Monitor(shell, session, self.cells.open_cell)
        self.debugger = Debugger(shell)
        self.report_when_on = "changed"

    @no_var_expand
    @line_magic("_gpumem_begin")
    def begin(self, line: str) -> None:
        """What the first line of a ``%%gpumem`` cell becomes; the cell's body runs after it."""
        if fork.inert():
            return
        words = parse("%%gpumem", CELL, line)
        if words.help:
            raise UsageError("%%gpumem: -h and --help stand alone, and nothing runs")
        if words.engines:
            raise UsageError("%%gpumem --engines stands on the first line of its cell")
        self.cells.begin(self._asked("%%gpumem", words, self.cells.text))

    @no_var_expand
    @needs_local_scope
    @line_cell_magic("gpumem")
    def gpumem(self, line: str, cell: str | None = None, local_ns: Any = None) -> Any:
        """Where the GPU's memory is, and where a cell or a statement took it."""
        __tracebackhide__ = True  # an error in the statement is the user's own, and so is its traceback
        if fork.inert():
            return self._inert(line, cell, local_ns)
        if cell is not None:
            return self._cell(line, cell)
        command = command_of(line)
        if command is not None:
            return self._command(*command)
        options, statement = split_statement(STATEMENT, line)
        asked = parse("%gpumem", STATEMENT, options)
        if asked.help:
            print(help_text())  # noqa: T201 (its purpose)
            return None
        if statement:
            return self._statement(asked, statement, local_ns)
        if asked.snapshot is not None or asked.history or asked.trace is not None or asked.timeline is not None:
            raise UsageError("%gpumem: there is no statement to record; %%gpumem records a cell")
        if asked.outside:
            raise UsageError("%gpumem: --outside is of a statement or, as %%gpumem --outside, of a cell")
        return self._books(asked)

    def _command(self, command: Command, rest: str) -> Any:
        if rest.split()[-1:] in (["-h"], ["--help"]):
            print(help_text())  # noqa: T201 (its purpose)
            return None
        try:
            return command.run(self, rest)
        except IpyGpuMemError as error:
            raise UsageError(f"%gpumem {command.word}: {error}") from error

    def _books(self, asked: argparse.Namespace) -> Any:
        reading = self.session.reading()
        if asked.device:
            try:
                names = self.session.monitor.parse_devices(asked.device)
            except IpyGpuMemError as error:
                raise UsageError(f"%gpumem: {error}") from error
            reading = reading.only(names)
        self.cells.claim()
        if asked.var is not None:
            self.shell.user_ns[asked.var] = reading
        if not asked.quiet:
            tables = books_tables(reading, self.session.baseline)
            show.show_tables(self.shell, with_other_process_rows(tables, other_processes_by_device(reading)))
        return reading if asked.o else None

    def _inert(self, line: str, cell: str | None, local_ns: Any) -> Any:
        """In a forked child: what is the person's own runs, and nothing else happens."""
        __tracebackhide__ = True
        if cell is not None:
            return self.shell.run_cell(cell).raise_error()
        statement = split_statement(STATEMENT, line)[1]
        if statement and command_of(line) is None:
            return _run(self.shell, _compile(self.shell, statement), local_ns)
        print("ipygpumem: this process was forked from the one that measures, and has no figures")  # noqa: T201
        return None

    def _statement(self, words: argparse.Namespace, statement: str, local_ns: Any) -> Any:
        __tracebackhide__ = True
        asked = self._asked("%gpumem", words, statement)
        asked.brief = True
        code = _compile(self.shell, statement)
        self.cells.statements.add(code[0].co_filename)
        value, report = self.cells.measure(asked, functools.partial(_run, self.shell, code, local_ns))
        if words.o:
            return report
        # IPython sees only the call that this line became, which does not end in a semicolon
        return None if statement.rstrip().endswith(";") else value

    def _cell(self, line: str, cell: str) -> Any:
        """The magic called by name, as exported scripts do: then it has to run the body itself."""
        words = parse("%%gpumem", CELL, line)
        if words.help:
            print(help_text())  # noqa: T201 (its purpose)
            return None
        if words.engines:
            return self._on_engines(words, line, cell)
        asked = self._asked("%%gpumem", words, cell)
        result, _ = self.cells.measure(asked, lambda: self.shell.run_cell(cell))
        result.raise_error()
        return None

    def _on_engines(self, words: argparse.Namespace, line: str, cell: str) -> Any:
        try:
            engines = engines_for_cell(words)
        except IpyGpuMemError as error:
            raise UsageError(f"%%gpumem --engines: {error}") from error
        return run_on_engines(engines, self.shell, words, split_words("%%gpumem", line), cell)

    def _asked(self, prog: str, words: argparse.Namespace, text: str) -> Asked:
        """Options checked against this machine, before anything runs; ``text`` is the code that will.

        Raises:
            UsageError: An option that means nothing here.
        """
        try:
            devices = None if words.device is None else self.session.monitor.parse_devices(words.device)
            study = self._study(words, text)
        except IpyGpuMemError as error:
            raise UsageError(f"{prog}: {error}") from error
        return Asked(devices, study, quiet=words.quiet, variable=words.var, view=words.view, code=first_code(text))

    def _study(self, words: argparse.Namespace, text: str) -> Study:
        peak = self.limit if words.limit is None else words.limit
        path = None if words.snapshot is None else expanded(self.shell, words.snapshot)
        return Study(
            self.session.monitor,
            lines=functions(words.function, self.shell.user_ns, text) if words.lines or words.function else None,
            everywhere=not words.function,
            limits=Limits.read(peak, words.limit_held, words.limit_outside, words.limit_host),
            modules=None if words.modules is None else self._model(words.modules),
            options=history_options(words),
            path=path,
            outside=words.outside or self.outside == "library",
            profile=profile_collector(
                None if words.trace is None else filled(self.shell, words.trace),
                None if words.timeline is None else filled(self.shell, words.timeline),
                outside=words.outside,
                snapshot=path,
            ),
        )

    def _model(self, name: str) -> ModuleTracker:
        return ModuleTracker(resolve_name(name, self.shell.user_ns.__getitem__), reset=self.peaks == "exact")


GPUMem.gpumem.__doc__ = f"{GPUMem.gpumem.__doc__}\n\n{help_text()}"


def _compile(shell: Any, statement: str) -> tuple[Any, Any]:
    """A statement as IPython reads it (magics and all): what comes before its value, and the value's expression.

    Raises:
        UsageError: It waits for something, which a line magic cannot.
    """
    text = shell.transform_cell(statement)
    # IPython 9.16 counts a cell before it runs: the number stands in its result
    number = getattr(getattr(shell.displayhook, "exec_result", None), "execution_count", None)
    name = shell.compile.cache(text, number or shell.execution_count)
    try:
        tree = shell.transform_ast(ast.parse(text, filename=name))
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        before = compile(tree, name, "exec")
        value = None if last is None else compile(ast.Expression(last.value), name, "eval")
    except SyntaxError as error:
        if "await" in (error.msg or ""):
            raise UsageError("%gpumem: a statement that awaits needs %%gpumem over a cell") from error
        raise UsageError(f"%gpumem: {error.msg}: {statement!r}") from error
    return before, value


def _run(shell: Any, code: tuple[Any, Any], local_ns: Any) -> Any:
    __tracebackhide__ = True
    before, value = code
    exec(before, shell.user_ns, local_ns)  # noqa: S102 (the person's own statement)
    return None if value is None else eval(value, shell.user_ns, local_ns)  # noqa: S307 (as above)
