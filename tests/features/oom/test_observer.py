"""The observer of failed allocations: it takes down what it can, and never raises."""

from __future__ import annotations

import contextlib
import threading

import pytest
import torch

from ipygpumem.features.oom import collect as oom
from ipygpumem.features.oom.observer import failed_allocations
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import pytorch

GIB = 1 << 30


def fail(gpu, size=200):
    with pytest.raises(torch.OutOfMemoryError):
        gpu.alloc(size * GIB)


def test_before_cuda_has_started_nothing_is_attached(fake_gpu):
    assert oom.listen() is False
    assert fake_gpu.oom_observers == []
    assert not fake_gpu.initialised


def test_the_books_at_the_failure(fake_gpu, monkeypatch):
    monkeypatch.setattr("ipygpumem.features.oom.collect._QUICK", 30.0)  # how fast the walk is, is not asked here
    x = torch.ones(9 * GIB, dtype=torch.uint8, device="cuda")
    fake_gpu.nvml.devices[0].others[9000001] = 3 * GIB
    assert oom.listen()
    fail(fake_gpu)
    (one,) = failed_allocations().take()
    assert (one.device, one.asked, one.thread) == ("cuda:0", 200 * GIB, "")
    assert one.reading.allocated == 9 * GIB
    assert one.reading.others == 3 * GIB
    assert [(other.pid, other.amount) for other in one.neighbours] == [(9000001, 3 * GIB)]
    assert one.pieces.total == 0
    assert one.free == fake_gpu.nvml_device.free
    assert [holder.amount for holder in one.holders.holders] == [9 * GIB]
    assert any(frame[2] == "fail" for frame in one.frames)
    assert failed_allocations().take() == []
    del x


def test_one_observer_for_the_process_however_often_we_listen(fake_gpu):
    torch.cuda.init()
    for _ in range(3):
        assert oom.listen()
        failed_allocations().deafen()
    assert oom.listen()
    assert len(fake_gpu.oom_observers) == 1
    fail(fake_gpu)
    assert failed_allocations().count == 1


def test_after_deafen_nobody_listens(fake_gpu):
    torch.cuda.init()
    oom.listen()
    failed_allocations().deafen()
    fail(fake_gpu)
    assert failed_allocations().count == 0


@pytest.mark.parametrize("part", ["read", "other_processes"])
def test_a_part_that_fails_leaves_the_others(fake_gpu, monkeypatch, part):
    torch.cuda.init()
    oom.listen()

    def broken(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr(current().monitor, part, broken)
    fail(fake_gpu)
    (one,) = failed_allocations().take()
    assert one.asked == 200 * GIB
    assert (one.reading is None) is (part == "read")


@pytest.mark.parametrize("error", [MemoryError, RuntimeError, KeyboardInterrupt, SystemExit])
def test_the_users_error_stands_whatever_happens_here(fake_gpu, monkeypatch, error):
    torch.cuda.init()
    oom.listen()

    def broken(*_):
        raise error

    monkeypatch.setattr(failed_allocations(), "_take_down", broken)
    interrupted = pytest.raises(KeyboardInterrupt) if error is KeyboardInterrupt else contextlib.nullcontext()
    with interrupted:  # an interrupt is the user's, and comes a moment later
        fail(fake_gpu)
        for _ in range(100):
            pass
    assert failed_allocations()._inside.here is False


def test_out_of_memory_inside_the_observer_is_not_taken_down(fake_gpu, monkeypatch):
    torch.cuda.init()
    oom.listen()

    def again(*arguments, **options):
        fake_gpu.alloc(300 * GIB)

    monkeypatch.setattr(current().monitor, "read", again)
    fail(fake_gpu)
    assert [one.asked for one in failed_allocations().take()] == [200 * GIB]


def test_a_loop_of_failures_is_bounded_and_walks_once(fake_gpu, monkeypatch):
    torch.cuda.init()
    walks = []
    failed_allocations().listen(current().monitor, lambda: walks.append(1))
    for _ in range(150):
        fail(fake_gpu)
    assert failed_allocations().count == 150
    assert len(failed_allocations().take()) == 100
    assert walks == [1]


def test_a_thread_is_named(fake_gpu):
    torch.cuda.init()
    oom.listen()
    thread = threading.Thread(target=fail, args=(fake_gpu,), name="loader")
    thread.start()
    thread.join()
    assert [one.thread for one in failed_allocations().take()] == ["loader"]


class Nameless(threading.Thread):
    @property
    def name(self):
        raise RuntimeError("mine")

    @name.setter
    def name(self, value):
        raise RuntimeError("mine")


def test_a_thread_that_does_not_tell_its_name(fake_gpu):
    torch.cuda.init()
    oom.listen()
    thread = Nameless(target=fail, args=(fake_gpu,))
    thread._name = "quiet"
    thread.start()
    thread.join()
    (one,) = failed_allocations().take()
    assert (one.asked, one.thread) == (200 * GIB, "quiet")
    assert one.frames


def test_a_failure_is_kept_whatever_is_asked_after(fake_gpu, monkeypatch):
    torch.cuda.init()
    oom.listen()
    monkeypatch.setattr("ipygpumem.features.oom.observer._try", lambda question: question())
    monkeypatch.setattr("ipygpumem.features.oom.observer.thread_name", lambda thread: 1 / 0)
    thread = threading.Thread(target=fail, args=(fake_gpu,))
    thread.start()
    thread.join()
    assert [one.asked for one in failed_allocations().take()] == [200 * GIB]
    assert oom.explain([], 1, caught=False) is None


def test_the_panel_stands_without_the_holders(fake_gpu, monkeypatch):
    def broken():
        raise RuntimeError

    torch.cuda.init()
    oom.listen()
    fail(fake_gpu)
    monkeypatch.setattr(oom, "holders", broken)
    panel = oom.explain(failed_allocations().take(), 1, caught=False)
    assert (panel.failure.asked, panel.holders, panel.freeable) == (200 * GIB, None, 0)


def test_allocators_without_observers(make_gpu):
    make_gpu(backend="cudaMallocAsync")
    torch.cuda.init()
    assert oom.listen() is False


def test_the_slot_outlives_a_reload_of_the_package(fake_gpu):
    torch.cuda.init()
    calls = []
    assert pytorch.listen_for_ooms(lambda *facts: calls.append(("old", *facts)))
    assert pytorch.listen_for_ooms(lambda *facts: calls.append(("new", *facts)))
    fail(fake_gpu)
    assert [one[:3] for one in calls] == [("new", 0, 200 * GIB)]
