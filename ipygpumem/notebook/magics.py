"""The magics: ``%gpumem``, ``%%gpumem`` and the call that `rewrite` makes of it, with their settings."""

from __future__ import annotations

import ast
import platform
import time
from typing import TYPE_CHECKING, Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_cell_magic, line_magic, magics_class, no_var_expand
from IPython.utils.text import FullEvalFormatter

from ipygpumem.errors import IpyGpuMemError
from ipygpumem.notebook import show
from ipygpumem.notebook.cells import Asked, Cells
from ipygpumem.notebook.options import CELL, COMMANDS, RECORD, STATEMENT, help_text, parse, split_statement
from ipygpumem.notebook.record import AcrossCells
from ipygpumem.notebook.settings import Settings
from ipygpumem.recording import HistoryOptions, Recorder, check_path
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

    def __init__(self, shell: Any, session: Session) -> None:
        super().__init__(shell=shell, parent=shell)
        self.session = session
        self.record = AcrossCells(session)
        self.cells = Cells(shell, session, self, self.record)

    @no_var_expand
    @line_magic("_gpumem_begin")
    def begin(self, line: str) -> None:
        """What the first line of a ``%%gpumem`` cell becomes; the cell's body runs after it."""
        self.cells.begin(self._asked("%%gpumem", parse("%%gpumem", CELL, line)))

    @no_var_expand
    @line_cell_magic("gpumem")
    def gpumem(self, line: str, cell: str | None = None) -> Any:
        """Where the GPU's memory is, and where a cell or a statement took it."""
        if cell is not None:
            return self._cell(line, cell)
        first, _, rest = line.strip().partition(" ")
        command = next((one for one in COMMANDS if one.word == first), None)
        words = rest.split()
        if command is not None and (not words or words[0] in command.follow or words[0].startswith("-")):
            return self._command(first, rest.strip())
        options, statement = split_statement(STATEMENT, line)
        asked = parse("%gpumem", STATEMENT, options)
        if asked.help:
            print(help_text())  # noqa: T201 (its purpose)
            return None
        if statement:
            return self._statement(asked, statement)
        return self._books(asked)

    def _command(self, word: str, rest: str) -> None:
        if word in {"on", "off"}:
            if rest:
                raise UsageError(f"%gpumem {word} takes no options, not {rest!r}")
            self.report = "changed" if word == "on" else "off"
            print(f"ipygpumem: reports are {word}")  # noqa: T201 (its purpose)
        else:
            self._record(rest)

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
        import shlex

        paths = shlex.split(words)
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
        if not asked.quiet:
            show.show_tables(books_tables(reading, self.session.baseline))
        return reading if asked.o else None

    def _statement(self, words: argparse.Namespace, statement: str) -> Any:
        asked = self._asked("%gpumem", words)
        asked.brief = True
        code = _compile(self.shell, statement)
        value, report = self.cells.measure(asked, lambda: _run(self.shell, code))
        if not asked.quiet:
            self.cells.hide_own_report()
        return report if words.o else value

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
                text = FullEvalFormatter().vformat(text, [], names)
            except Exception as error:
                raise UsageError(f"gpumem: {text!r} does not expand ({type(error).__name__}: {error})") from error
        return check_path(text)


GPUMem.gpumem.__doc__ = f"{GPUMem.gpumem.__doc__}\n\n{help_text()}"


def _compile(shell: Any, statement: str) -> tuple[Any, Any]:
    """A statement as IPython reads it (magics and all): what comes before its value, and the value's expression.

    Raises:
        UsageError: It waits for something, which a line magic cannot.
    """
    text = shell.transform_cell(statement)
    name = shell.compile.cache(text, shell.execution_count)
    tree = ast.parse(text, filename=name)
    try:
        last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        before = compile(tree, name, "exec")
        value = None if last is None else compile(ast.Expression(last.value), name, "eval")
    except SyntaxError as error:
        if "await" in (error.msg or "") or "outside function" in (error.msg or ""):
            raise UsageError("%gpumem: a statement that awaits needs %%gpumem over a cell") from error
        raise
    return before, value


def _run(shell: Any, code: tuple[Any, Any]) -> Any:
    before, value = code
    exec(before, shell.user_ns)  # noqa: S102 (the person's own statement)
    return None if value is None else eval(value, shell.user_ns)  # noqa: S307 (as above)
