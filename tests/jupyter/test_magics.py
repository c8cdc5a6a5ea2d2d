"""The magics as users type them."""

from __future__ import annotations

import gc
import pickle
import platform
import re
import traceback
import weakref

import pytest
import torch
from IPython.core.error import UsageError

from fakes.builds import NO_GPU, needs_skip_actions
from ipygpumem.core.reading import Reading
from ipygpumem.core.report import Report
from ipygpumem.jupyter.commands import COMMANDS, command_help, help_text

pytestmark = pytest.mark.ipython

MIB = 1 << 20


def allocate(mib, name="kept"):
    return f"{name} = torch.ones({mib} << 20, dtype=torch.uint8, device='cuda')"


def usage(result):
    """Return the message of a UsageError, which must have one line."""
    assert isinstance(result.error, UsageError), result
    assert result.stdout == ""
    assert result.displays == []
    assert result.stderr.startswith("UsageError: ") and result.stderr.count("\n") == 1
    return result.stderr.removeprefix("UsageError: ").rstrip("\n")


# %gpumem alone


def test_breakdown(gpu_notebook):
    gpu_notebook.run(allocate(100))
    result = gpu_notebook.run("%gpumem")
    assert result.value is None
    lines = result.text.splitlines()
    assert lines[0] == "cuda:0 NVIDIA H200"
    labels = [line.rsplit("  ", 1)[0].strip() for line in lines[2:14]]
    assert labels == [
        "device total",
        "free",
        "used",
        "driver reserved",
        "this process",
        "PyTorch reserved",
        "allocated (tensors)",
        "cached",
        "outside PyTorch",
        "CUDA context",
        "first kernels",
        "unattributed",
    ]
    assert re.search(r"allocated \(tensors\) +132\.0 MiB", result.text)
    assert result.displays[0]["text/html"].startswith("<div")


def test_breakdown_without_a_gpu(cpu_notebook):
    cpu_notebook.run("%config GPUMem.report = 'changed'")
    text = cpu_notebook.run("%gpumem").text
    assert text.startswith("host memory\n")
    assert re.search(r"this process \(RSS\) +\d+\.\d [MG]iB", text)
    assert "no GPU: torch" in text


def test_breakdown_as_value(gpu_notebook):
    result = gpu_notebook.run("now = %gpumem -o -q\nnow")
    assert result.displays == []
    assert isinstance(result.value, Reading)
    assert isinstance(gpu_notebook.run("%gpumem -q -v now2\nnow2").value, Reading)


def test_breakdown_of_one_device(two_gpus, make_notebook):
    notebook = make_notebook()
    notebook.load()
    torch.ones(1, device="cuda:1")
    assert "cuda:1" not in notebook.run("%gpumem -d 0").text
    assert "cuda:0" not in notebook.run("%gpumem --device cuda:1").text
    assert usage(notebook.run("%gpumem -d 2")) == (
        "%gpumem: there is no device cuda:2: this process sees 2 devices (cuda:0 to cuda:1)"
    )


def test_on_and_off(gpu_notebook):
    assert gpu_notebook.run("%gpumem off").stdout == "ipygpumem: reports are off\n"
    assert gpu_notebook.run(allocate(10)).texts == []
    assert gpu_notebook.run("%gpumem off").stdout == "ipygpumem: reports are off\n"
    assert gpu_notebook.run("%gpumem on").stdout == "ipygpumem: reports are on\n"
    assert len(gpu_notebook.run(allocate(10, "more")).texts) == 1


def test_on_restores_the_setting(cpu_notebook):
    cpu_notebook.run("%gpumem off")
    cpu_notebook.run("%gpumem on")
    assert cpu_notebook.run("%config GPUMem.report", store_history=False).value == "always"
    cpu_notebook.run("%gpumem on")
    assert cpu_notebook.run("%config GPUMem.report", store_history=False).value == "always"
    cpu_notebook.run("%config GPUMem.report = 'off'")
    cpu_notebook.run("%gpumem on")
    assert cpu_notebook.run("%config GPUMem.report", store_history=False).value != "off"


def test_on_and_off_take_no_options(gpu_notebook):
    gpu_notebook.run("on = off = 3")
    for line in ("%gpumem on now", "%gpumem off -q", "%gpumem on --nothing"):
        assert "unrecognized arguments" in usage(gpu_notebook.run(line))


def test_help(gpu_notebook):
    for line in ("--help", "-h", "on --help", "off -h", "record --help", "record start --help", "-q -h"):
        result = gpu_notebook.run(f"%gpumem {line}")
        command = next((command for command in COMMANDS if command.name == line.split()[0]), None)
        assert result.stdout == (help_text() if command is None else command_help(command)) + "\n", line
        assert result.displays == []
        assert not torch._C._cuda_isHistoryEnabled()
    assert isinstance(gpu_notebook.run("%gpumem x = 1 -h").error, NameError), "a statement"


@pytest.mark.parametrize("question", ["%gpumem?", "%%gpumem?", "?%gpumem", "%gpumem??"])
def test_question_mark_has_the_same_text(cpu_notebook, question):
    text = re.sub(r"\x1b\[[0-9;]*m", "", cpu_notebook.run(question).stdout)
    single_spaced = re.sub(r"\s+", " ", text)
    for line in help_text().splitlines():
        assert re.sub(r"\s+", " ", line).strip() in single_spaced or question.endswith("??")


def test_help_names_every_option_and_command():
    text = help_text()
    for word in ("--snapshot PATH", "--stacks", "--max-entries N", "--history KEY=VALUE", "-d, --device DEVICE"):
        assert word in text
    for word in ("-q, --quiet", "-v, --var NAME", "-h, --help", "-o", "%gpumem on", "%gpumem off", "%gpumem record"):
        assert word in text
    assert all(len(line) <= 120 for line in text.splitlines())


# %gpumem STATEMENT


def test_statement_has_value_and_report(gpu_notebook):
    gpu_notebook.run("def f(n): return torch.ones(n << 20, dtype=torch.uint8, device='cuda').shape[0] >> 20")
    number = gpu_notebook.shell.execution_count
    result = gpu_notebook.run("%gpumem f(100)")
    assert result.value == 100
    assert result.stdout == f"Out[{number}]: 100\n"
    assert re.fullmatch(
        r"cuda:0  peak \+100\.0 MiB · cache \+100\.0 MiB · .* used   In \[\d+\], [\d.]+ m?s", result.text
    )
    assert gpu_notebook.last.cell == number
    assert gpu_notebook.reports.cell(number) is gpu_notebook.last


STATEMENTS = {
    "%gpumem x = 6 * 7": ("x", 42),
    "%gpumem x = y = 6; x += 36": ("x", 42),
    "%gpumem import math as m; x = m.floor(42.5)": ("x", 42),
    "%gpumem record = 42": ("record", 42),
    "%gpumem -q off = 42": ("off", 42),
    "%gpumem x = %sql_like 42": ("x", 42),
    "%gpumem x = !echo 42": ("x", ["42"]),
    "%gpumem -v facts x = 42": ("x", 42),
}


def test_statements(cpu_notebook):
    cpu_notebook.shell.register_magic_function(int, magic_name="sql_like")
    for line, (name, value) in STATEMENTS.items():
        cell_result = cpu_notebook.run(line)
        assert cell_result.success, cell_result
        assert cell_result.value is None
        result = cpu_notebook.shell.user_ns.pop(name)
        assert (list(result) if isinstance(value, list) else result) == value, line
        assert len(cell_result.texts) == (0 if "-q" in line else 1)


VALUES = {
    "%gpumem 6 * 7": 42,
    "%gpumem x = 6; x * 7": 42,
    "%gpumem -x + 43": 42,
    "%gpumem -1": -1,
    "%gpumem -x": -1,
    "%gpumem on": None,
    "%gpumem record.bit_length()": 3,
    "%gpumem 'a;'": "a;",
    "%gpumem 6 * 7;": None,
    '%gpumem "{x} $x"': "{x} $x",
    "%gpumem -q 6 * 7": 42,
    "%gpumem -qo 6 * 7": Report,
    "%gpumem -o 6 * 7": Report,
    "%gpumem -o -q -v r 6 * 7": Report,
    "%gpumem -d 0 -q 6 * 7": 42,
    "%gpumem --device=0 -q 6 * 7": 42,
}


def test_values(fake_gpu, make_notebook):
    notebook = make_notebook(GPUMem={"report": "always"})
    notebook.load()
    for count, (line, value) in enumerate(VALUES.items(), 1):
        notebook.run("x, on, record = 1, 5, 6", store_history=False)
        result = notebook.run(line)
        assert result.success, result
        assert isinstance(result.value, Report) if value is Report else result.value == value, line
        assert len(result.texts) == (0 if "-q" in line else 1), line
        assert len(notebook.reports) == count


def test_semicolon_at_end_of_line_is_ignored(gpu_notebook):
    kinds = {
        "%gpumem who --new -o;": "Holders",
        "%gpumem who --new -o ;": "Holders",
        "%gpumem explain;": "NoneType",
        "%gpumem env --help;": "NoneType",
        "%gpumem -d 0 -o;": "Reading",
        "%gpumem ;": "NoneType",
        "%gpumem -o 6 * 7;": "Report",
        "%gpumem record start;": "NoneType",
    }
    gpu_notebook.run("%gpumem who")
    for line, kind in kinds.items():
        result = gpu_notebook.run(line)
        assert result.success, result
        assert type(result.value).__name__ == kind, line


def test_statement_within_function_sees_local_names(cpu_notebook):
    result = cpu_notebook.run(
        "def f(n):\n    get_ipython().run_line_magic('gpumem', '-q -v facts n + 1')\n    return n\nf(3)"
    )
    assert result.value == 3
    result = cpu_notebook.run("for i in range(3):\n    %gpumem -q i + 1")
    assert result.success


def test_cell_of_statements_reports_each_and_itself(cpu_notebook):
    result = cpu_notebook.run("%gpumem x = 1\n%gpumem y = 2\nz = b'x' * (40 << 20)")
    assert len(result.texts) == 3
    assert cpu_notebook.last.host.held > 30 * MIB  # the report of the cell
    result = cpu_notebook.run("# one statement\n\n%gpumem x = 1\n")
    assert len(result.texts) == 1


def test_statement_that_raises(cpu_notebook):
    cpu_notebook.shell.InteractiveTB.set_mode("Context")
    cpu_notebook.run("def f():\n    1/0")
    number = cpu_notebook.shell.execution_count
    result = cpu_notebook.run("%gpumem f()")
    assert isinstance(result.error, ZeroDivisionError)
    assert "In [%d], " % number in result.text and result.text.endswith("failed")  # noqa: UP031 (brackets)
    assert cpu_notebook.last.success is False
    assert "ipygpumem" not in result.stdout
    frames = traceback.extract_tb(result.error.__traceback__)
    assert (frames[-1].name, frames[-1].line) == ("f", "1/0")
    assert frames[-2].line == "f()"
    assert len(cpu_notebook.run("1 + 1").texts) == 1


@pytest.mark.parametrize("error", ["KeyboardInterrupt", "MemoryError", "SystemExit"])
@pytest.mark.filterwarnings("ignore:To exit")
def test_interrupted_statement(cpu_notebook, error):
    cpu_notebook.run("def f(): raise " + error)
    result = cpu_notebook.run("%gpumem f()")
    assert type(result.error).__name__ == error
    assert len(result.texts) == 1
    from ipygpumem.measurement.runtime import current

    assert current().peaks._scopes == []


def test_statement_with_a_syntax_error(cpu_notebook):
    assert usage_line(cpu_notebook.run("%gpumem x +")) == "%gpumem: invalid syntax: 'x +'"
    assert (
        usage_line(cpu_notebook.run("%gpumem record sart"))
        == "%gpumem record: the subcommand must be one of start, save, stop, but got sart"
    )
    assert len(cpu_notebook.run("1 + 1").texts) == 1


def test_statement_that_awaits(cpu_notebook):
    cpu_notebook.run("async def f(): pass")
    line = usage_line(cpu_notebook.run("%gpumem await f()"))
    assert line == "%gpumem cannot measure a statement that contains await: use %%gpumem"
    assert usage_line(cpu_notebook.run("%gpumem await f(); 1")).endswith(": use %%gpumem")


def usage_line(result):
    assert isinstance(result.error, UsageError), result
    return result.stderr.strip().removeprefix("UsageError: ")


def test_magic_in_failing_statement(cpu_notebook):
    assert isinstance(cpu_notebook.run("%gpumem %no_such_magic x").error, UsageError)


def test_long_statement_with_snapshot(gpu_notebook, tmp_path):
    path = tmp_path / "a b.pickle"
    result = gpu_notebook.run(f"%gpumem --snapshot '{path}' --max-entries 50 {allocate(30)}")
    assert result.success, result
    assert f"snapshot {path}: " in result.text
    snapshot = pickle.loads(path.read_bytes())
    assert [e["size"] for e in snapshot["device_traces"][0] if e["action"] == "alloc"] == [30 * MIB]
    cell = snapshot["ipygpumem"]["cells"][0]
    assert cell["number"] == gpu_notebook.last.cell


# %%gpumem


def test_quiet_and_variable(gpu_notebook):
    result = gpu_notebook.run(f"%%gpumem -q -v facts\n{allocate(10)}")
    assert result.displays == []
    facts = gpu_notebook.shell.user_ns["facts"]
    assert isinstance(facts, Report)
    assert facts is gpu_notebook.last
    assert facts.devices["cuda:0"].held == 10 * MIB


def test_device(two_gpus, make_notebook):
    notebook = make_notebook()
    notebook.load()
    for words in ("-d 1", "--device cuda:1", "-d=1", "--device=1", "-d 1 -d 1"):
        result = notebook.run(f"%%gpumem {words}\nimport torch\nx = torch.ones(1 << 20, device='cuda:1')")
        assert result.success, result
        assert result.text.startswith("cuda:1")
        assert "cuda:0" not in result.text
        assert list(notebook.last.devices) == ["cuda:1"]
    result = notebook.run("%%gpumem -d 0,1\n1")
    assert list(notebook.last.devices) == ["cuda:0", "cuda:1"]


INVALID_OPTIONS = {
    "--snapshot": "%%gpumem: argument --snapshot: expected one argument",
    "--snapshot ''": "%%gpumem: the path of the snapshot is empty",
    "--snapshot .": "%%gpumem: . is a directory: add a file name, such as snapshot.pickle",
    "--snapshot no/such/folder/x.pickle": r"%%gpumem: the directory .*/no/such/folder does not exist",
    "--snapshot x/": r"%%gpumem: x/ is a directory: add a file name, such as x/snapshot\.pickle",
    "--snapshot /dev/null": "%%gpumem: /dev/null is not a regular file",
    "--snapshot '{no_such_name}.pickle'": r"%%gpumem: '\{no_such_name\}\.pickle' cannot be expanded \(NameError: .*\)",
    "--snapshot '{x'": r"%%gpumem: '\{x' cannot be expanded \(.*\)",
    "--snapshot 'x": '%%gpumem: No closing quotation in "--snapshot \'x"',
    "--max-entries 0": "%%gpumem: argument --max-entries: the value must be a positive integer, but got '0'",
    "--max-entries -1": r"%%gpumem: .*max-entries.*",
    "--max-entries abc": "%%gpumem: argument --max-entries: the value must be a positive integer, but got 'abc'",
    "--max-entries 1.5": "%%gpumem: argument --max-entries: the value must be a positive integer, but got '1.5'",
    "--stacks cpp": r"%%gpumem: argument --stacks: invalid choice: 'cpp' \(choose from .*\)",
    "--history x": "%%gpumem: argument --history: the value must have the form KEY=VALUE, but got 'x'",
    "--history no_such=1 --snapshot ok.pickle": r"%%gpumem: 'no_such' is not an additional .*: choose from .*",
    "--history enabled=None --snapshot ok.pickle": r"%%gpumem: 'enabled' is not an additional .*: choose from .*",
    "-d 7": "%%gpumem: there is no device cuda:7: this process sees 1 device",
    "-d gpu0": "%%gpumem: 'gpu0' is not a device: use, for example, cuda:0 or 0",
    "-d -1": r"%%gpumem: .*",
    "-v 1x": "%%gpumem: '1x' is not a valid variable name",
    "-v for": "%%gpumem: 'for' is not a valid variable name",
    "-v In": "%%gpumem: 'In' is reserved by IPython: choose another variable name",
    "-v _3": "%%gpumem: '_3' is reserved by IPython: choose another variable name",
    "-v __builtins__": "%%gpumem: '__builtins__' is reserved by Python: choose another variable name",
    "-v": "%%gpumem: argument -v/--var: expected one argument",
    "words": "%%gpumem: unrecognized arguments: words",
    "--snap x": "%%gpumem: unrecognized arguments: --snap x. Did you mean --snapshot?",
    "-o": "%%gpumem: unrecognized arguments: -o",
}


def test_invalid_options_are_one_line_and_nothing_runs(gpu_notebook, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for words, message in INVALID_OPTIONS.items():
        line = usage(gpu_notebook.run(f"%%gpumem {words}\nran = True"))
        pattern = message if "\\" in message or ".*" in message else re.escape(message)
        assert re.fullmatch(pattern, line), (words, line)
        assert "ran" not in gpu_notebook.shell.user_ns, words
        assert list(tmp_path.iterdir()) == []
        assert torch._C._cuda_isHistoryEnabled() is False
        assert len(gpu_notebook.run("kept = None\n" + allocate(10)).texts) == 1, words
        gpu_notebook.run("del kept")


def test_invalid_options_of_statement(gpu_notebook):
    for words in ("--snapshot", "--max-entries 0 x = 1", "-d 7 x = 1", "--snap x", "--snapshot . x = 1"):
        usage(gpu_notebook.run(f"%gpumem {words}"))
        assert "x" not in gpu_notebook.shell.user_ns, words


@pytest.mark.parametrize("words", ["--snapshot x.pickle", "--lines", "--limit 2GiB", "--limit-held=0", "--outside -q"])
def test_options_that_require_a_statement(gpu_notebook, words):
    flag = words.replace("=", " ").split()[0]
    line = usage(gpu_notebook.run(f"%gpumem {words}"))
    assert line == f"%gpumem {flag} requires a statement; to measure a cell, use %%gpumem {flag}"
    assert "memory" in gpu_notebook.run("%gpumem --table").text


def test_snapshot(gpu_notebook, tmp_path):
    path = tmp_path / "run.pickle"
    cell = f"%%gpumem --snapshot {path}\n{allocate(30)}\nlen(kept)"
    number = gpu_notebook.shell.execution_count
    result = gpu_notebook.run(cell)
    assert result.value == 30 * MIB
    assert re.search(rf"snapshot {path}: \d events, \d+\.\d KiB$", result.text)
    raw = path.read_bytes()
    assert raw[:2] == b"\x80\x04"
    snapshot = pickle.loads(raw)
    (facts,) = snapshot["ipygpumem"]["cells"]
    assert (facts["number"], facts["success"]) == (number, True)
    assert snapshot["source_code"] == {facts["filename"]: cell}
    frames = {frame["filename"] for event in snapshot["device_traces"][0] for frame in event.get("frames", ())}
    assert facts["filename"] in frames
    lines = [
        f["line"] for e in snapshot["device_traces"][0] for f in e.get("frames", ()) if f["filename"] in facts.values()
    ]
    assert set(lines) == {2}  # as written in the cell
    assert torch._C._cuda_isHistoryEnabled() is False
    rerun = gpu_notebook.run(cell.replace(allocate(30), allocate(20)))  # a re-run overwrites
    assert rerun.success
    assert pickle.loads(path.read_bytes())["ipygpumem"]["cells"][0]["number"] == number + 1
    assert [path.name for path in tmp_path.iterdir()] == ["run.pickle"]


@needs_skip_actions
@pytest.mark.parametrize("stacks", ["python", "all", "none"])
def test_stacks(gpu_notebook, fake_gpu, tmp_path, stacks):
    histories = []
    gpu_notebook.shell.user_ns["look"] = lambda: histories.append(dict(fake_gpu.history))
    words = (
        f"--snapshot {tmp_path}/x.pickle --stacks {stacks} --max-entries 77 --history skip_actions=['free_requested']"
    )
    result = gpu_notebook.run(f"%%gpumem {words.replace('[', chr(34) + '[').replace(']', ']' + chr(34))}\nlook()")
    assert result.success, result
    (history,) = histories
    assert history["max_entries"] == 77
    assert history["stacks"] == ("all" if stacks == "all" else "python")
    assert history["context"] == (None if stacks == "none" else "alloc")
    assert history["skip_actions"] == ("free_requested",)


def test_placeholders_in_path(gpu_notebook, tmp_path):
    gpu_notebook.run("step, run = 7, {'name': 'a'}")
    result = gpu_notebook.run(
        f"%%gpumem -q --snapshot '{tmp_path}/{{step:03d}}-{{run[\"name\"]}}-{{host}}-{{time}}.pickle'\n1"
    )
    assert result.success, result
    (path,) = tmp_path.iterdir()
    assert re.fullmatch(rf"007-a-{re.escape(platform.node())}-\d{{8}}-\d{{6}}\.pickle", path.name)


def test_failing_cell_writes_its_snapshot(gpu_notebook, tmp_path):
    path = tmp_path / "x.pickle"
    result = gpu_notebook.run(f"%%gpumem --snapshot {path}\n{allocate(10)}\n1/0")
    assert isinstance(result.error, ZeroDivisionError)
    assert f"snapshot {path}: " in result.text
    assert pickle.loads(path.read_bytes())["ipygpumem"]["cells"][0]["success"] is False


def test_out_of_memory(gpu_notebook, tmp_path):
    path = tmp_path / "oom.pickle"
    result = gpu_notebook.run(f"%%gpumem --snapshot {path}\n{allocate(100)}\n{allocate(1 << 20, 'huge')}")
    assert isinstance(result.error, torch.OutOfMemoryError)
    table, panel = result.texts
    assert "cuda:0 ran out of memory" in table
    assert "cuda:0 is out of memory" in panel
    assert any(event["action"] == "oom" for event in pickle.loads(path.read_bytes())["device_traces"][0])
    result = gpu_notebook.run(allocate(1 << 20, "huge"))  # without the magic the panel replaces the line
    assert isinstance(result.error, torch.OutOfMemoryError)
    assert "cuda:0 is out of memory" in result.text


def test_quiet_cell_still_reports_lost_recordings(gpu_notebook, tmp_path):
    folder = tmp_path / "gone"
    folder.mkdir()
    result = gpu_notebook.run(f"%%gpumem -q --snapshot {folder}/x.pickle\nimport os; os.rmdir({str(folder)!r})\n42")
    assert result.value == 42
    assert result.displays == []
    assert result.stdout.splitlines()[-1].startswith(f"ipygpumem: the snapshot {folder}/x.pickle was not written: ")


def test_no_recording_without_gpu(notebook, tmp_path):
    notebook.load()
    line = usage(notebook.run(f"%%gpumem --snapshot {tmp_path}/x.pickle\nran = True"))
    assert line == f"%%gpumem: PyTorch records allocation history only for GPU memory, and {NO_GPU}"
    assert "ran" not in notebook.shell.user_ns


@pytest.mark.parametrize("backend", ["cudaMallocAsync", "pluggable"])
def test_no_recording_with_another_allocator(make_gpu, make_notebook, tmp_path, backend):
    make_gpu(backend=backend)
    notebook = make_notebook()
    notebook.load()
    line = usage(notebook.run(f"%%gpumem --snapshot {tmp_path}/x.pickle\nran = True"))
    assert line == f"%%gpumem: the allocator backend {backend} cannot record allocation history"
    assert "ran" not in notebook.shell.user_ns


# no user objects are kept alive


class Tracked:
    pass


@pytest.mark.parametrize("head", ["", "%%gpumem\n", "%%gpumem -v facts\n", "%%time\n%%gpumem\n"])
def test_values_and_errors_are_released(cpu_notebook, head):
    shell = cpu_notebook.shell
    shell.user_ns["Thing"] = Tracked
    cpu_notebook.run(head + "import weakref\nthing = Thing()\nalive = weakref.ref(thing)\nthing")
    alive = shell.user_ns["alive"]
    assert isinstance(alive, weakref.ref)
    cpu_notebook.run("%xdel thing")
    forget(shell)
    assert alive() is None

    cpu_notebook.run(
        head + "def f():\n    local = Thing()\n    global alive\n    alive = weakref.ref(local)\n    1/0\nf()"
    )
    alive = shell.user_ns["alive"]
    assert alive() is not None
    forget(shell)
    assert alive() is None


def test_failed_statement_is_released(cpu_notebook):
    shell = cpu_notebook.shell
    shell.user_ns["Thing"] = Tracked
    cpu_notebook.run(
        "import weakref\ndef f():\n    local = Thing()\n    global alive\n    alive = weakref.ref(local)\n    1/0"
    )
    cpu_notebook.run("%gpumem f()")
    alive = shell.user_ns["alive"]
    forget(shell)
    assert alive() is None
    cpu_notebook.run("%gpumem -o Thing()")
    cpu_notebook.run("%gpumem -v facts Thing()")


def forget(shell):
    """Clear the references of IPython and Python to recent results and errors."""
    import sys

    for name in ("last_type", "last_value", "last_traceback", "last_exc"):
        if hasattr(sys, name):
            delattr(sys, name)
    for name in ("tb", "etype", "evalue", "exc_info"):
        if hasattr(shell.InteractiveTB, name):
            setattr(shell.InteractiveTB, name, None)
    shell.last_execution_result = None
    shell.history_manager.output_hist.clear()
    for name in ("_", "__", "___", *[key for key in shell.user_ns if key.startswith("_") and key[1:].isdigit()]):
        shell.user_ns.pop(name, None)
        shell.user_ns_hidden.pop(name, None)
    shell.displayhook._, shell.displayhook.__, shell.displayhook.___ = "", "", ""
    shell.displayhook.exec_result = None
    gc.collect()


def test_help_shows_number_of_files():
    lines = help_text().splitlines()
    for usage in ("history [FILE]", "compare A B", "engines [CLIENT]", "ranks DIRECTORY", "view FILE..."):
        assert any(line.startswith(f"%gpumem {usage} ") for line in lines), usage


def test_misspelled_command_has_a_suggestion(cpu_notebook):
    result = cpu_notebook.run("%gpumem hisory")
    assert isinstance(result.error, UsageError)
    assert str(result.error) == "%gpumem: unknown command 'hisory'. Did you mean %gpumem history?"
    assert list(cpu_notebook.reports) == [], "the history lists no cells that contain only a rejected command"
    assert cpu_notebook.run("hisory = 5\n%gpumem hisory").value == 5, "a variable"
    assert isinstance(cpu_notebook.run("%gpumem raise ValueError(3)").error, ValueError)


@pytest.mark.parametrize(
    "line",
    [
        f"%gpumem who {'x' * 3000}",
        f"%gpumem compare {'1 ' * 3000}",
        f"%gpumem summary {'x' * 3000}",
        f"%gpumem {'x ' * 3000}",
        f"%%gpumem --limit {'9' * 4000}\npass",
    ],
)
def test_errors_about_long_arguments_are_short(line, cpu_notebook):
    assert len(str(cpu_notebook.run(line).error)) <= 1020


def test_shell_command_is_not_a_statement(cpu_notebook, tmp_path):
    """IPython's own magic ``%notebook`` would replace the file."""
    path = tmp_path / "run.ipynb"
    path.write_text("{}")
    result = cpu_notebook.run(f"%gpumem notebook {path}")
    assert str(result.error) == f"%gpumem: 'notebook' is a shell command: run !ipygpumem notebook {path}"
    assert path.read_text() == "{}"
