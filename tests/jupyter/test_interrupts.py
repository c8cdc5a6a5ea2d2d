"""Interrupts that arrive while this package runs reach the user, and no measurement remains open."""

from __future__ import annotations

import contextlib
import dis
import gc
import itertools
import multiprocessing
import queue
import signal
import sys
import warnings

import pytest
import torch

from fuzz import fuzz_interrupts
from ipygpumem.core import introspection
from ipygpumem.core.interrupts import DeferredInterrupts
from ipygpumem.features.oom import collect as oom
from ipygpumem.jupyter import cell_events
from ipygpumem.jupyter.cell_events import CellHooks
from ipygpumem.measurement import recorder
from ipygpumem.measurement.measurement import Measurement
from ipygpumem.measurement.runtime import current
from ipygpumem.sources.device_monitor import DeviceMonitor

pytestmark = [pytest.mark.ipython, pytest.mark.usefixtures("default_handler")]
CELLS = {
    "plain": ("ran = True", [False, True]),
    "asynchronous": ("import asyncio\nawait asyncio.sleep(0)\nran = True", [False, True]),
    "cell magic": ("%%gpumem\nran = True", [False, True]),
    "lines": ("%%gpumem --lines\nran = True", [False, True]),
    "statement": ("%gpumem ran = True", [False, False, True]),
    "block": ("with ipygpumem.measure() as m:\n    ran = True", [False, False, True, True]),
}
"""For each cell, its code and whether it has run its last statement before each reading of the devices."""


@pytest.fixture
def notebook(fake_gpu, make_notebook):
    notebook = make_notebook(GPUMem={"report": "always"})
    notebook.load()
    notebook.run("import torch, ipygpumem")
    return notebook


def interrupt_call(monkeypatch, owner, name, number):
    """Send SIGINT at the beginning of call ``number`` (counted from 1) of a function."""
    original, calls = getattr(owner, name), [0]

    def interrupted(*arguments, **options):
        calls[0] += 1
        if calls[0] == number:
            signal.raise_signal(signal.SIGINT)
        return original(*arguments, **options)

    monkeypatch.setattr(owner, name, interrupted)


def interrupt_instruction(number):
    """Send SIGINT where Python can call the handler in `CellHooks`: in entered functions and after each call."""
    points = itertools.count(1)

    def trace(frame, event, _):
        code = frame.f_code
        if code.co_name not in {"_begin_cell", "_call"} or code.co_filename != cell_events.__file__:
            return None
        frame.f_trace_opcodes = True
        after_call = event == "opcode" and "CALL" in dis.opname[code.co_code[previous.get(frame, 0)]]
        previous[frame] = frame.f_lasti
        if (event == "call" or after_call) and next(points) == number:
            signal.raise_signal(signal.SIGINT)
        return trace

    previous = {}
    sys.settrace(trace)
    return points


def check_closed(notebook):
    runtime = current()
    assert runtime.peaks._scopes == []
    assert runtime.open_intervals == set()
    assert runtime.sampler.windows == ()
    assert torch._C._cuda_isHistoryEnabled() is False
    assert not any(notebook.shell.magics_manager.registry["GPUMem"].cells.running.stacks.values())
    assert "run_code" not in vars(notebook.shell)
    (text,) = notebook.run("1 + 1").texts
    assert text.startswith("cuda:0")


@pytest.mark.parametrize(("code", "expected"), CELLS.values(), ids=CELLS)
def test_interrupt_during_a_reading(notebook, monkeypatch, code, expected):
    for number, ran in enumerate(expected, 1):
        notebook.shell.user_ns.pop("ran", None)
        count = notebook.shell.execution_count
        with monkeypatch.context() as patched:
            interrupt_call(patched, DeviceMonitor, "read", number)
            result = notebook.run(code)
        assert isinstance(result.error, KeyboardInterrupt)
        assert ("ran" in notebook.shell.user_ns) is ran
        assert "KeyboardInterrupt" in result.stdout and "callback" not in result.stdout
        assert notebook.shell.user_ns["In"][count] and len(notebook.shell.user_ns["In"]) == count + 1
        check_closed(notebook)


@pytest.mark.parametrize(("code", "printed"), [("x =", "SyntaxError"), ("# nothing", ""), ("1/0", "ZeroDivisionError")])
@pytest.mark.parametrize("number", [1, 2])
def test_interrupt_of_a_cell_without_code_or_with_an_error(notebook, monkeypatch, code, printed, number):
    """The error of the cell is preserved, and the interrupt is printed."""
    with monkeypatch.context() as patched:
        interrupt_call(patched, DeviceMonitor, "read", number)
        result = notebook.run(code)
    expected = "KeyboardInterrupt" if not printed or (number == 1 and code == "1/0") else printed
    assert type(result.error).__name__ == expected
    assert (result.stdout + result.stderr).count("KeyboardInterrupt") == 1
    check_closed(notebook)


@pytest.mark.parametrize("code", ["ran = True", "get_ipython().run_cell('x = 1')\nran = True"], ids=["plain", "nested"])
def test_second_interrupt_while_the_first_is_shown(notebook, monkeypatch, code):
    with monkeypatch.context() as patched:
        interrupt_call(patched, DeviceMonitor, "read", 2)
        interrupt_call(patched, CellHooks, "_take_interrupt", 1)
        try:
            result = notebook.run(code)
        except KeyboardInterrupt:
            pytest.fail("the interrupt is raised outside the cell")
    assert isinstance(result.error, KeyboardInterrupt)
    assert notebook.shell.user_ns["ran"]
    check_closed(notebook)


@pytest.mark.parametrize("moment", ["before the block", "after the block"])
def test_interrupts_before_and_during_the_cleanup_of_a_block(notebook, monkeypatch, moment):
    """The second interrupt arrives while the measurement is closed after the first."""
    owner, name, number = (
        (DeviceMonitor, "read", 2) if moment == "before the block" else (DeferredInterrupts, "__enter__", 4)
    )
    with monkeypatch.context() as patched:
        interrupt_call(patched, owner, name, number)
        interrupt_call(patched, Measurement, "_stop_observers", 1)
        result = notebook.run("m = ipygpumem.measure()\nwith m:\n    ran = True")
    assert isinstance(result.error, KeyboardInterrupt)
    assert ("ran" in notebook.shell.user_ns) is (moment == "after the block")
    check_closed(notebook)


def test_interrupt_after_a_nested_cell_stops_the_outer_cell(notebook, monkeypatch):
    from ipygpumem.jupyter.cell_events import RunningCells

    interrupt_call(monkeypatch, RunningCells, "pop", 1)
    result = notebook.run("get_ipython().run_cell('x = 1')\nran = True")
    assert isinstance(result.error, KeyboardInterrupt)
    assert "ran" not in notebook.shell.user_ns
    monkeypatch.undo()
    check_closed(notebook)


@pytest.mark.parametrize(
    "code",
    ["x = 1", "1/0", "get_ipython().run_cell('x = 2').raise_error()", "import asyncio\nawait asyncio.sleep(0)"],
    ids=["plain", "error", "nested", "asynchronous"],
)
def test_interrupt_between_any_instructions_of_the_hooks(notebook, code):
    """The interrupt reaches the user, and no measurement remains open, even if the next request is silent and empty."""
    tracing, number = sys.gettrace(), 0
    while True:
        number += 1
        points = interrupt_instruction(number)
        try:
            result = notebook.run(code)
        except KeyboardInterrupt:
            pytest.fail(f"interrupt {number} is raised outside the cell")
        finally:
            sys.settrace(tracing)
        if next(points) <= number:
            break
        assert isinstance(result.error, KeyboardInterrupt) or result.stderr.endswith("KeyboardInterrupt\n"), number
        notebook.shell.run_cell("", silent=True)
        assert current().open_intervals == set(), number
    assert number > 20
    check_closed(notebook)


@pytest.mark.parametrize("silent", [False, True])
def test_cell_without_a_post_run_cell_event(notebook, monkeypatch, silent):
    """An interrupt between IPython's own instructions can prevent the event, while the shell keeps the last result."""
    shell, trigger = notebook.shell, notebook.shell.events.trigger

    def without_end(event, *arguments, **options):
        if event == "post_run_cell":
            raise KeyboardInterrupt
        trigger(event, *arguments, **options)

    with monkeypatch.context() as patched:
        patched.setattr(shell.events, "trigger", without_end)
        with pytest.raises(KeyboardInterrupt) as raised:  # keeps the ExecutionInfo object alive
            notebook.run("x = 1")
    if silent:
        shell.run_cell("", silent=True)  # a request of the front end, which replaces the last result
    assert current().open_intervals != set()
    assert len(notebook.run("1 + 1").texts) == 1, "the next cell is measured"
    del raised
    check_closed(notebook)


@pytest.mark.parametrize("owner", [recorder.pickle, recorder.AllocationHistory])
def test_interrupt_while_a_snapshot_is_saved(notebook, monkeypatch, tmp_path, owner):
    """The interrupt ends the operation immediately. The previous file remains, and there is no temporary file."""
    path = tmp_path / "x.pickle"
    path.write_text("old")
    after = []
    with monkeypatch.context() as patched:
        interrupt_call(patched, owner, "dump" if owner is recorder.pickle else "take", 1)
        patched.setattr(recorder, "_recorded_file_names", lambda snapshot: after.append(1) or set())
        result = notebook.run(f"%%gpumem --snapshot {path}\nran = True")
    assert isinstance(result.error, KeyboardInterrupt)
    assert len(after) == (owner is recorder.pickle)
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    check_closed(notebook)


def test_interrupt_while_the_panel_is_created(notebook, monkeypatch):
    """The search for holders ends immediately, and the failed allocation is not reported in the next cell."""
    with monkeypatch.context() as patched:
        interrupt_call(patched, oom, "holders", 1)
        patched.setattr(oom, "advice", None)
        result = notebook.run("torch.empty(200 << 30, dtype=torch.uint8, device='cuda')")
    assert isinstance(result.error, torch.OutOfMemoryError), "the error of the cell is kept"
    assert result.stderr == "KeyboardInterrupt\n"
    check_closed(notebook)


def test_interrupt_while_a_command_searches_the_heap(notebook, monkeypatch):
    with monkeypatch.context() as patched:
        interrupt_call(patched, gc, "get_referents", 1)
        result = notebook.run("%gpumem who")
    assert isinstance(result.error, KeyboardInterrupt)
    check_closed(notebook)


def test_interrupt_while_a_command_collects_garbage(notebook):
    """Python ignores exceptions in finalizers."""
    notebook.run("import signal\nclass Cycle:\n    def __del__(self):\n        signal.raise_signal(signal.SIGINT)")
    with introspection.pause_gc():  # there are no automatic collections
        notebook.run("cycle = Cycle()\ncycle.cycle = cycle\ndel cycle")
        result = notebook.run("%gpumem free")
    assert isinstance(result.error, KeyboardInterrupt)
    check_closed(notebook)


@pytest.mark.parametrize("number", [7, 8, 9])
def test_interrupt_while_the_extension_is_loaded(fake_gpu, make_notebook, monkeypatch, number):
    notebook = make_notebook(GPUMem={"report": "always"})
    with monkeypatch.context() as patched:  # after a change of the shell, before it can be undone
        interrupt_call(patched, contextlib.ExitStack, "callback", number)
        assert isinstance(notebook.run("%load_ext ipygpumem").error, KeyboardInterrupt)
    assert notebook.run("%load_ext ipygpumem").success
    check_closed(notebook)


def test_handler_of_the_program_is_called_after_the_hook(notebook, monkeypatch):
    calls = []
    signal.signal(signal.SIGINT, lambda *_: calls.append(len(current().open_intervals)))
    with monkeypatch.context() as patched:
        interrupt_call(patched, DeviceMonitor, "read", 1)
        assert notebook.run("ran = True").success
    signal.signal(signal.SIGINT, queue.SimpleQueue().put)
    assert notebook.run("ran = True").success, "the module of this handler is None"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert calls == [1], "the measurement has begun"
    check_closed(notebook)


def test_interrupts_at_random_times():
    """Run a short version of the stress test, in another process because an interrupt could end this one."""
    command_line = ["terminal", "--cells", "100"]
    process = multiprocessing.get_context("fork").Process(
        target=lambda: sys.exit(fuzz_interrupts.main(command_line)), daemon=True
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # the new process uses no threads of this one
        process.start()
    process.join(250)
    assert process.exitcode == 0
