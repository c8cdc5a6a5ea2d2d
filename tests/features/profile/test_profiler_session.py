"""torch.profiler during a measurement: other profilers, threads, and the trace."""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import threading
from pathlib import Path

import pytest
import torch
import torch.autograd.profiler as module
from torch.profiler import ProfilerActivity, profile, schedule

from fakes.builds import trace_of_profiler
from fakes.workers import exit_status_of_child
from ipygpumem.core.errors import RecordingError
from ipygpumem.features.profile.profiler_session import ProfilerSession
from ipygpumem.measurement.observers import ProfilerObservers, is_profiling
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import pytorch

CPU = [ProfilerActivity.CPU]
ACC_EVENTS = {"acc_events": True} if "acc_events" in inspect.signature(profile).parameters else {}
FUNCTIONS = module._prepare_profiler, module._enable_profiler, module._disable_profiler


@pytest.fixture
def session():
    session = ProfilerSession()
    session.start()
    yield session
    session.stop()
    assert (module._prepare_profiler, module._enable_profiler, module._disable_profiler) == FUNCTIONS


def names(result):
    return {event.name() for event in result.events()}


def test_operators_memory_shapes_and_stacks(session, tmp_path):
    def my_function():
        return torch.ones(300, 20) + 1

    my_function()
    session.stop()
    path = tmp_path / "trace.json.gz"
    assert session.write(path) == path.stat().st_size
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json.gz"], "no temporary file"
    trace = trace_of_profiler(path)
    events = trace["traceEvents"]
    assert trace["with_stack"] == trace["record_shapes"] == trace["profile_memory"] == 1
    (add,) = [event for event in events if event.get("name") == "aten::add"]
    assert add["args"]["Input Dims"][0] == [300, 20]
    assert any("my_function" in event.get("name", "") for event in events if event.get("cat") == "python_function")
    memory = [event["args"] for event in events if event.get("name") == "[memory]"]
    assert 300 * 20 * 4 in [fields["Bytes"] for fields in memory]
    assert session.cost > 0


@pytest.mark.skipif(
    not hasattr(torch.autograd.profiler.profile(use_kineto=True), "_function_events"),
    reason="PyTorch 2.4 always converts the events of a profile",
)
def test_events_are_not_converted_to_objects(session):
    for _ in range(100):
        torch.ones(3) + 1
    inner = session._profile.profiler
    session.stop()
    assert inner._function_events is None, "converting 8,000 events takes ten times as long as stopping"


def test_plain_json(session, tmp_path):
    torch.ones(3)
    session.stop()
    session.write(tmp_path / "trace.json")
    assert "traceEvents" in trace_of_profiler(tmp_path / "trace.json")


def test_profile_function_of_the_program_is_restored():
    previous, session = sys.getprofile(), ProfilerSession()

    def function(frame, event, argument):
        pass

    sys.setprofile(function)
    try:
        session.start()
        session.stop()
        assert sys.getprofile() is function
        assert not is_profiling(), "PyTorch 2.4 fails to stop the profiler"
    finally:
        sys.setprofile(previous)


def test_session_ends_before_profiler_in_code_starts(session, tmp_path):
    torch.ones(3).mul(2)
    with profile(activities=CPU) as user_profile:
        torch.ones(3).sub(2)
    torch.ones(3).div(2)
    session.stop()
    assert {event.key for event in user_profile.key_averages()} >= {"aten::sub"}, "the user's profile is complete"
    assert session.interrupted_after > 0
    assert "aten::mul" in names(session.result)
    assert not names(session.result) & {"aten::sub", "aten::div"}
    session.write(tmp_path / "trace.json")  # although another profiler has run in between
    assert "aten::mul" in (tmp_path / "trace.json").read_text(errors="replace")


def test_pytorch_discards_result_of_outer_profiler():
    # PyTorch 2.4 raises an error when the outer profiler stops
    with contextlib.suppress(RuntimeError), profile(activities=CPU) as outer:
        torch.ones(3).mul(2)
        with profile(activities=CPU):
            torch.ones(3)
    assert outer.profiler.kineto_results is None or len(outer.events()) == 0


def test_profiler_with_delayed_schedule(session):
    with profile(activities=CPU, schedule=schedule(wait=1, warmup=1, active=1), **ACC_EVENTS) as user_profile:
        assert session.interrupted_after is None, "the session continues while the schedule waits"
        for _ in range(3):
            torch.ones(3).sub(2)
            user_profile.step()
    assert session.interrupted_after is not None
    assert "aten::sub" in {event.key for event in user_profile.key_averages()}


def test_running_or_warming_profiler_is_not_disturbed():
    with profile(activities=CPU), pytest.raises(RecordingError, match="a profiler is already running"):
        ProfilerSession()
    warming = profile(activities=CPU, schedule=schedule(wait=0, warmup=2, active=1), **ACC_EVENTS)
    warming.start()
    with pytest.raises(RecordingError, match="a profiler is already running"):
        ProfilerSession()
    warming.stop()
    assert ProfilerSession.problem() is None


def test_nested_sessions(session):
    torch.ones(3).mul(2)
    inner = ProfilerSession()
    inner.start()
    torch.ones(3).sub(2)
    inner.stop()
    torch.ones(3).div(2)
    session.stop()
    assert "aten::sub" in names(inner.result)
    assert inner.interrupted_after is None
    assert "aten::mul" in names(session.result)
    assert not names(session.result) & {"aten::sub", "aten::div"}
    assert session.interrupted_after > 0


def test_session_in_another_thread(session):
    problems = []
    thread = threading.Thread(target=lambda: problems.append(ProfilerSession.problem()))
    thread.start()
    thread.join()
    assert problems == [
        "a profiler is already running, and PyTorch supports only one profiler at a time: stop that profiler first"
    ]


def test_profiler_in_another_thread_raises(session):
    errors = []

    def run_profiler():
        try:
            with profile(activities=CPU):
                pass
        except RecordingError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run_profiler)
    thread.start()
    thread.join()
    assert "PyTorch aborts the process if two threads run profilers" in errors[0]
    torch.ones(3).mul(2)
    session.stop()
    assert "aten::mul" in names(session.result)
    assert session.interrupted_after is None


def test_stop_in_another_thread_gives_no_result():
    session = ProfilerSession()
    session.start()
    thread = threading.Thread(target=session.stop)
    thread.start()
    thread.join()
    assert "started and ended in different threads" in session.error
    assert (module._prepare_profiler, module._enable_profiler, module._disable_profiler) == FUNCTIONS
    session._profile.stop()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_stop_in_forked_child_has_no_effect(session):
    def stop():
        session.stop()
        return session.result is None

    assert exit_status_of_child(stop) == 0
    torch.ones(3).mul(2)
    session.stop()
    assert "aten::mul" in names(session.result)


def test_without_torch(monkeypatch):
    monkeypatch.setattr(pytorch, "importable", lambda: False)
    with pytest.raises(RecordingError, match=r"^profiling requires torch, which is not installed$"):
        ProfilerSession()


def test_torch_without_kineto(monkeypatch):
    monkeypatch.setattr(torch.autograd, "kineto_available", lambda: False)
    with pytest.raises(RecordingError, match=r"was built without Kineto, which torch.profiler requires$"):
        ProfilerSession()


def test_start_and_stop_failures(monkeypatch, tmp_path):
    def fail(*_, **__):
        raise RuntimeError("no\nway")

    with monkeypatch.context() as patch:
        patch.setattr(profile, "start", fail)
        with pytest.raises(RecordingError, match=r"^torch\.profiler failed to start: no$"):
            ProfilerSession().start()
    assert (module._prepare_profiler, module._enable_profiler, module._disable_profiler) == FUNCTIONS
    session = ProfilerSession()
    session.start()
    original_stop = session._profile.stop
    session._profile.stop = fail
    session.stop()
    assert session.error == "torch.profiler failed to stop: no"
    with pytest.raises(RecordingError, match="failed to stop"):
        session.write(tmp_path / "t.json")
    original_stop()
    assert not is_profiling()


def test_full_disk_keeps_existing_file(session, tmp_path, monkeypatch):
    path = tmp_path / "trace.json"
    path.write_text("old")
    torch.ones(3)
    session.stop()
    monkeypatch.setattr(type(session._profile.profiler), "export_chrome_trace", lambda _, name: Path(name).touch())
    message = r"trace\.json was not written: the file is incomplete, possibly because the disk is full$"
    with pytest.raises(RecordingError, match=message):
        session.write(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_kineto_is_silent_unless_user_sets_log_level(monkeypatch):
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    levels = []
    start = profile.start

    def start_and_record_level(self):
        levels.append(os.environ.get("KINETO_LOG_LEVEL"))
        start(self)

    monkeypatch.setattr(profile, "start", start_and_record_level)
    for level in (None, "0"):
        if level is not None:
            monkeypatch.setenv("KINETO_LOG_LEVEL", level)
        session = ProfilerSession()
        session.start()
        session.stop()
        assert os.environ.get("KINETO_LOG_LEVEL") == level
    assert levels == ["6", "0"]


def test_last_observer_is_called_first():
    calls = []
    observers = current().state(ProfilerObservers)

    def first():
        calls.append("first")

    def second():
        calls.append("second")

    observers.add(first, lambda: calls.append("first after"))
    observers.add(second, lambda: calls.append("second after"))
    with profile(activities=CPU):
        pass
    assert calls == ["second", "first", "second", "first", "second after", "first after"], (
        "notified when the profiler is prepared, started and stopped"
    )
    observers.remove(second)
    calls.clear()
    with profile(activities=CPU):
        pass
    assert calls == ["first", "first", "first after"]
    observers.remove(first)
    assert (module._prepare_profiler, module._enable_profiler, module._disable_profiler) == FUNCTIONS
