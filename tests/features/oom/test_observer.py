"""The observer of failed allocations records all available data and never raises."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading

import pytest
import torch

from ipygpumem.features.oom import collect as oom
from ipygpumem.features.oom import observer
from ipygpumem.features.oom.observer import failed_allocations
from ipygpumem.features.oom.table import oom_tables
from ipygpumem.measurement.runtime import current
from ipygpumem.sources import pytorch

GIB = 1 << 30


def fail(gpu, size=200):
    with pytest.raises(torch.OutOfMemoryError):
        gpu.alloc(size * GIB)


def fail_in_thread(gpu, thread_class=threading.Thread, **options):
    thread = thread_class(target=fail, args=(gpu,), **options)
    thread.start()
    thread.join()


@pytest.fixture
def listening(fake_gpu):
    torch.cuda.init()
    assert failed_allocations().listen()
    return fake_gpu


def test_no_observer_before_cuda_initialization(fake_gpu):
    assert failed_allocations().listen() is False
    assert fake_gpu.oom_observers == []
    assert not fake_gpu.initialized


def test_device_state_at_failure(fake_gpu):
    x = torch.ones(9 * GIB, dtype=torch.uint8, device="cuda")
    fake_gpu.nvml.devices[0].others[9000001] = 3 * GIB
    assert failed_allocations().listen()
    fail(fake_gpu)
    (failure,) = failed_allocations().take()
    assert (failure.device, failure.requested, failure.thread) == ("cuda:0", 200 * GIB, "")
    assert failure.reading.allocated == 9 * GIB
    assert failure.reading.others == 3 * GIB
    assert [(process.pid, process.amount) for process in failure.other_processes] == [(9000001, 3 * GIB)]
    assert failure.free_blocks.count == 0
    assert failure.free == fake_gpu.nvml_device.free
    assert [holder.amount for holder in failure.holders.holders] == [9 * GIB]
    assert any(function == "fail" for _, _, function in failure.frames)
    assert failed_allocations().take() == []
    del x


def test_second_start_attaches_no_second_observer(listening):
    for _ in range(3):
        failed_allocations().stop()
        assert failed_allocations().listen()
    assert len(listening.oom_observers) == 1
    fail(listening)
    assert failed_allocations().count == 1


def test_no_failure_is_recorded_after_stop(listening):
    failed_allocations().stop()
    fail(listening)
    assert failed_allocations().count == 0


@pytest.mark.parametrize("method", ["read", "other_processes"])
def test_unreadable_part_does_not_affect_others(listening, monkeypatch, method):
    def broken(*arguments, **options):
        raise MemoryError

    monkeypatch.setattr(current().monitor, method, broken)
    fail(listening)
    (failure,) = failed_allocations().take()
    assert failure.requested == 200 * GIB
    assert (failure.reading is None) is (method == "read")


@pytest.mark.parametrize("error", [MemoryError, RuntimeError, KeyboardInterrupt, SystemExit])
def test_user_error_is_raised_despite_internal_errors(listening, monkeypatch, error):
    def broken(*_):
        raise error

    monkeypatch.setattr(failed_allocations(), "_record", broken)
    interrupted = pytest.raises(KeyboardInterrupt) if error is KeyboardInterrupt else contextlib.nullcontext()
    with interrupted:  # the KeyboardInterrupt of the user is raised later
        fail(listening)
        for _ in range(100):
            pass
    assert failed_allocations()._active.value is False


def test_out_of_memory_during_recording_is_not_recorded(listening, monkeypatch):
    def allocate(*arguments, **options):
        listening.alloc(300 * GIB)

    monkeypatch.setattr(current().monitor, "read", allocate)
    fail(listening)
    assert [failure.requested for failure in failed_allocations().take()] == [200 * GIB]


def test_number_of_failures_and_searches_is_limited(listening, monkeypatch):
    searches = []
    monkeypatch.setattr("ipygpumem.features.oom.observer.holders", lambda **options: searches.append(options["limit"]))
    for _ in range(150):
        fail(listening)
    assert failed_allocations().count == 150
    assert len(failed_allocations().take()) == 100
    assert searches == [observer._SEARCH_LIMIT]


def halving(function, size=1024):
    """Call a function with half the size until memory suffices, like accelerate's `find_executable_batch_size`."""
    while True:
        if size == 0:
            raise RuntimeError("No executable batch size found, reached zero.")
        try:
            return function(size)
        except Exception as error:
            if not isinstance(error, torch.OutOfMemoryError):
                raise
            gc.collect()
            torch.cuda.empty_cache()
            size //= 2


@pytest.fixture
def training(listening):
    """Return a function that trains with a batch size. A variable of ``__main__`` holds the model."""
    main = sys.modules["__main__"]
    main.model = {"layers": [torch.ones(9 * GIB, dtype=torch.uint8, device="cuda")]}

    def train(batch_size):
        activations = [torch.ones(20 * GIB, dtype=torch.uint8, device="cuda")]
        activations.append(torch.ones(batch_size * GIB, dtype=torch.uint8, device="cuda"))
        return batch_size, activations

    yield train
    del main.model


def test_retry_loop_has_one_search_with_names(training, monkeypatch):
    searches, search_heap = [], gc.get_objects
    monkeypatch.setattr(gc, "get_objects", lambda: searches.append(1) or search_heap())
    size, activations = halving(training)
    failures = failed_allocations().take()
    assert (size, len(failures), searches) == (64, 4, [])
    panel = oom.failure_report(failures, len(failures), caught=True)
    names = {holder.name.rpartition(" ")[2]: holder.amount for holder in panel.holders.holders}
    assert names == {"activations": 20 * GIB, "model": 9 * GIB}
    assert panel.holders.complete
    assert searches == []
    del activations


def test_panel_states_remaining_memory_if_search_takes_too_long(training, monkeypatch):
    monkeypatch.setattr("ipygpumem.features.oom.observer._SEARCH_LIMIT", 0.0)
    monkeypatch.setattr("ipygpumem.features.holders.tracked_objects._MIN_OBJECTS", 0)
    halving(training)
    failures = failed_allocations().take()
    _, table = oom_tables(oom.failure_report(failures, len(failures), caught=True))
    (row,) = [row for row in table.rows if row.label == "not found within the limits of the search"]
    assert row.cells[0] == "29.0 GiB"
    assert any("reached a limit after" in note for note in table.notes)


def test_caught_error_is_not_searched_again(listening, monkeypatch):
    fail(listening)
    monkeypatch.setattr(oom, "holders", lambda: 1 / 0)
    failures = failed_allocations().take()
    panel = oom.failure_report(failures, 1, caught=True)
    assert panel.holders is failures[0].holders


def test_thread_name(listening):
    fail_in_thread(listening, name="loader")
    assert [failure.thread for failure in failed_allocations().take()] == ["loader"]


class UnnamedThread(threading.Thread):
    @property
    def name(self):
        raise RuntimeError("user code")

    @name.setter
    def name(self, value):
        raise RuntimeError("user code")

    def start(self):
        self._name = "quiet"
        super().start()


def test_thread_whose_name_raises(listening):
    fail_in_thread(listening, UnnamedThread)
    (failure,) = failed_allocations().take()
    assert (failure.requested, failure.thread) == (200 * GIB, "quiet")
    assert failure.frames


def test_failure_is_kept_if_recording_details_raises(listening, monkeypatch):
    monkeypatch.setattr("ipygpumem.features.oom.observer.attempt", lambda read_part: read_part())
    monkeypatch.setattr("ipygpumem.features.oom.observer.thread_name", lambda thread: 1 / 0)
    fail_in_thread(listening)
    assert [failure.requested for failure in failed_allocations().take()] == [200 * GIB]
    assert oom.failure_report([], 1, caught=False) is None


def test_panel_omits_holders_if_search_fails(listening, monkeypatch):
    def broken():
        raise RuntimeError

    fail(listening)
    monkeypatch.setattr(oom, "holders", broken)
    panel = oom.failure_report(failed_allocations().take(), 1, caught=False)
    assert (panel.failure.requested, panel.holders) == (200 * GIB, None)
    assert not any("%gpumem free" in sentence for sentence in panel.advice)


def test_allocator_without_observers(make_gpu):
    make_gpu(backend="cudaMallocAsync")
    torch.cuda.init()
    assert failed_allocations().listen() is False


def test_package_reload_replaces_listener(fake_gpu):
    torch.cuda.init()
    calls = []
    assert pytorch.listen_for_ooms(lambda *facts: calls.append(("old", *facts)))
    assert pytorch.listen_for_ooms(lambda *facts: calls.append(("new", *facts)))
    fail(fake_gpu)
    assert [call[:3] for call in calls] == [("new", 0, 200 * GIB)]
