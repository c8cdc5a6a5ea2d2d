"""Behavior of cells, which is the same as without the extension, and their reports."""

from __future__ import annotations

import asyncio
import itertools
import re
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from IPython.core.error import UsageError

import ipygpumem
from ipygpumem.sources import device_monitor

LARGE = "b'x' * (48 << 20)"

# IPython's advice after SystemExit
pytestmark = [pytest.mark.ipython, pytest.mark.filterwarnings("ignore:To exit")]

# cell, value, error type, reports (report = "always")
TRAPS = {
    "plain": ("6 * 7", 42, None, 1),
    "no value": ("x = 1", None, None, 1),
    "value None": ("None", None, None, 1),
    "semicolon": ("6 * 7;", None, None, 1),
    "empty": ("", None, None, 0),
    "blank lines": ("\n  \n\n", None, None, 0),
    "comment": ("# nothing", None, None, 1),
    "syntax error": ("1 +", None, SyntaxError, 1),
    "indentation": ("if 1:\nx", None, IndentationError, 1),
    "raises": ("1/0", None, ZeroDivisionError, 1),
    "interrupt": ("raise KeyboardInterrupt", None, KeyboardInterrupt, 1),
    "exit": ("raise SystemExit(3)", None, SystemExit, 1),
    "await": ("import asyncio\nawait asyncio.sleep(0, 5)", 5, None, 1),
    "await fails": ("import asyncio\nawait asyncio.sleep(0)\n1/0", None, ZeroDivisionError, 1),
    "cancelled": ("import asyncio\nraise asyncio.CancelledError", None, asyncio.CancelledError, 1),
    "cancelled while waiting": (
        "import asyncio\nasyncio.current_task().cancel()\nawait asyncio.sleep(9)",
        None,
        asyncio.CancelledError,
        1,
    ),
    "interrupted while waiting": (
        (
            "import asyncio, _thread\nasyncio.get_running_loop().call_later(0.01, _thread.interrupt_main)\n"
            "await asyncio.sleep(9)"
        ),
        None,
        KeyboardInterrupt,
        1,
    ),
    "magic": ("%pwd", True, None, 1),
    "nested": ("bool(get_ipython().run_cell('6 * 7'))\n42", None, None, 1),
    "time": ("%%time\n6 * 7", 42, None, 1),
    "capture": ("%%capture\nprint('x')\n6 * 7", None, None, 1),
    "bash": ("%%bash\ntrue", None, None, 1),
    "bash fails": ("%%bash\nfalse", None, subprocess.CalledProcessError, 1),
    "unknown magic": ("%%no_such_magic\nx", None, UsageError, 1),
}
UNDER_OURS = {name: cell for name, cell in TRAPS.items() if not name.startswith(("empty", "blank", "interrupted"))}


def check(result, value, error, reports):
    assert isinstance(result.error, error or type(None)), result
    assert result.success is (error is None)
    if value is True:
        assert result.value
    else:
        assert result.value == value
    assert len(result.texts) == reports, result
    assert "Error in callback" not in result.stdout + result.stderr


def test_automatic_report(cpu_notebook):
    for cell, value, error, reports in TRAPS.values():
        number = cpu_notebook.shell.execution_count
        result = cpu_notebook.run(cell)
        check(result, value, error, reports)
        if reports:
            assert cpu_notebook.last.cell == number
            assert cpu_notebook.last.success is (error is None)
            assert ("failed" in result.text) is (error is not None)
        # the next cell works as usual
        check(cpu_notebook.run("1 + 1"), 2, None, 1)
        check(cpu_notebook.run(""), None, None, 0)
        check(cpu_notebook.run("1/0"), None, ZeroDivisionError, 1)


def test_cell_below_magic(cpu_notebook):
    for cell, value, error, _ in UNDER_OURS.values():
        number = cpu_notebook.shell.execution_count
        result = cpu_notebook.run(f"%%gpumem\n{cell}")
        if isinstance(result.error, SyntaxError):  # nothing runs, and our call is part of the cell
            check(result, value, error, 0)
        else:
            check(result, value, error, 1)
            assert result.text.startswith("host memory of this process")
            assert f"   In [{number}], " in result.text
            assert ("failed" in result.text) is (error is not None)
        check(cpu_notebook.run("1 + 1"), 2, None, 1)


@pytest.mark.parametrize("name", ["interrupted while waiting", "cancelled while waiting"])
def test_interrupted_wait_below_magic(cpu_notebook, name):
    cell, _, error, _ = TRAPS[name]
    result = cpu_notebook.run(f"%%gpumem -v report\n{cell}")
    check(result, None, error, 1)
    assert cpu_notebook.run("report.success").value is False
    # no measurement is left open: the next cell has its own peak
    from ipygpumem.measurement.runtime import current

    assert current().peaks._scopes == []


MAGICS = {
    "time": ("%%time\n%%gpumem\n6 * 7", 42, 1),
    "capture": ("%%capture\n%%gpumem\nprint('x')\n6 * 7", None, 1),
    "capture twice": ("%%capture\n%%time\n%%gpumem\n6 * 7", None, 1),
}


@pytest.mark.parametrize("name", MAGICS)
def test_magic_below_another_magic(cpu_notebook, name):
    cell, value, reports = MAGICS[name]
    number = cpu_notebook.shell.execution_count
    result = cpu_notebook.run(cell)
    check(result, value, None, reports)
    assert result.text.startswith(f"host memory of this process   In [{number}], ")  # a table was requested
    assert "\nx" not in result.stdout
    check(cpu_notebook.run("1 + 1"), 2, None, 1)


def test_duplicate_magic_raises_before_the_body(cpu_notebook):
    result = cpu_notebook.run("%%gpumem -q\n%%gpumem -v second\nran = True")
    assert "put all options on one line" in result.stderr
    assert "ran" not in cpu_notebook.shell.user_ns
    assert "second" not in cpu_notebook.shell.user_ns


def test_magic_in_nested_run_measures_that_run(cpu_notebook):
    result = cpu_notebook.run("ip = get_ipython()\nip.run_cell('%%gpumem -v inner\\n6 * 7')\nkept = " + LARGE)
    assert len(result.texts) == 2
    assert result.texts[0].startswith("host memory of this process")
    inner, outer = cpu_notebook.shell.user_ns["inner"], cpu_notebook.last
    assert inner.cell is None and outer.cell is not None
    assert inner.host.held < 24 << 20 < outer.host.held


def test_run_magic_reports_each_cell_of_a_notebook(cpu_notebook, tmp_path):
    script = tmp_path / "two.ipy"
    script.write_text("%gpumem -v one x = 1\n%gpumem -v two y = 2\n")
    result = cpu_notebook.run(f"%run {script}\none.cell, two.cell")
    assert result.success, result
    assert len(result.texts) == 3


def test_silent_and_unstored(cpu_notebook):
    check(cpu_notebook.run("x = 6 * 7", silent=True), None, None, 0)
    check(cpu_notebook.run("6 * 7", store_history=False), 42, None, 0)
    check(cpu_notebook.run("%%gpumem\nx = 6 * 7", silent=True), None, None, 0)
    result = cpu_notebook.run("%%gpumem\n6 * 7", store_history=False)  # requested, without a cell number
    check(result, 42, None, 1)
    assert re.match(r"host memory of this process   \d+\.\d m?s\n", result.text)
    assert cpu_notebook.last.cell is None


def test_kernel_that_ends_cell_with_none(cpu_notebook):
    """ipykernel passes None as the result of a cancelled async cell."""
    shell = cpu_notebook.shell
    infos = []
    shell.events.register("pre_run_cell", infos.append)
    cpu_notebook.run("x = 1")
    shell.events.unregister("pre_run_cell", infos.append)
    before = len(cpu_notebook.reports)
    shell.events.trigger("post_run_cell", None)  # no cell is open
    assert len(cpu_notebook.reports) == before
    shell.events.trigger("pre_run_cell", infos[0])
    shell.events.trigger("post_run_cell", None)
    assert len(cpu_notebook.reports) == before + 1
    assert cpu_notebook.last.success is False
    check(cpu_notebook.run("1 + 1"), 2, None, 1)


@pytest.mark.parametrize("alive", [False, True])
def test_cell_without_end(cpu_notebook, alive):
    """A missing end event does not affect later cells, whether or not the event object is still alive."""

    class Info:
        raw_cell, store_history, cell_id = "x", True, None

    lost_event = Info()
    cpu_notebook.shell.events.trigger("pre_run_cell", lost_event)
    if alive:
        cpu_notebook.shell.events.trigger("post_run_cell", None)
    else:
        del lost_event
    check(cpu_notebook.run("1 + 1"), 2, None, 1)


def test_one_pair_of_events_and_no_second_run(cpu_notebook):
    shell, events = cpu_notebook.shell, []

    def pre(info):
        events.append("pre")

    def post(result):
        events.append("post")

    shell.events.register("pre_run_cell", pre)
    shell.events.register("post_run_cell", post)
    shell.user_ns["runs"] = []
    for cell in (
        "runs.append(1)",
        "%%gpumem\nruns.append(1)",
        "%gpumem runs.append(1)",
        "%%gpumem\nruns.append(1); 1/0",
    ):
        events.clear()
        shell.user_ns["runs"].clear()
        cpu_notebook.run(cell)
        assert events == ["pre", "post"]
        assert shell.user_ns["runs"] == [1]
    shell.events.unregister("pre_run_cell", pre)
    shell.events.unregister("post_run_cell", post)


def test_values_are_kept(cpu_notebook):
    number = cpu_notebook.shell.execution_count
    result = cpu_notebook.run("%%gpumem\n[1, 2]")
    assert result.stdout == f"Out[{number}]: [1, 2]\n"
    assert cpu_notebook.run(f"_, Out[{number}]").value == ([1, 2], [1, 2])
    assert cpu_notebook.run("%%gpumem\n6 * 7;").stdout == ""
    assert cpu_notebook.run("%gpumem 6 * 7;").stdout == ""
    number = cpu_notebook.shell.execution_count
    assert cpu_notebook.run("%gpumem 6 * 7").stdout == f"Out[{number}]: 42\n"
    assert cpu_notebook.run("_").value == 42


def test_multi_line_strings_are_exact(cpu_notebook):
    body = 'text = """a\n  b\n\n\tc\r\n %%gpumem\n{name} $x\n"""\ntext'
    assert (
        cpu_notebook.run("%%gpumem\n" + body).value
        == cpu_notebook.run(body).value
        == "a\n  b\n\n\tc\n %%gpumem\n{name} $x\n"
    )


def test_from_future(cpu_notebook):
    result = cpu_notebook.run(
        "%%gpumem\nfrom __future__ import annotations\ndef f(x: no_such_name): pass\nf.__annotations__"
    )
    assert result.success
    assert result.value == {"x": "no_such_name"}


def test_classes_and_functions_have_their_source(cpu_notebook):
    import inspect

    cpu_notebook.run("%%gpumem\ndef f():\n    return 1\n")
    assert inspect.getsource(cpu_notebook.shell.user_ns["f"]) == "def f():\n    return 1\n"


@pytest.mark.parametrize("head", ["", "%%gpumem\n", "%%gpumem -q\n", "\n\n%%gpumem\n"])
def test_traceback_lines(cpu_notebook, head):
    cpu_notebook.shell.InteractiveTB.set_mode("Context")
    result = cpu_notebook.run(head + "x = 1\n\ndef f():\n    1/0\nf()")
    blank_lines = head.lstrip("\n").count("\n")
    lines = [frame.lineno for frame in traceback.extract_tb(result.error.__traceback__) if frame.name != "run_code"]
    assert lines == [blank_lines + 5, blank_lines + 4]
    assert f"---> {blank_lines + 5} f()" in result.stdout.replace("----", "---")


def test_time_to_show_a_traceback_does_not_count(cpu_notebook, monkeypatch):
    times = iter([0.0, 1e6])
    monkeypatch.setattr("ipygpumem.jupyter.cell_measurements.perf_counter", lambda: next(times))
    result = cpu_notebook.run("1 / 0")
    assert "ZeroDivisionError" in result.stdout
    assert (cpu_notebook.last.success, cpu_notebook.last.seconds) == (False, 0.0)


@pytest.mark.parametrize("function", ["<module>", "<cell line: 0>"])
def test_label_of_a_line_in_a_cell(cpu_notebook, function):
    label = cpu_notebook.shell.magics_manager.registry["GPUMem"].cells.numbers.label
    assert label("<ipython-input-3-0123456789ab>", 5, function) == "In [3]:5"


def test_invalid_option_runs_nothing(cpu_notebook):
    result = cpu_notebook.run("%%gpumem --no-such-option\nran = True")
    assert isinstance(result.error, UsageError)
    assert result.stderr == "UsageError: %%gpumem: unrecognized arguments: --no-such-option\n"
    assert result.stdout == ""
    assert "ran" not in cpu_notebook.shell.user_ns
    check(cpu_notebook.run("1 + 1"), 2, None, 1)


@pytest.mark.parametrize("words", ["--help", "-h", "-q --help"])
def test_help_runs_nothing(cpu_notebook, words):
    result = cpu_notebook.run(f"%%gpumem {words}\nran = True")
    assert result.success
    assert result.stdout.startswith("%%gpumem [OPTIONS] ")
    assert "ran" not in cpu_notebook.shell.user_ns


def test_help_combined_with_another_option_runs_nothing(cpu_notebook):
    assert isinstance(cpu_notebook.run("%%gpumem -qh\nran = True").error, UsageError)
    assert "ran" not in cpu_notebook.shell.user_ns


def test_programmatic_call(cpu_notebook):
    """Scripts exported by nbconvert call the magic as a function."""
    result = cpu_notebook.run("get_ipython().run_cell_magic('gpumem', '-v report', 'x = 1\\nx + 41')")
    assert result.success
    assert "Out" in result.stdout and "42" in result.stdout
    assert cpu_notebook.shell.user_ns["report"].success is True
    result = cpu_notebook.run("get_ipython().run_cell_magic('gpumem', '', '1/0')")
    assert isinstance(result.error, ZeroDivisionError)
    result = cpu_notebook.run("get_ipython().run_cell_magic('gpumem', '--help', 'ran = True')")
    assert result.stdout.startswith("%%gpumem [OPTIONS] ")
    assert "ran" not in cpu_notebook.shell.user_ns


def test_cells_of_another_thread_are_measured_separately(cpu_notebook):
    """A subshell of the kernel runs cells concurrently with the main thread."""
    cpu_notebook.run(
        "import threading\n"
        "def other():\n"
        "    get_ipython().run_cell('kept = 1', store_history=True)\n"
        "thread = threading.Thread(target=other)\n"
        "thread.start(); thread.join()"
    )
    assert [report.success for report in cpu_notebook.reports] == [True, True]
    check(cpu_notebook.run("1 + 1"), 2, None, 1)


def test_many_lines_of_output(cpu_notebook):
    result = cpu_notebook.run("for i in range(10_000): print('line', i)")
    assert result.stdout.count("\n") == 10_000
    assert len(result.texts) == 1


def test_result_is_not_read(cpu_notebook):
    """The extension accesses no attributes of a cell's result."""
    cpu_notebook.run(
        "class Shy:\n"
        "    def __getattr__(self, name): raise RuntimeError('look away')\n"
        "    def __eq__(self, other): raise RuntimeError('look away')\n"
        "    __hash__ = None\n"
        "    def __repr__(self): return 'shy'\n"
    )
    result = cpu_notebook.run("%%gpumem\nshy = Shy()\nshy")
    assert result.success
    assert len(result.texts) == 1


def test_cell_report_runs_few_files(cpu_notebook, monkeypatch):
    """An ordinary cell runs code in at most 20 files of the package and changes the subpackage at most 15 times."""
    # whether the resident memory of this process changes meanwhile depends on its other threads and earlier tests
    monkeypatch.setattr("ipygpumem.features.report.short_report.VISIBLE", 1 << 50)
    package, files = Path(ipygpumem.__file__).parent, []

    def record(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(package):
            files.append(path.relative_to(package))

    cpu_notebook.run("x = 1")
    sys.setprofile(record)
    try:
        result = cpu_notebook.run("x = [0] * 10")
    finally:
        sys.setprofile(None)
    assert "host memory (RSS)" in result.text
    changes = [str(after) for before, after in itertools.pairwise(files) if before.parts[0] != after.parts[0]]
    assert len(set(files)) <= 20, " ".join(sorted(map(str, set(files))))
    assert len(changes) <= 15, " ".join(changes)


def test_empty_cell_makes_few_calls(gpu_notebook):
    """At the beginning and end of a cell that changes nothing, at most 125 functions of the package are called."""
    package, names = str(Path(ipygpumem.__file__).parent), []

    def record(frame, event, _):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(package) and not code.co_name.startswith("<"):
            names.append(code.co_name)

    for _ in range(3):
        gpu_notebook.run("0")
    sys.setprofile(record)
    try:
        gpu_notebook.run("0")
    finally:
        sys.setprofile(None)
    assert len(names) <= 125, " ".join(names)


def _queries(notebook, gpu, *cells):
    """Run cells and return the number of queries of the device's memory for each of them."""
    counts = []
    for cell in cells:
        before = gpu.nvml.calls["nvmlDeviceGetMemoryInfo_v2"]
        notebook.run(cell)
        counts.append(gpu.nvml.calls["nvmlDeviceGetMemoryInfo_v2"] - before)
    return counts


def test_next_cell_uses_the_second_reading_of_a_cell(gpu_notebook, fake_gpu, monkeypatch):
    monkeypatch.setattr(device_monitor, "_LIFETIME", 60.0)
    gpu_notebook.run("0")
    assert _queries(gpu_notebook, fake_gpu, "1", "2", "%%gpumem\n3", "4", "%gpumem fit --help", "5") == [
        1,
        1,
        2,
        2,
        1,
        1,
    ]
    gpu_notebook.run("%config GPUMem.host_peak = 'reset'")
    assert _queries(gpu_notebook, fake_gpu, "1", "2") == [2, 2]
    gpu_notebook.run("%config GPUMem.host_peak = 'bound'")
    monkeypatch.setattr(device_monitor, "_LIFETIME", 0.0)
    assert _queries(gpu_notebook, fake_gpu, "1", "2") == [2, 2]
