"""The magics: ``%gpumem``, ``%%gpumem`` and the call that `rewrite` makes of it, with their settings."""

from __future__ import annotations

import ast
import functools
import platform
import time
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
from IPython.utils.text import EvalFormatter

from ipygpumem.errors import IpyGpuMemError
from ipygpumem.notebook import show
from ipygpumem.notebook.cells import Asked, Cells
from ipygpumem.notebook.options import (
    CELL,
    COMMANDS,
    RECORD,
    STATEMENT,
    help_text,
    parse,
    split_statement,
    split_words,
)
from ipygpumem.notebook.record import AcrossCells
from ipygpumem.notebook.settings import Settings
from ipygpumem.recording import HistoryOptions, Recorder, check_path, fork
from ipygpumem.render import books_tables
from ipygpumem.render.column import recording_notes

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from ipygpumem.session import Session

__all__ = ["GPUMem"]


@magics_class
class GPUMem(Magics, Settings):
    """GPU memory of each cell: settings of the extension ipygpumem."""

    def __init__(self, shell: Any, session: Session, config: Any = None) -> None:
        super().__init__(shell=shell, parent=shell, config=config)
        self.session = session
        self.record = AcrossCells(session)
        self.cells = Cells(shell, session, self, self.record)
        self._on = "changed"

    @no_var_expand
    @line_magic("_gpumem_begin")
    def begin(self, line: str) -> None:
        """What the first line of a ``%%gpumem`` cell becomes; the cell's body runs after it."""
        if fork.inert():
            return
        words = parse("%%gpumem", CELL, line)
        if words.help:
            raise UsageError("%%gpumem: -h and --help stand alone, and nothing runs")
        self.cells.begin(self._asked("%%gpumem", words))

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
        command = _command_of(line)
        if command is not None:
            return self._command(*command)
        options, statement = split_statement(STATEMENT, line)
        asked = parse("%gpumem", STATEMENT, options)
        if asked.help:
            print(help_text())  # noqa: T201 (its purpose)
            return None
        if statement:
            return self._statement(asked, statement, local_ns)
        if asked.snapshot is not None or asked.history:
            raise UsageError("%gpumem: there is no statement to record; %%gpumem records a cell")
        return self._books(asked)

    def _command(self, word: str, rest: str) -> None:
        if rest.split()[-1:] in (["-h"], ["--help"]):
            print(help_text())  # noqa: T201 (its purpose)
        elif word == "record":
            self._record(rest)
        elif rest:
            raise UsageError(f"%gpumem {word} takes no options, not {rest!r}")
        else:
            if word == "off" and self.report != "off":
                self._on = self.report
            if (self.report == "off") is (word == "on"):
                self.report = self._on if word == "on" else "off"
            print(f"ipygpumem: reports are {word}")  # noqa: T201 (its purpose)

    def _record(self, rest: str) -> None:
        verb, _, words = rest.partition(" ")
        try:
            if verb == "start":
                asked = parse("%gpumem record start", RECORD, words)
                text = self.record.start(self._history(asked))
            elif verb == "save":
                text = self._save(words.strip())
            elif verb == "stop" and not words.strip():
                text = self.record.stop()
            else:
                raise UsageError("%gpumem record start [OPTIONS] | save PATH | stop")
        except IpyGpuMemError as error:
            raise UsageError(f"%gpumem record: {error}") from error
        print(f"ipygpumem: {text}")  # noqa: T201 (its purpose)

    def _save(self, words: str) -> str:
        paths = split_words("%gpumem record save", words)
        if len(paths) != 1:
            raise UsageError("%gpumem record save takes one path")
        facts = self.record.save(self._path(paths[0]))
        if facts.path is None:
            raise UsageError(f"%gpumem record: {facts.error}")
        return recording_notes(facts)

    def _books(self, asked: argparse.Namespace) -> Any:
        reading = self.session.reading()
        if asked.device:
            try:
                names = self.session.watch.check(asked.device)
            except IpyGpuMemError as error:
                raise UsageError(f"%gpumem: {error}") from error
            reading = reading.only(names)
        self.cells.claim()
        if asked.var is not None:
            self.shell.user_ns[asked.var] = reading
        if not asked.quiet:
            show.show_tables(self.shell, books_tables(reading, self.session.baseline))
        return reading if asked.o else None

    def _inert(self, line: str, cell: str | None, local_ns: Any) -> Any:
        """In a forked child: what is the person's own runs, and nothing else happens."""
        __tracebackhide__ = True
        if cell is not None:
            return self.shell.run_cell(cell).raise_error()
        statement = split_statement(STATEMENT, line)[1]
        if statement and _command_of(line) is None:
            return _run(self.shell, _compile(self.shell, statement), local_ns)
        print("ipygpumem: this process was forked from the one that measures, and has no figures")  # noqa: T201
        return None

    def _statement(self, words: argparse.Namespace, statement: str, local_ns: Any) -> Any:
        __tracebackhide__ = True
        asked = self._asked("%gpumem", words)
        asked.brief = True
        code = _compile(self.shell, statement)
        self.cells.statements.add(code[0].co_filename)
        value, report = self.cells.measure(asked, functools.partial(_run, self.shell, code, local_ns))
        if words.o:
            return report
        # IPython sees only the call that this line became, which does not end in a semicolon
        return None if statement.rstrip().endswith(";") else value

    def _cell(self, line: str, cell: str) -> None:
        """The magic called by name, as exported scripts do: then it has to run the body itself."""
        words = parse("%%gpumem", CELL, line)
        if words.help:
            print(help_text())  # noqa: T201 (its purpose)
            return
        asked = self._asked("%%gpumem", words)
        result, _ = self.cells.measure(asked, lambda: self.shell.run_cell(cell))
        result.raise_error()

    def _asked(self, prog: str, words: argparse.Namespace) -> Asked:
        """Options checked against this machine, before anything runs.

        Raises:
            UsageError: An option that means nothing here.
        """
        try:
            devices = None if words.device is None else self.session.watch.check(words.device)
            options = self._history(words)
            path = None if words.snapshot is None else self._path(words.snapshot)
            recorder = None if path is None else Recorder(self.session.watch, options)
        except IpyGpuMemError as error:
            raise UsageError(f"{prog}: {error}") from error
        return Asked(devices, recorder, path, quiet=words.quiet, variable=words.var)

    @staticmethod
    def _history(words: argparse.Namespace) -> HistoryOptions:
        return HistoryOptions(stacks=words.stacks, max_entries=words.max_entries, extra=words.history)

    def _path(self, text: str) -> Path:
        """A path with ``{name}`` expanded from the notebook's variables; ``{host}`` and ``{time}`` are ours."""
        names = {**self.shell.user_ns, "host": platform.node(), "time": time.strftime("%Y%m%d-%H%M%S")}
        if "{" in text:
            try:
                text = EvalFormatter().vformat(text, [], names)
            except Exception as error:
                raise UsageError(f"gpumem: {text!r} does not expand ({type(error).__name__}: {error})") from error
        return check_path(text)


GPUMem.gpumem.__doc__ = f"{GPUMem.gpumem.__doc__}\n\n{help_text()}"


def _command_of(line: str) -> tuple[str, str] | None:
    """A line that begins with a command's word, parted there; None for a statement."""
    first, _, rest = line.strip().partition(" ")
    command = next((one for one in COMMANDS if one.word == first), None)
    return None if command is None else (first, rest.strip())


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
