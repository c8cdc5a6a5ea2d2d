"""IPython's events at the beginning and at the end of each cell, how they belong together, and the cells' numbers.

The events do not always come in pairs. An empty cell ends without a beginning (ipython#14597), and so does the cell
that loads the extension; magics that run code nest them; a cancelled cell ends with another ExecutionInfo than it began
with, or with None; a subshell of the kernel runs cells in another thread. So each thread has a stack of open
cells, each with a weak reference to its ExecutionInfo, and an end is matched with the beginning that it belongs to.
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
from ipygpumem.core.interpreter import frame_label
from ipygpumem.jupyter.method_patch import replace_method
from ipygpumem.measurement.cell_sources import notebook_sources
from ipygpumem.measurement.runtime import current

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator
    from types import FrameType

    from ipygpumem.jupyter.cell_report import CellOptions
    from ipygpumem.jupyter.live_display import LiveCell
    from ipygpumem.measurement.measurement import Measurement
    from ipygpumem.measurement.plan import Plan

_Result = TypeVar("_Result")
_TERMINAL = re.compile(r"<ipython-input-(\d+)-")


class _PrintedErrors(set[str]):
    """The errors that have been printed in this process."""


def guarded(callback: Callable[..., _Result]) -> Callable[..., _Result | None]:
    """Make a callback of IPython print its exceptions, once each, instead of raising them into the user's cell."""

    @functools.wraps(callback)
    def safe(*arguments: Any, **options: Any) -> _Result | None:
        try:
            return callback(*arguments, **options)
        except Exception as error:
            name, message = type(error).__name__, first_line(error)
            line = name if message == name else f"{name}: {message}"
            printed = current().state(_PrintedErrors)
            if line not in printed:
                printed.add(line)
                print(f"ipygpumem: this cell has no report ({line}); this is printed once", file=sys.stderr)  # noqa: T201
            return None

    return safe


@dataclass(slots=True, eq=False)
class RunningCell:
    """A cell that has begun. Holds no strong reference to the user's objects.

    Attributes:
        info: IPython's ExecutionInfo.
        stored: Whether the cell is stored in the history: front ends also run other code.
        cell_id: Id of the cell in its notebook.
        began: Start time in seconds since 1970.
        reported: Whether the report of a statement in the cell replaces the cell's own.
        code: File name and text of the measured code, if that is not the whole cell, as under another cell magic.
    """

    shell: Any
    info: weakref.ref[Any]
    stored: bool
    cell_id: str | None
    measurement: Measurement | None = None
    plan: Plan | None = None
    options: CellOptions | None = None
    live: LiveCell | None = None
    traceback_hook: TracebackHook | None = None
    began: float = field(default_factory=time.time)
    reported: bool = False
    code: tuple[str | None, str] | None = None
    _number: int | None = None

    @property
    def number(self) -> int | None:
        """In number, once it is known: the cell's result has it, which the display hook holds while the cell runs."""
        self.find_number(getattr(self.shell.displayhook, "exec_result", None))
        return self._number

    def find_number(self, result: Any) -> None:
        """Take the In number from a result, if it is the result of this cell."""
        info = self.info()
        if self.stored and self._number is None and info is not None and getattr(result, "info", None) is info:
            self._number = result.execution_count

    @property
    def raw(self) -> str:
        """Text of the cell; empty after IPython has dropped it."""
        return getattr(self.info(), "raw_cell", None) or ""

    @property
    def is_single_magic(self) -> bool:
        """Whether the cell consists of one ``%gpumem`` line."""
        lines = [line for line in self.raw.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        return len(lines) == 1 and "%gpumem" in lines[0]

    def abandon(self) -> None:
        """Give up the measurement, if there is one."""
        if self.traceback_hook is not None:
            self.traceback_hook.remove()
            self.traceback_hook = None
        if self.measurement is not None:
            self.measurement.abandon()
            self.measurement = None


class RunningCells:
    """The open cells of one shell.

    Attributes:
        stacks: The open cells of each thread by its identifier, the outermost first.

    Args:
        shell: The shell.
        drop: Called with each cell whose end will never come.
    """

    def __init__(self, shell: Any, drop: Callable[[RunningCell], None]) -> None:
        self._shell = shell
        self._drop = drop
        self.stacks: defaultdict[int, list[RunningCell]] = defaultdict(list)

    def __iter__(self) -> Iterator[RunningCell]:
        return iter([cell for stack in self.stacks.values() for cell in stack])

    def clear(self) -> None:
        """Forget all cells."""
        self.stacks.clear()

    def outermost(self) -> RunningCell | None:
        """The outermost cell of this thread or, if it runs none, of another thread."""
        stack = self.stacks[threading.get_ident()] or next((stack for stack in self.stacks.values() if stack), [])
        return stack[0] if stack else None

    def whole_cell(self) -> RunningCell | None:
        """The cell that the user wrote: another cell magic above ours (%%capture) runs the rest of it as a cell."""
        stack = self.stacks[threading.get_ident()]
        position = len(stack) - 1
        while position > 0 and stack[position - 1].raw.rstrip().endswith(stack[position].raw.rstrip()):
            position -= 1
        return stack[position] if stack else None

    def push(self, info: Any) -> tuple[RunningCell, bool]:
        """Begin a cell; returns whether it is an outermost one, too."""
        stack = self.stacks[threading.get_ident()]
        while stack and stack[-1].info() is None:
            self._drop(stack.pop())
        cell = RunningCell(self._shell, weakref.ref(info), bool(info.store_history), getattr(info, "cell_id", None))
        stack.append(cell)
        return cell, len(stack) == 1

    def pop(self, result: Any) -> tuple[RunningCell | None, bool]:
        """End the cell with this result and all cells inside it; returns whether no cell is open any more, too."""
        stack = self.stacks[threading.get_ident()]
        index = self._index(stack, result)
        if index is None:
            return None, not stack
        for inner in stack[index + 1 :]:
            self._drop(inner)
        cell = stack[index]
        del stack[index:]
        cell.find_number(result)
        return cell, not stack

    @staticmethod
    def _index(stack: list[RunningCell], result: Any) -> int | None:
        if result is None:  # ipykernel ends a cell so if run_cell itself failed, as in a cancelled async cell
            return 0 if stack else None
        info = getattr(result, "info", None)
        raw = getattr(info, "raw_cell", None)
        matches = [index for index, cell in enumerate(stack) if cell.info() is info]
        if not matches and raw:  # an interrupted event loop leads to another ExecutionInfo
            matches = [index for index, cell in enumerate(stack) if cell.raw == raw]
        return matches[-1] if matches else None


class TracebackHook:
    """Calls a function once, before a shell formats a traceback, until `remove`.

    Formatting makes hundreds of thousands of Python calls, which would be most of the profile of a failing cell.
    """

    def __init__(self, shell: Any, callback: Callable[[], None]) -> None:
        self._callback: Callable[[], None] | None = callback
        show = shell.showtraceback

        def showtraceback(*arguments: Any, **options: Any) -> Any:
            callback = self._callback
            self.remove()
            if callback is not None:  # other code that has wrapped this method may still call it
                callback()
            return show(*arguments, **options)

        self._restore = replace_method(shell, "showtraceback", showtraceback)

    def remove(self) -> None:
        """Restore the shell's method; if other code has wrapped it since, it stays and only calls the original."""
        self._callback = None
        self._restore()


class CellNumbers:
    """The In numbers of one shell's cells by file name. From version 8 on IPython keeps them itself."""

    def __init__(self, shell: Any) -> None:
        self._compile = shell.compile
        self._kept_by_ipython = hasattr(shell.compile, "_filename_map")
        self._numbers: dict[str, int] = getattr(shell.compile, "_filename_map", {})

    def note(self, raw: str, number: int | None) -> None:
        """Record the number of a cell that has run."""
        if number is not None and not self._kept_by_ipython:
            self._numbers[self._compile.get_code_name(raw, raw, number)] = number

    def known(self) -> dict[str, int]:
        """All known In numbers by file name."""
        numbers = {name: int(match[1]) for name in notebook_sources() if (match := _TERMINAL.match(name))}
        return {**numbers, **self._numbers}

    def filename(self, raw: str, number: int | None, statements: Container[str]) -> str | None:
        """File name of a cell in tracebacks; ``statements`` are those of statements, which have the same number."""
        # ipykernel derives it from the text; a terminal from the number and a hash of the transformed text
        name = self._compile.get_code_name(raw, raw, number)
        if name in linecache.cache:
            return str(name)
        prefix = f"<ipython-input-{number}-"
        names = (name for name in reversed(linecache.cache) if name.startswith(prefix))
        return next((name for name in names if name not in statements), None)

    def label(self, file: str, line: int, function: str) -> str:
        """A recorded line by its cell, ``In [3]:5 make()``, or by its file."""
        match = _TERMINAL.match(file)
        number = self._numbers.get(file, None if match is None else int(match[1]))
        if number is None:
            return frame_label(file, line, function)
        return f"In [{number}]:{line}{'' if function == '<module>' else f' {function}()'}"


def calling_cell() -> str | None:
    """File name of the cell whose code calls this function; None outside of cells."""
    cells = notebook_sources()
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 (the only way to the caller)
    while frame is not None and frame.f_code.co_filename not in cells:
        frame = frame.f_back
    return None if frame is None else frame.f_code.co_filename
