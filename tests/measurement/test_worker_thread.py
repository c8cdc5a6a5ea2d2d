"""A parked thread on either alarm: it works when it is asked to, sleeps else, and goes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ipygpumem.measurement import interval_timer as alarms
from ipygpumem.measurement import worker_thread as module
from ipygpumem.measurement.worker_thread import Parked

NAME = "ipygpumem-test"


@pytest.fixture(params=["file", "condition"])
def make(request, monkeypatch):
    if request.param == "file" and sys.platform != "linux":
        pytest.skip("timers that are files are Linux's")
    kind = {"file": "_TimerFile", "condition": "_Condition"}[request.param]
    monkeypatch.setattr(module, "make_alarm", getattr(alarms, kind))
    made = []

    def build(work):
        made.append(Parked(NAME, work))
        return made[-1]

    yield build
    for one in made:
        one.close()


def threads():
    return [one for one in threading.enumerate() if one.name == NAME]


def files_open():
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def until(condition, seconds=5):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def test_this_system_has_timers():
    if sys.platform == "linux":
        assert isinstance(alarms.make_alarm(), alarms._TimerFile)


def test_it_works_again_and_again_until_it_is_parked(make):
    rings = []
    parked = make(lambda: rings.append(time.monotonic()))
    assert threads() == []
    start = time.monotonic()
    parked.set(0.05, 0.01)
    (thread,) = threads()
    assert thread.daemon
    until(lambda: len(rings) >= 5)
    assert rings[0] - start >= 0.045
    parked.off()
    time.sleep(0.03)
    count = len(rings)
    time.sleep(0.06)
    assert len(rings) == count
    parked.set(0, 0.01)
    until(lambda: len(rings) > count)
    assert threads() == [thread]
    parked.close()
    assert threads() == []
    assert not parked.alive


def test_set_and_off_before_the_time_is_nothing(make):
    rings = []
    parked = make(lambda: rings.append(1))
    for _ in range(100):
        parked.set(0.05, 0.01)
        parked.off()
    time.sleep(0.1)
    assert rings == []


def test_an_error_parks_it_and_the_next_time_it_is_there(make):
    rings = []

    def work():
        rings.append(1)
        if len(rings) == 1:
            raise RuntimeError("once")

    parked = make(work)
    parked.set(0, 0.005)
    until(lambda: rings)
    time.sleep(0.05)
    assert len(rings) == 1
    parked.set(0, 0.005)
    until(lambda: len(rings) >= 3)


def test_it_may_close_itself_and_begin_again(make):
    def work():
        parked.close()

    parked = make(work)
    parked.set(0, 1)
    until(lambda: not threads())
    parked.set(0, 1)
    until(lambda: not threads())
    parked.off()
    parked.close()


def test_a_forked_child_leaves_its_parents_alarm_alone(make):
    rings = []
    parked = make(lambda: rings.append(1))
    parked.set(10, 10)
    child = os.fork()
    if child == 0:
        parked.set(0, 0.001)
        parked.off()
        parked.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    time.sleep(0.05)
    assert rings == []
    assert len(threads()) == 1


def test_a_process_ends_beside_it():
    code = (
        "from ipygpumem.measurement.worker_thread import Parked\n"
        "import time\n"
        "parked = Parked('x', lambda: time.sleep(0.001))\n"
        "parked.set(0, 0.001)\n"
        "time.sleep(0.1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_it_ends_when_nobody_has_wanted_it_for_long_and_begins_again(make, monkeypatch):
    """Programs that join every thread but the main one come to an end."""
    monkeypatch.setattr(module, "LINGER", 0.2)
    monkeypatch.setattr(module, "_EARLY", 0.01)
    rings = []
    parked = make(lambda: rings.append(1))
    files = files_open()
    parked.set(0, 0.005)
    until(lambda: rings)
    (thread,) = threads()
    for _ in range(5):  # each time it is wanted the time counts anew
        parked.off()
        time.sleep(0.08)
        parked.set(10, 10)
    assert threads() == [thread]
    time.sleep(0.3)
    assert threads() == [thread], "wanted, and nothing to do"
    parked.off()
    thread.join(timeout=3)
    assert not thread.is_alive()
    assert not parked.alive
    assert files_open() == files
    parked.off()
    count = len(rings)
    parked.set(0, 0.005)
    until(lambda: len(rings) > count)


def test_a_thread_that_cannot_begin_leaves_no_file(make, monkeypatch):
    def start(self):
        raise RuntimeError("no more")

    parked = make(list)
    files = files_open()
    monkeypatch.setattr(threading.Thread, "start", start)
    for _ in range(3):
        with pytest.raises(RuntimeError):
            parked.set(0, 1)
    assert files_open() == files
    assert not parked.alive
