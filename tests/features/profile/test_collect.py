"""``measure(trace=..., timeline=...)``: files, summary and errors."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

import ipygpumem
from fakes.builds import trace_of_profiler
from ipygpumem.core.errors import OptionError, RecordingError
from ipygpumem.features.profile import event_tree as tree
from ipygpumem.features.profile.categories import CATEGORIES
from ipygpumem.features.profile.collect import profile_collector
from ipygpumem.features.profile.profiler_session import ProfilerSession


def training_step():
    model = torch.nn.Linear(100, 50)
    torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.ones(8, 100)).sum().backward()


def measure_profile(tmp_path, run=training_step, **options):
    with ipygpumem.measure(trace=tmp_path / "t.json.gz", timeline=tmp_path / "t.html", **options) as m:
        run()
    return m.report


def test_both_files_and_summary(tmp_path):
    report = measure_profile(tmp_path)
    summary = report.profile
    assert summary.trace == str(tmp_path / "t.json.gz")
    assert summary.trace_size == (tmp_path / "t.json.gz").stat().st_size
    assert summary.timeline_size == (tmp_path / "t.html").stat().st_size
    assert summary.errors == ()
    assert summary.interrupted_after is None
    assert summary.seconds > 0
    (peak,) = [peak for peak in summary.peaks if peak.device == "cpu"]
    levels = dict(peak.categories)
    assert tuple(levels) == CATEGORIES
    assert levels["parameter"] == (100 * 50 + 50) * 4
    assert sum(levels.values()) == peak.bytes
    assert ipygpumem.Report.from_dict(json.loads(report.to_json())).profile == summary
    page = (tmp_path / "t.html").read_text()
    assert "Content-Security-Policy" in page
    assert "<title>t.html</title>" in page


def test_failing_code(tmp_path):
    with pytest.raises(ValueError, match="mine"), ipygpumem.measure(trace=tmp_path / "t.json") as m:
        torch.ones(10).mul(3)
        raise ValueError("mine")
    assert m.report.success is False
    assert "aten::mul" in (tmp_path / "t.json").read_text(errors="replace")


def test_code_with_its_own_profiler_keeps_its_profile(tmp_path):
    profiles = []

    def run():
        torch.ones(10).mul(3)
        with torch.profiler.profile() as profile:
            torch.ones(10).sub(3)
        profiles.append(profile)

    summary = measure_profile(tmp_path, run).profile
    assert "aten::sub" in {event.key for event in profiles[0].key_averages()}
    assert summary.interrupted_after > 0
    assert summary.sentences()[0].endswith("because the code started its own profiler")
    assert summary.trace and summary.timeline


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trace": "x.txt"}, "'x.txt' is not a valid name for the trace: it must end in .json or .json.gz"),
        ({"timeline": "x.png"}, "'x.png' is not a valid name for the timeline: it must end in .html or .htm"),
        ({"trace": ""}, "the path of the trace is empty"),
        ({"trace": 5}, "the path of the trace must be a string or a path object, but got 5"),
        ({"timeline": True}, "the path of the timeline must be a string or a path object, but got True"),
        ({"snapshot": 5}, "the path of the snapshot must be a string or a path object, but got 5"),
        ({"timeline": "."}, ". is a directory: add a file name, such as timeline.html"),
        ({"trace": "nowhere/x.json"}, "the directory .*nowhere does not exist"),
        ({"timeline": "/dev/null"}, "/dev/null is not a regular file"),
        ({"trace": "a.json", "outside": True}, "both use CUPTI, which supports only one client at a time"),
    ],
)
def test_invalid_options(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=message):
        ipygpumem.measure(**options)
    assert list(tmp_path.iterdir()) == []


def test_files_need_different_names(tmp_path):
    with pytest.raises(OptionError, match="must have different file names"):
        profile_collector(tmp_path / "a.json", None, snapshot=tmp_path / "a.json")


def test_another_profiler_is_running(tmp_path):
    with torch.profiler.profile(), pytest.raises(RecordingError, match="a profiler is already running"):
        ipygpumem.measure(trace=tmp_path / "a.json")


def test_nested_measurement(tmp_path):
    inner = []

    def run():
        torch.ones(10).mul(3)
        with ipygpumem.measure(trace=tmp_path / "inner.json") as m:
            torch.ones(10).sub(3)
        inner.append(m.report.profile)

    summary = measure_profile(tmp_path, run).profile
    assert summary.errors == inner[0].errors == ()
    assert summary.interrupted_after > 0
    assert "aten::sub" in (tmp_path / "inner.json").read_text(errors="replace")


def break_functions(monkeypatch, *names):
    def fail(_):
        raise AttributeError("this torch\nhas none")

    for name in names:
        monkeypatch.setattr(tree, name, fail)


def test_unreadable_operators(tmp_path, monkeypatch):
    break_functions(monkeypatch, "read_flow")
    summary = measure_profile(tmp_path).profile
    reason = (
        "all categories are unknown: profiles of this version of PyTorch cannot be read (AttributeError: this torch)"
    )
    assert summary.why == reason
    assert reason in summary.sentences()
    (peak,) = summary.peaks
    assert dict(peak.categories)["unknown"] == peak.bytes > 0
    assert (tmp_path / "t.html").exists()


def test_unreadable_profile(tmp_path, monkeypatch):
    break_functions(monkeypatch, "read_flow", "read_allocations")
    with pytest.warns(RuntimeWarning, match="the timeline was not written: profiles of this version"):
        summary = measure_profile(tmp_path).profile
    assert summary.trace is not None
    assert summary.timeline is None
    assert not (tmp_path / "t.html").exists()


def test_code_without_allocations(tmp_path):
    with pytest.warns(RuntimeWarning, match="nothing was allocated or freed by the profiled thread"):
        summary = measure_profile(tmp_path, lambda: None).profile
    assert summary.trace is not None


def test_full_disk(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    monkeypatch.setattr("shutil.copyfileobj", full)
    with pytest.warns(RuntimeWarning, match="No space left on device") as warnings:
        summary = measure_profile(tmp_path).profile
    assert len(summary.errors) == 2
    assert len(warnings) == 1
    assert list(tmp_path.iterdir()) == []


def test_profiler_without_result(tmp_path, monkeypatch):
    stop = ProfilerSession.stop

    def no_result(self):
        stop(self)
        self.result, self.error = None, "torch.profiler returned no results"

    monkeypatch.setattr(ProfilerSession, "stop", no_result)
    with pytest.warns(RuntimeWarning, match=r"^torch\.profiler returned no results$"):
        assert measure_profile(tmp_path).profile.errors == ("torch.profiler returned no results",)


def test_result_is_released(tmp_path):
    collector = profile_collector(tmp_path / "a.json", None)
    collector._session.start()
    torch.ones(4)
    collector.stop()
    assert collector.write().errors == ()
    assert collector._session.result is collector._session._profile is None


def test_sentences():
    from ipygpumem.features.profile.model import ProfileSummary

    summary = ProfileSummary("/a/t.json", 3 << 20, "/a/t.html", 500, seconds=2.5)
    assert summary.sentences() == [
        "trace: /a/t.json (3.0 MiB); open it at https://ui.perfetto.dev",
        "timeline: /a/t.html (500 B); open it in a browser",
        "profiling itself took 2.50 s, slowed the code down and used host memory",
    ]
    failed = dataclasses.replace(summary, trace=None, timeline=None, why="why", errors=("e",))
    assert failed.sentences()[:2] == ["why", "e"]


def test_with_lines_and_a_snapshot(tmp_path, fake_gpu):
    with ipygpumem.measure(
        lines=True, snapshot=tmp_path / "s.pickle", trace=tmp_path / "t.json", timeline=tmp_path / "t.html"
    ) as m:
        tensor = torch.ones(1 << 20, dtype=torch.uint8, device="cuda")
    assert m.report.lines
    assert m.report.recording.error == ""
    assert m.report.profile.trace is not None
    assert re.search(r"aten::(ones|empty|fill_)", (tmp_path / "t.json").read_text(errors="replace"))
    del tensor


@pytest.mark.parametrize("name", ["t.json", "t.json.gz", 'it\'s "mine".json'])
def test_trace_contains_its_own_file_name(tmp_path, name):
    with ipygpumem.measure(trace=tmp_path / name):
        torch.ones(10).mul(3)
    assert trace_of_profiler(tmp_path / name)["traceName"] == str(tmp_path / name)


@pytest.mark.parametrize("ending", ["", ".tmp"])
def test_incomplete_trace_is_reported(tmp_path, monkeypatch, ending):
    """Kineto does not report a full disk, and does not delete its temporary file next to the requested file."""

    def export(self, target):
        Path(f"{target}{ending}").write_text('{"traceEvents": [')

    monkeypatch.setattr(torch.autograd.profiler.profile, "export_chrome_trace", export)
    warning = pytest.warns(RuntimeWarning, match=r"t.json was not written: the file is incomplete, possibly because")
    with warning, ipygpumem.measure(trace=tmp_path / "t.json"):
        torch.ones(10).mul(3)
    assert list(tmp_path.iterdir()) == []
