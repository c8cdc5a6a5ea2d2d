from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from fakes.sessions import cell
from ipygpumem import OptionError, load_reports
from ipygpumem.features.history.load import ReportLog
from ipygpumem.features.history.reports import Reports

TESTS = Path(__file__).parents[2]


HEAD = f"""\
import os, resource, signal, sys
sys.path.insert(0, {str(TESTS)!r})
from fakes.sessions import cell
from ipygpumem.features.history.reports import Reports
reports = Reports()
reports.log = sys.argv[1]
"""


def script(code, path):
    return subprocess.run(
        [sys.executable, "-c", HEAD + code, str(path)], capture_output=True, text=True, check=False, timeout=200
    )


def test_each_report_is_written_at_once(tmp_path):
    path = tmp_path / "s.jsonl"
    reports = Reports()
    reports.append(cell(1))
    reports.log = path
    assert reports.log == str(path)
    assert not path.exists(), "earlier reports are not written to the log"
    for number in (2, 3):
        reports.append(cell(number))
        assert list(load_reports(path)) == list(reports)[1:]
    reports.log = None
    reports.append(cell(4))
    assert len(load_reports(path)) == 2
    reports.log = path
    reports.append(cell(5))
    assert [report.cell for report in load_reports(path)] == [2, 3, 5], "existing reports are kept"


def test_log_survives_a_kill(tmp_path):
    path = tmp_path / "s.jsonl"
    result = script("for n in range(200): reports.append(cell(n))\nos.kill(os.getpid(), signal.SIGKILL)", path)
    assert result.returncode == -signal.SIGKILL
    assert [report.cell for report in load_reports(path)] == list(range(200))


FULL = """\
reports.append(cell(0))
size = os.path.getsize(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
for n in (1, 2, 3): reports.append(cell(n))
assert os.path.getsize(sys.argv[1]) == size, "an incomplete line must not remain"
assert len(reports) == 4
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
reports.append(cell(4))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="resource limits exist only on Unix")
def test_full_disk_is_reported_once_and_no_report_is_lost(tmp_path):
    path = tmp_path / "s.jsonl"
    result = script(FULL, path)
    assert result.returncode == 0, result.stderr
    reason = "File too large; reports are kept in memory until the log is writable"
    assert result.stderr == f"ipygpumem: cannot write the log {path}: {reason}\n"
    assert [report.cell for report in load_reports(path)] == [0, 1, 2, 3, 4]


def test_unwritten_reports_are_limited(tmp_path, monkeypatch, capsys):
    from ipygpumem.features.history import load as module

    assert module._MAX_UNWRITTEN == 1000
    monkeypatch.setattr(module, "_MAX_UNWRITTEN", 10)
    path = tmp_path / "gone" / "s.jsonl"
    path.parent.mkdir()
    log = ReportLog(path)
    path.parent.rmdir()
    for number in range(13):
        log.write(cell(number))
    assert capsys.readouterr().err.count("\n") == 1
    path.parent.mkdir()
    log.write(cell(5000))
    assert capsys.readouterr().err == f"ipygpumem: the log {path} lacks 4 reports because it was not writable\n"
    assert [report.cell for report in load_reports(path)] == [*range(4, 13), 5000]


def test_report_after_an_incomplete_line_starts_a_new_line(tmp_path):
    path = tmp_path / "s.jsonl"
    reports = Reports()
    reports.log = path
    reports.append(cell(1))
    with path.open("ab") as file:
        file.write(b'{"schema": 1, "code": "half')
    reports.append(cell(2))
    reports_read = load_reports(path, strict=False)
    assert [report.cell for report in reports_read] == [1, 2]
    assert reports_read.faults == (f"{path}: line 2: the JSON data is incomplete",)


def test_two_threads_write_one_log(tmp_path, monkeypatch):
    from ipygpumem.features.history import load as module

    log = ReportLog(tmp_path / "s.jsonl")
    append, thread = module._append, threading.Thread(target=log.write, args=(cell(2),))

    def append_slowly(path, data):
        if threading.current_thread() is not thread:
            thread.start()
            thread.join(0.2)
        append(path, data)

    monkeypatch.setattr(module, "_append", append_slowly)
    log.write(cell(1))
    thread.join()
    assert [report.cell for report in load_reports(log.path)] == [1, 2]
    thread = threading.Thread(target=log._lock.acquire)
    thread.start()
    thread.join()
    monkeypatch.undo()
    monkeypatch.setattr(os, "getpid", lambda: -1)  # the thread that holds the lock does not exist in a forked process
    log.write(cell(3))
    assert len(load_reports(log.path)) == 3


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_two_processes_write_one_log(tmp_path):
    path = tmp_path / "s.jsonl"

    def write():
        reports = Reports()
        reports.log = path
        for number in range(300):
            reports.append(cell(number))

    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            write()
            os._exit(0)
        os._exit(1)
    write()
    assert os.waitpid(child, 0)[1] == 0
    assert sorted(report.cell for report in load_reports(path)) == sorted([*range(300), *range(300)])


@pytest.mark.parametrize("text", ["import torch\n", '{"cells": []}', '{"schema": 1}\n', "\x80\x04"])
def test_other_files_are_not_appended_to(tmp_path, text):
    path = tmp_path / "train.py"
    path.write_text(text)
    with pytest.raises(OptionError, match="is not a log: reports can be appended only to"):
        Reports().log = path
    assert path.read_text() == text


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", "the path of the log is empty"),
        ("no/x", "does not exist"),
        (".", "is a directory"),
        ("/dev/full", "is not a regular file"),
    ],
)
def test_paths_that_cannot_be_written(tmp_path, monkeypatch, path, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=message):
        Reports().log = path
    assert list(tmp_path.iterdir()) == []


def test_empty_file_is_a_log(tmp_path):
    (tmp_path / "s.jsonl").touch()
    reports = Reports()
    reports.log = tmp_path / "s.jsonl"
    reports.append(cell(1))
    assert len(load_reports(tmp_path / "s.jsonl")) == 1


def test_log_path_is_independent_of_chdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    reports = Reports()
    reports.log = "s.jsonl"
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path / "other")
    reports.append(cell(1))
    assert len(load_reports(tmp_path / "s.jsonl")) == 1
