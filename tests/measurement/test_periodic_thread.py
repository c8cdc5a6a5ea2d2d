"""The thread that calls a function periodically."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest

from fakes.workers import exit_status_of_child
from ipygpumem.measurement import periodic_thread as module
from ipygpumem.measurement.periodic_thread import PeriodicThread

NAME = "ipygpumem-test"


@pytest.fixture
def make():
    workers = []

    def build(work):
        workers.append(PeriodicThread(NAME, work))
        return workers[-1]

    yield build
    for worker in workers:
        worker.close()


def threads():
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def wait_until(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_work_repeats_until_pause(make):
    calls = []
    worker = make(lambda: calls.append(time.monotonic()))
    assert threads() == []
    start = time.monotonic()
    worker.start(0.05, 0.01)
    (thread,) = threads()
    assert thread.daemon
    wait_until(lambda: len(calls) >= 5)
    assert calls[0] - start >= 0.045
    worker.pause()
    count = len(calls)
    time.sleep(0.09)
    assert len(calls) <= count + 1, "one call may have been due"
    worker.start(0, 0.01)
    wait_until(lambda: len(calls) > count + 1)
    assert threads() == [thread]
    worker.close()
    assert threads() == []
    assert worker._thread is None


def test_pause_before_the_first_call(make):
    calls = []
    worker = make(lambda: calls.append(1))
    for _ in range(100):
        worker.start(60, 0.01)
        worker.pause()
    assert worker._next is None
    assert calls == []


def test_earlier_start_wakes_the_thread(make, monkeypatch):
    monkeypatch.setattr(module, "IDLE_SECONDS", 300)  # also the longest time for which the thread sleeps
    calls = []
    worker = make(lambda: calls.append(1))
    worker.start(300, 300)
    time.sleep(0.02)
    worker.start(0, 300)
    wait_until(lambda: calls)


def test_paused_thread_sleeps_as_long_as_before_the_first_call(make, monkeypatch):
    monkeypatch.setattr(module, "IDLE_SECONDS", 300)
    worker = make(lambda: None)
    worker.start(4, 1)
    worker.pause()
    assert worker._delay(worker._wake) > 1


def test_error_pauses_the_worker(make):
    calls = []

    def work():
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("once")

    worker = make(work)
    worker.start(0, 0.005)
    wait_until(lambda: calls)
    time.sleep(0.05)
    assert len(calls) == 1
    worker.start(0, 0.005)
    wait_until(lambda: len(calls) >= 3)


def test_replaced_builtin_ends_the_thread(make, monkeypatch):
    calls = []
    worker = make(lambda: calls.append(1))
    with monkeypatch.context() as patched:
        patched.setattr(module, "max", None, raising=False)
        worker.start(0, 0.005)
        wait_until(lambda: not threads())
    assert calls == []
    worker.start(0, 0.005)
    wait_until(lambda: len(calls) >= 2)


def test_worker_can_close_itself(make):
    def work():
        worker.close()

    worker = make(work)
    worker.start(0, 1)
    wait_until(lambda: not threads())
    worker.start(0, 1)
    wait_until(lambda: not threads())
    worker.pause()
    worker.close()


def test_forked_child_does_not_change_the_thread(make):
    calls = []
    worker = make(lambda: calls.append(1))
    worker.start(300, 300)

    def start_and_close():
        worker.start(0, 0.001)
        worker.pause()
        worker.close()

    assert exit_status_of_child(start_and_close) == 0
    time.sleep(0.05)
    assert calls == []
    assert len(threads()) == 1


def test_process_ends_while_the_worker_runs():
    code = (
        "from ipygpumem.measurement.periodic_thread import PeriodicThread\n"
        "import time\n"
        "worker = PeriodicThread('x', lambda: time.sleep(0.001))\n"
        "worker.start(0, 0.001)\n"
        "time.sleep(0.1)\n"
    )
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=False)
    assert (process.returncode, process.stderr) == (0, "")


def test_idle_worker_ends_and_can_start_again(make, monkeypatch):
    """Programs that join all threads at exit must end."""
    now, calls = [1000.0], []
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    worker = make(lambda: calls.append(1))
    worker.start(0, 0.005)
    wait_until(lambda: calls)
    (thread,) = threads()
    for _ in range(5):  # each start begins a new idle time
        worker.pause()
        now[0] += 0.4 * module.IDLE_SECONDS
        assert worker._delay(worker._wake) is not None
        worker.start(60, 60)
    now[0] += 2 * module.IDLE_SECONDS
    assert worker._delay(worker._wake) is not None, "started, with nothing to do yet"
    assert threads() == [thread]
    worker.pause()
    now[0] += 1.1 * module.IDLE_SECONDS
    thread.join(timeout=200)
    assert not thread.is_alive()
    assert worker._thread is None
    worker.pause()
    count = len(calls)
    worker.start(0, 0.005)
    wait_until(lambda: len(calls) > count)


def test_thread_that_cannot_start(make, monkeypatch):
    def start(self):
        raise RuntimeError("no more")

    worker = make(list)
    monkeypatch.setattr(threading.Thread, "start", start)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            worker.start(0, 1)
    assert worker._thread is None
