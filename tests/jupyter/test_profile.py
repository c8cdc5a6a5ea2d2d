"""``%%gpumem --trace FILE --timeline FILE``."""

from __future__ import annotations

import time

import pytest
from IPython.core.error import UsageError

from fakes.builds import trace_of_profiler

CUPTI = (
    "profiling cannot be combined with measuring memory outside PyTorch by library because both use CUPTI, "
    "which supports only one client at a time: use separate runs"
)
BODY = "y = torch.ones(1000, 200).mul(2)\n"
NO_TIMELINE = "the timeline was not written: nothing was allocated or freed"


@pytest.fixture
def notebook(make_notebook, tmp_path):
    notebook = make_notebook()
    notebook.run("import torch")
    notebook.load()
    notebook.run(f"folder = {str(tmp_path)!r}")
    return notebook


def test_both_files_and_plot_below_report(notebook, tmp_path, warnings_version):
    version = warnings_version()
    result = notebook.run("%%gpumem --trace {folder}/t.json.gz --timeline {folder}/t.html\n" + BODY + "y.shape")
    assert result.success
    assert tuple(result.value) == (1000, 200)
    report, plot = result.displays
    assert f"trace: {tmp_path}/t.json.gz (" in report["text/plain"]
    assert "profiling itself took" in report["text/plain"]
    assert set(plot) == {"text/plain", "image/png"}
    assert plot["text/plain"].startswith("cpu at its peak (")
    assert "all categories" in plot["text/plain"]
    assert "traceEvents" in trace_of_profiler(tmp_path / "t.json.gz")
    assert (tmp_path / "t.html").read_text().startswith("<!DOCTYPE html>")
    assert notebook.last.profile.timeline == str(tmp_path / "t.html")
    assert warnings_version() == version


def test_trace_alone_has_no_plot(notebook):
    assert len(notebook.run("%%gpumem --trace {folder}/t.json\n" + BODY).displays) == 1


def test_failing_cell(notebook, tmp_path):
    original = vars(notebook.shell).get("showtraceback")
    result = notebook.run(
        "%%gpumem --trace {folder}/t.json --timeline {folder}/t.html\n" + BODY + "raise ValueError('mine')"
    )
    assert isinstance(result.error, ValueError)
    text = (tmp_path / "t.json").read_text(errors="replace")
    assert "aten::mul" in text
    assert "ultratb" not in text, "rendering the traceback is not part of the cell"
    assert (tmp_path / "t.html").exists()
    assert vars(notebook.shell).get("showtraceback") is original


@pytest.mark.parametrize(
    "end", ["raise ValueError('mine')", "raise KeyboardInterrupt", "", "with torch.profiler.profile(): pass"]
)
def test_time_to_stop_profiler_is_not_in_cell_time(notebook, monkeypatch, end):
    from ipygpumem.features.profile import profiler_session

    clock, stop = time.perf_counter, profiler_session.ProfilerSession.stop
    delays = []

    def delayed_clock():
        return clock() + sum(delays)

    def delayed_stop(self):
        if self._profile is not None and self.result is None:
            self.cost += 1000
            delays.append(1000)
        stop(self)

    monkeypatch.setattr(profiler_session.ProfilerSession, "stop", delayed_stop)
    monkeypatch.setattr(time, "perf_counter", delayed_clock)
    monkeypatch.setattr("ipygpumem.jupyter.cell_measurements.perf_counter", delayed_clock)
    notebook.run("%%gpumem --trace {folder}/t.json\n" + BODY + end)
    assert notebook.last.seconds < 500
    assert notebook.last.profile.seconds > 1000


def test_replaced_showtraceback(notebook):
    tracebacks = []
    notebook.shell.showtraceback = lambda *_, **__: tracebacks.append(1)
    replacement = notebook.shell.showtraceback
    notebook.run("%%gpumem --trace {folder}/t.json\n1 / 0")
    assert tracebacks == [1]
    assert notebook.shell.showtraceback is replacement
    notebook.run("%%gpumem --trace {folder}/t.json\n" + BODY)
    assert notebook.shell.showtraceback is replacement
    del notebook.shell.showtraceback


def test_cell_with_its_own_profiler(notebook, tmp_path):
    result = notebook.run(
        "%%gpumem --timeline {folder}/t.html\n"
        + BODY
        + "with torch.profiler.profile() as p: torch.ones(5).sub(1)\n'aten::sub' in {e.key for e in p.key_averages()}"
    )
    assert result.value is True
    assert "because the code started its own profiler" in result.displays[0]["text/plain"]
    assert (tmp_path / "t.html").exists()


INVALID_OPTIONS = [
    ("--trace x.txt", "%%gpumem: 'x.txt' is not a valid name for the trace: it must end in .json or .json.gz"),
    ("--timeline {no}.html", "%%gpumem: '{no}.html' cannot be expanded (NameError: name 'no' is not defined)"),
    ("--trace {folder}/a/b.json", "%%gpumem: the directory {tmp}/a does not exist"),
    ("--trace", "%%gpumem: argument --trace: expected one argument"),
    ("--trace {folder}/a.json --trace {folder}/b.json", "%%gpumem: --trace is specified more than once"),
    ("--trace=--", "%%gpumem: argument --trace: '--' is not a valid value"),
    ("--limit 1GiB --limit=2GiB", "%%gpumem: --limit is specified more than once"),
    ("--trace {folder}/a.json --outside", f"%%gpumem: {CUPTI}"),
]  # fmt: skip


def test_invalid_options_end_cell_before_it_runs(notebook, tmp_path):
    for line, message in INVALID_OPTIONS:
        result = notebook.run(f"%%gpumem {line}\nran = True")
        assert isinstance(result.error, UsageError)
        assert result.stderr.strip() == f"UsageError: {message.replace('{tmp}', str(tmp_path))}"
        assert "ran" not in notebook.shell.user_ns
        assert list(tmp_path.iterdir()) == []


def test_missing_statement(notebook):
    result = notebook.run("%gpumem --trace {folder}/t.json")
    assert "%gpumem --trace requires a statement" in result.stderr


def test_statement(notebook, tmp_path):
    result = notebook.run("%gpumem --timeline {folder}/t.html torch.ones(1000, 200).mul(2).shape")
    assert tuple(result.value) == (1000, 200)
    assert len(result.displays) == 2
    assert (tmp_path / "t.html").exists()


def test_host_limit_is_not_exceeded_by_the_profiler(notebook):
    body = "for _ in range(500): y = torch.ones(10).mul(2)"
    result = notebook.run("%%gpumem --limit-host 0MiB --trace {folder}/t.json\n" + body)
    assert result.success, result.stderr
    host = notebook.last.host
    assert host.peak > 0
    assert [host.grades[name].trust for name in ("held", "peak")] == ["bound", "bound"]
    note = "the limit of 0 (host, peak) was not checked: includes the memory of torch.profiler's records"
    assert notebook.last.notes == (note,)
    assert note in result.texts[0]
    (row,) = [line for line in result.texts[0].splitlines() if "resident (RSS)" in line]
    assert row.count("at most ") == 2
    assert result.texts[0].count("the memory of torch.profiler's records") == 2, "in the table, and for the limit"
    assert type(notebook.last).from_dict(notebook.last.to_dict()) == notebook.last
    result = notebook.run("%%gpumem --limit-host 100GiB --trace {folder}/t.json\n" + BODY)
    assert result.success and notebook.last.notes == (), "the upper bound is within the limit"


def test_quiet(notebook, tmp_path):
    result = notebook.run("%%gpumem -q --timeline {folder}/t.html\n" + BODY)
    assert (result.displays, result.stdout) == ([], "")
    result = notebook.run("%%gpumem -q --timeline {folder}/t.html\n1;")
    assert result.displays == []
    assert result.stdout == f"ipygpumem: {NO_TIMELINE} by the profiled thread\n"


def test_timeline_without_allocations_is_not_written(notebook):
    line = "%%gpumem --timeline {folder}/t.html\n"
    thread = (
        "import threading, torch\n"
        "one = threading.Thread(target=lambda: globals().update(kept=torch.ones(9 << 20)))\none.start(); one.join()"
    )
    assert f"{NO_TIMELINE} by the profiled thread" in str(notebook.run(line + thread))
    own = (
        "import torch\nwith torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):\n"
        "    kept = torch.ones(9 << 20)"
    )
    assert f"{NO_TIMELINE} before the code started its own profiler" in str(notebook.run(line + own))


def test_without_matplotlib(notebook, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    result = notebook.run("%%gpumem --timeline {folder}/t.html\n" + BODY)
    assert set(result.displays[1]) == {"text/plain"}
    assert result.stdout.startswith("ipygpumem: t.html cannot be shown as an image: matplotlib is required")


def test_extension_unloaded_during_a_profile(notebook, tmp_path):
    result = notebook.run("%%gpumem --trace {folder}/t.json\n" + BODY + "%unload_ext ipygpumem")
    assert result.success
    assert f"trace: {tmp_path}/t.json (" in result.stdout
    assert "aten::mul" in (tmp_path / "t.json").read_text(errors="replace")
    assert "showtraceback" not in vars(notebook.shell)


def test_completion_of_paths(tmp_path, monkeypatch):
    from ipygpumem.jupyter.commands import candidates

    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    assert candidates("%%gpumem --trace fo") == ["folder/"]
    assert candidates("%%gpumem --timeline=fo") == ["folder/"]
    assert candidates("%%gpumem --ti") == ["--timeline"]


def test_next_cell_is_not_profiled(notebook):
    notebook.run("%%gpumem --trace {folder}/t.json\n" + BODY)
    result = notebook.run("with torch.profiler.profile() as p: torch.ones(5).sub(1)\nlen(p.events()) > 0")
    assert result.value is True
