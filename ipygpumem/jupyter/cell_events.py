"""Running cells, as announced by IPython's ``pre_run_cell`` and ``post_run_cell`` events, and their execution counts.

The events do not always come in pairs. An empty cell (ipython#14597) and the cell that loads the extension trigger only
``post_run_cell``. Magics that run code trigger nested events. The result of a cancelled cell refers to a different
ExecutionInfo object or to none. Subshells of the kernel run cells in other threads. Therefore, each thread has a stack
of running cells with weak references to their ExecutionInfo objects, and ``post_run_cell`` looks up its cell there.
"""

from __future__ import annotations

import functools
import linecache
import re
import sys
import threading
import time
import weakref
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ipygpumem.core.errors import first_line
from ipygpumem.core.introspection import frame_label
from ipygpumem.jupyter.method_patch import replace_method
from ipygpumem.measurement.cell_source_code import notebook_sources
from ipygpumem.measurement.runtime import current

if TYPE_CHECKING:
    from collections.abc import Callable, Container
    from types import FrameType

    from ipygpumem.jupyter.cell_report import CellOptions
    from ipygpumem.jupyter.live_display import LiveDisplay
    from ipygpumem.measurement.measurement import Measurement
    from ipygpumem.measurement.plan import Plan

_Result = TypeVar("_Result")
_TERMINAL = re.compile(r"<ipython-input-(\d+)-")


class _PrintedErrors(set[str]):
    """Error messages that have been printed in this process."""


def guarded(callback: Callable[..., _Result]) -> Callable[..., _Result | None]:
    """Wrap an IPython callback so that it prints exceptions instead of raising them. Each message is printed once."""

    @functools.wraps(callback)
    def safe(*arguments: Any, **options: Any) -> _Result | None:
        try:
            return callback(*arguments, **options)
        except Exception as error:
            name, message = type(error).__name__, first_line(error)
            problem = name if message == name else f"{name}: {message}"
            printed = current().state(_PrintedErrors)
            if problem not in printed:
                printed.add(problem)
                print(f"ipygpumem: this cell has no report ({problem}); this message is not repeated", file=sys.stderr)  # noqa: T201
            return None

    return safe


@dataclass(slots=True, eq=False)
class RunningCell:
    """A cell that is running. It holds no strong references to the user's objects.

    Attributes:
        info: Weak reference to IPython's ExecutionInfo object.
        stored: Whether IPython stores the cell in its history. Front ends also run code that is not stored.
        cell_id: ID of the cell in its notebook; None if the front end does not send it.
        options: Options of ``%%gpumem``; None if the cell does not use this magic.
        restore_traceback: Function that restores the shell's ``showtraceback`` method; None if it was not replaced.
        began: Start time in seconds since the Unix epoch.
        reported: Whether the output of a ``%gpumem`` line in the cell replaces the automatic report.
        code: File name and source text of the ``%%gpumem`` cell, which is this cell or a cell that it runs; None if the
            magic is not used.
    """

    shell: Any
    info: weakref.ref[Any]
    stored: bool
    cell_id: str | None
    measurement: Measurement | None = None
    plan: Plan | None = None
    options: CellOptions | None = None
    live: LiveDisplay | None = None
    restore_traceback: Callable[[], None] | None = None
    began: float = field(default_factory=time.time)
    reported: bool = False
    code: tuple[str | None, str] | None = None
    _number: int | None = None

    @property
    def number(self) -> int | None:
        """Execution count of the cell; None if IPython has not assigned it yet."""
        self.read_number(getattr(self.shell.displayhook, "exec_result", None))
        return self._number

    def read_number(self, result: Any) -> None:
        """Read the execution count from ``result`` if it is the result of this cell."""
        info = self.info()
        if self.stored and self._number is None and info is not None and getattr(result, "info", None) is info:
            self._number = result.execution_count

    @property
    def raw(self) -> str:
        """Source text of the cell; empty after IPython has deleted the cell's ExecutionInfo object."""
        return getattr(self.info(), "raw_cell", None) or ""

    @property
    def is_single_magic(self) -> bool:
        """Whether the cell is a single ``%gpumem`` line, apart from comments and blank lines."""
        lines = [line for line in self.raw.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        return len(lines) == 1 and "%gpumem" in lines[0]

    def abandon(self) -> None:
        """Discard the measurement, if there is one."""
        if self.restore_traceback is not None:
            self.restore_traceback()
            self.restore_traceback = None
        if self.measurement is not None:
            self.measurement.abandon()
            self.measurement = None


class RunningCells:
    """The running cells of one shell, in one stack for each thread.

    Attributes:
        stacks: Running cells by thread identifier, outermost cell first.

    Args:
        shell: IPython shell that runs the cells.
        drop: Function that is called with each cell for which no ``post_run_cell`` event will follow.
    """

    def __init__(self, shell: Any, drop: Callable[[RunningCell], None]) -> None:
        self._shell = shell
        self._drop = drop
        self.stacks: defaultdict[int, list[RunningCell]] = defaultdict(list)

    def outermost(self) -> RunningCell | None:
        """Return the outermost cell of the current thread or, if this thread is running no cell, of another thread."""
        stack = self.stacks[threading.get_ident()] or next((stack for stack in self.stacks.values() if stack), [])
        return stack[0] if stack else None

    def whole_cell(self) -> RunningCell | None:
        """Return the innermost cell of this thread or, if it is the body of a cell magic, the cell with this magic."""
        stack = self.stacks[threading.get_ident()]
        position = len(stack) - 1
        while position > 0 and stack[position - 1].raw.rstrip().endswith(stack[position].raw.rstrip()):
            position -= 1
        return stack[position] if stack else None

    def push(self, info: Any) -> tuple[RunningCell, bool]:
        """Add a cell that is about to run. Return a tuple of the cell and whether it is the outermost of its thread."""
        stack = self.stacks[threading.get_ident()]
        while stack and stack[-1].info() is None:
            self._drop(stack.pop())
        cell = RunningCell(self._shell, weakref.ref(info), bool(info.store_history), getattr(info, "cell_id", None))
        stack.append(cell)
        return cell, len(stack) == 1

    def pop(self, result: Any) -> tuple[RunningCell | None, bool]:
        """Remove the cell with this result and all cells that are running inside it.

        Returns:
            A tuple of the cell (None if no cell matches) and whether the current thread is running no other cell.
        """
        stack = self.stacks[threading.get_ident()]
        index = self._index(stack, result)
        if index is None:
            return None, not stack
        for inner in stack[index + 1 :]:
            self._drop(inner)
        cell = stack[index]
        del stack[index:]
        cell.read_number(result)
        return cell, not stack

    @staticmethod
    def _index(stack: list[RunningCell], result: Any) -> int | None:
        if result is None:  # ipykernel passes None if run_cell itself failed, as for a cancelled async cell
            return 0 if stack else None
        info = getattr(result, "info", None)
        raw = getattr(info, "raw_cell", None)
        matches = [index for index, cell in enumerate(stack) if cell.info() is info]
        if not matches and raw:  # after an interrupted event loop, the ExecutionInfo is a different object
            matches = [index for index, cell in enumerate(stack) if cell.raw == raw]
        return matches[-1] if matches else None


def before_tracebacks(shell: Any, callback: Callable[[], None]) -> Callable[[], None]:
    """Install a function that a shell calls before it shows a traceback. The returned function uninstalls it."""
    show = shell.showtraceback

    def showtraceback(*arguments: Any, **options: Any) -> Any:
        callback()
        return show(*arguments, **options)

    return replace_method(shell, "showtraceback", showtraceback)


class ExecutionCounts:
    """Execution counts of a shell's cells by file name. IPython 8 and later store these counts themselves."""

    def __init__(self, shell: Any) -> None:
        self._compile = shell.compile
        self._stored_by_ipython = hasattr(shell.compile, "_filename_map")
        self._numbers: dict[str, int] = getattr(shell.compile, "_filename_map", {})

    def store(self, raw: str, number: int | None) -> None:
        """Store the execution count ``number`` of a cell with the source text ``raw``."""
        if number is not None and not self._stored_by_ipython:
            self._numbers[self._compile.get_code_name(raw, raw, number)] = number

    def known(self) -> dict[str, int]:
        """Return all known execution counts by file name."""
        numbers = {name: int(match[1]) for name in notebook_sources() if (match := _TERMINAL.match(name))}
        return {**numbers, **self._numbers}

    def filename(self, raw: str, number: int | None, statements: Container[str]) -> str | None:
        """Return the file name that tracebacks show for a cell, or None if it is unknown.

        Args:
            raw: Source text of the cell.
            number: Execution count of the cell.
            statements: File names of measured statements, which can have the same execution count as their cell.
        """
        # ipykernel derives the name from the text, a terminal from the number and a hash of the transformed text
        name = self._compile.get_code_name(raw, raw, number)
        if name in linecache.cache:
            return str(name)
        prefix = f"<ipython-input-{number}-"
        names = (name for name in reversed(linecache.cache) if name.startswith(prefix))
        return next((name for name in names if name not in statements), None)

    def label(self, file: str, line: int, function: str) -> str:
        """Return a label for a line of code: ``In [3]:5 make()`` in a cell, ``train.py:5 make`` in a file."""
        match = _TERMINAL.match(file)
        number = self._numbers.get(file, None if match is None else int(match[1]))
        if number is None:
            return frame_label(file, line, function)
        return f"In [{number}]:{line}{'' if function == '<module>' else f' {function}()'}"


def calling_cell() -> str | None:
    """Return the file name of the innermost cell on the call stack, or None if no cell is on the stack."""
    cells = notebook_sources()
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 (the only way to get the caller's frame)
    while frame is not None and frame.f_code.co_filename not in cells:
        frame = frame.f_back
    return None if frame is None else frame.f_code.co_filename
