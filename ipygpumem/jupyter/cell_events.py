"""Running cells, as announced by IPython's ``pre_run_cell`` and ``post_run_cell`` events.

The events do not always come in pairs. An empty cell (ipython#14597) and the cell that loads the extension trigger only
``post_run_cell``. Magics that run code trigger nested events. The result of a cancelled cell refers to a different
ExecutionInfo object or to none. Subshells of the kernel run cells in other threads. Therefore, each thread has a stack
of running cells with weak references to their ExecutionInfo objects, and ``post_run_cell`` looks up its cell there.

IPython discards an interrupt that arrives during a callback of an event. Therefore `CellHooks` wraps the function that
triggers the events. An interrupt that arrives while this package runs is deferred. If it arrives before the cell runs,
the first statement of the cell raises `KeyboardInterrupt`. If it arrives after the cell has run, the cell is reported
as failed. Raising the exception immediately would prevent IPython from adding the cell to its history, and ipykernel
from replying.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found] # as in core.interrupts
import sys
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import field
from signal import SIGINT
from typing import Any

from ipygpumem.core.data_classes import dataclass
from ipygpumem.core.interrupts import DeferredInterrupts
from ipygpumem.jupyter.cell_report import CellOptions, fail_cell, one_line_traceback
from ipygpumem.jupyter.display import replace_method
from ipygpumem.jupyter.live_display import LiveDisplay
from ipygpumem.measurement.measurement import Measurement
from ipygpumem.measurement.plan import MeasurementPlan


@dataclass(slots=True, eq=False)
class RunningCell:
    """Cell that is running. The object holds no strong references to the user's objects.

    Attributes:
        stored: Whether IPython stores the cell in its history. Front ends also run code that is not stored.
        cell_id: ID of the cell in its notebook; None if the front end does not send it.
        measurement, plan: Open measurement of the cell, and its plan; None if the cell is not measured.
        options: Options of ``%%gpumem``; None if the cell does not use this magic.
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
    plan: MeasurementPlan | None = None
    options: CellOptions | None = None
    live: LiveDisplay | None = None
    began: float = field(default_factory=time.time)
    reported: bool = False
    code: tuple[str | None, str] | None = None
    _number: int | None = None

    @property
    def number(self) -> int | None:
        if self._number is None:
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
        lines = [line for line in self.raw.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        return len(lines) == 1 and "%gpumem" in lines[0]

    def abandon(self) -> None:
        if self.measurement is not None:
            self.measurement.abandon()
            self.measurement = None


class RunningCells:
    """The running cells of a shell. ``drop`` is called with each cell for which no ``post_run_cell`` event will follow.

    Attributes:
        stacks: Running cells by thread identifier, outermost cell first.
    """

    def __init__(self, shell: Any, drop: Callable[[RunningCell], None]) -> None:
        self._shell = shell
        self._drop = drop
        self.stacks: defaultdict[int, list[RunningCell]] = defaultdict(list)

    def outermost(self) -> RunningCell | None:
        """Return the outermost cell of this thread or, if this thread runs no cell, of another thread."""
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
        while stack and not self._is_running(stack[-1].info(), info):  # ended without a post_run_cell event
            self._drop(stack.pop())
        cell = RunningCell(self._shell, weakref.ref(info), bool(info.store_history), getattr(info, "cell_id", None))
        stack.append(cell)
        return cell, len(stack) == 1

    def pop(self, result: Any) -> tuple[RunningCell | None, bool]:
        """Remove a cell and its inner cells. Return the cell, or None, and whether this thread runs no other cell."""
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

    def _is_running(self, info: Any, inner: Any) -> bool:
        """Return whether the cell with the ExecutionInfo object ``info`` runs and contains the cell of ``inner``."""
        frame_infos, frame = [], sys._getframe()  # noqa: SLF001 (the stack of this call)
        while frame.f_back is not None:
            frame = frame.f_back
            if frame.f_code.co_name == "run_cell_async":
                frame_infos.append(frame.f_locals.get("info"))
        if inner in frame_infos:  # otherwise, this shell does not run cells with IPython's method
            return info in frame_infos
        ended = getattr(getattr(self._shell, "last_execution_result", None), "info", None)
        return info is not None and info is not ended

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


class CellHooks:
    """Callbacks for the cells of one shell.

    ``before`` is called with the ExecutionInfo object before each cell, and ``after`` with the ExecutionResult object
    after each cell. ``stacks`` contains the running cells by thread identifier.
    """

    def __init__(
        self, shell: Any, before: Callable[[Any], None], after: Callable[[Any], None], stacks: Mapping[int, Any]
    ) -> None:
        self._shell, self._before, self._after, self._stacks = shell, before, after, stacks
        self._interrupt: BaseException | None = None
        self._restore_run_code: Callable[[], None] = lambda: None

    def install(self) -> Callable[[], None]:
        events = self._shell.events
        trigger = events.trigger

        def trigger_with_hooks(event: str, *arguments: Any, **options: Any) -> None:
            if event == "post_run_cell":
                results = [*arguments]
                try:  # not in another function, because Python can raise KeyboardInterrupt when it enters a function
                    self._call(self._after, results)
                except BaseException as error:
                    self._interrupt = error
                    if results:  # the interrupt arrived before interrupts were deferred
                        self._call(self._after, results)
                if self._interrupt is not None:  # also if the cell has a syntax error or no code
                    self._fail(*arguments)
            trigger(event, *arguments, **options)
            if event == "pre_run_cell":
                self._begin_cell(*arguments)

        return replace_method(events, "trigger", trigger_with_hooks)

    def _begin_cell(self, info: Any) -> None:
        try:
            self._call(self._before, [info])
        except BaseException as interrupt:
            self._interrupt = interrupt
            self._restore_run_code = replace_method(self._shell, "run_code", self._raise_interrupt)

    async def _raise_interrupt(self, *_: Any, **__: Any) -> None:
        raise one_line_traceback(self._take_interrupt() or KeyboardInterrupt())

    def _fail(self, result: Any) -> None:
        interrupts = DeferredInterrupts()
        with interrupts:
            interrupt = self._take_interrupt() or KeyboardInterrupt()
            is_nested = bool(self._stacks.get(threading.get_ident()))
            if not is_nested:
                fail_cell(self._shell, result, interrupt)
            interrupts.pending = False  # a second interrupt has no further effect on this cell
        try:
            if is_nested:
                raise interrupt  # the cell ran inside another cell, which must stop
        finally:
            del interrupt  # otherwise the traceback would keep the result of the cell alive

    @staticmethod
    def _call(function: Callable[[Any], None], arguments: list[Any]) -> None:
        """Call ``function`` with the only item of ``arguments``. Remove the item, so that this frame does not keep it.

        Interrupts are deferred in the main thread if SIGINT has a Python handler.
        `DeferredInterrupts` is not used as a context manager because this would add overhead to each cell.
        """
        handler = _signal.getsignal(SIGINT)
        if not callable(handler) or threading.current_thread() is not threading.main_thread():
            function(arguments.pop())
            return
        interrupts = DeferredInterrupts()
        interrupts.previous = interrupts.handler = handler
        if (getattr(handler, "__module__", None) or "").startswith("ipykernel"):
            # this handler cancels the task of an asynchronous cell, which has no effect unless the task waits
            interrupts.handler = _signal.default_int_handler
        _signal.signal(SIGINT, interrupts.record)
        try:
            function(arguments.pop())
        finally:
            _signal.signal(SIGINT, interrupts.previous)
            if interrupts.pending:
                interrupts.deliver()

    def _take_interrupt(self) -> BaseException | None:
        self._restore_run_code()
        interrupt, self._interrupt = self._interrupt, None
        return interrupt
