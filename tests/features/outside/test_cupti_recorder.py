"""Recording with a fake CUPTI library: intervals, threads, profilers and errors."""

from __future__ import annotations

import contextlib
import select
import subprocess
import sys
import threading
import time

import pytest
import torch

from fakes.cupti import CTYPES, CUPY, NCCL, TORCH, FakeCupti, use_library
from fakes.workers import exit_status_of_child
from ipygpumem.core.errors import CuptiError
from ipygpumem.features.outside.allocation_totals import AllocationOwner
from ipygpumem.sources.cupti import buffers
from ipygpumem.sources.cupti.buffers import ActivityBuffers

pytest.importorskip("llvmlite")
MIB = 1 << 20


@pytest.fixture
def cupti():
    return FakeCupti()


@pytest.fixture
def records(cupti, monkeypatch):
    return use_library(monkeypatch, cupti)


def figures(interval):
    return {
        owner.library: (totals.change, totals.peak, totals.allocations) for owner, totals in interval.owners.items()
    }


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ipygpumem")]


def test_complete_interval(records, cupti):
    records.acquire()
    assert threads() == ["ipygpumem-outside"]
    cupti.alloc(0x1000, 7 * MIB, NCCL)  # before the interval
    interval = records.open_interval()
    cupti.alloc(0x2000, 64 * MIB, NCCL)
    cupti.alloc(0x3000, 256 * MIB, CUPY)
    cupti.alloc(0x4000, 20 * MIB, TORCH)
    cupti.free(0x3000)
    cupti.free(0x1000)
    records.close_interval(interval)
    records.close_interval(interval)
    records.release()
    assert figures(interval) == {
        "NCCL": (57 * MIB, 64 * MIB, 1),
        "CuPy": (0, 256 * MIB, 1),
        "PyTorch's allocator": (20 * MIB, 20 * MIB, 1),
    }
    assert interval.devices[0].peak == 320 * MIB
    assert (interval.seconds, interval.lost, interval.problem) == (0, 0, "")
    wait_for(lambda: threads() == [])
    assert not cupti.enabled


def test_recording_only_while_acquired(records, cupti):
    assert cupti.calls == []
    records.acquire()
    records.acquire()
    records.release()
    assert cupti.enabled
    records.release()
    records.release()
    assert not cupti.enabled
    assert cupti.calls.count("cuptiActivityEnable") == 1


def test_nested_and_overlapping_intervals(records, cupti):
    records.acquire()
    outer = records.open_interval()
    cupti.alloc(0x1000, 5)
    inner = records.open_interval()
    cupti.alloc(0x2000, 6)
    records.close_interval(outer)
    cupti.free(0x1000)
    records.close_interval(inner)
    assert figures(outer) == {"ctypes": (11, 11, 2)}
    assert figures(inner) == {"ctypes": (1, 6, 1)}


def test_address_keeps_its_owner_between_intervals(records, cupti):
    records.acquire()
    first = records.open_interval()
    cupti.alloc(0x1000, 64, CUPY)
    records.close_interval(first)
    second = records.open_interval()
    cupti.free(0x1000)
    records.close_interval(second)
    assert figures(second) == {"CuPy": (-64, 0, 0)}


def test_addresses_are_discarded_when_recording_stops(records, cupti):
    for _ in range(2):
        records.acquire()
        interval = records.open_interval()
        if 0x1000 in cupti._sizes:
            cupti.free(0x1000)
        else:
            cupti.alloc(0x1000, 64, CUPY)
        records.close_interval(interval)
        records.release()
    assert figures(interval) == {"allocated before recording began": (-64, 0, 0)}


def test_buffers_of_several_threads_are_sorted_by_time(records, cupti):
    records.acquire()
    interval = records.open_interval()
    start = cupti.clock
    cupti.record(1, 0x1000, 100, source=NCCL, time=start + 1, thread=1)
    cupti.record(2, 0x1000, 100, source=None, time=start + 2, thread=2)
    cupti.record(1, 0x2000, 100, source=NCCL, time=start + 3, thread=1)
    records.close_interval(interval)
    assert figures(interval) == {"NCCL": (100, 100, 2)}


@pytest.fixture
def small_buffers(monkeypatch):
    monkeypatch.setattr(buffers, "_SIZE", 8 << 10)
    monkeypatch.setattr(ActivityBuffers, "_shared", None)
    return ActivityBuffers.shared()


def test_buffers_are_read_during_an_interval(small_buffers, records, cupti):
    records.acquire()
    interval = records.open_interval()
    for i in range(10_000):
        cupti.alloc(0x1000, 512)
        cupti.free(0x1000)
        if i % 2500 == 0:
            wait_for(lambda: not select.select([small_buffers.ready], [], [], 0)[0])
    records.close_interval(interval)
    assert small_buffers.lost == 0
    assert figures(interval) == {"ctypes": (0, 512, 10_000)}
    assert len(records._pending) == 0


def wait_for(condition):
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("the condition did not become true")


def test_records_without_buffer_are_counted(small_buffers, records, cupti, monkeypatch):
    monkeypatch.setattr(records, "_read_buffers", lambda *_: None)
    records.acquire()
    interval = records.open_interval()
    for _ in range(9000):
        cupti.alloc(0x1000, 512)
        cupti.free(0x1000)
    records.close_interval(interval)
    assert cupti.dropped == interval.lost > 0
    second_interval = records.open_interval()
    cupti.alloc(0x9000, 512)
    records.close_interval(second_interval)
    assert second_interval.lost == 0
    assert second_interval.owners[AllocationOwner.from_path(0, "device", CTYPES, pooled=False)].allocations == 1


def test_recording_pauses_for_profiler(records, cupti):
    import torch.autograd.profiler as module

    before = module._prepare_profiler, module._disable_profiler
    records.acquire()
    interval = records.open_interval()
    cupti.alloc(0x1000, 5)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert not cupti.enabled
        assert not cupti._open, "our buffers are not in use while the profiler uses CUPTI"
        cupti.alloc(0x2000, 6)
        time.sleep(0.01)
        torch.ones(3).sum()
    assert any(event.key == "aten::sum" for event in profile.key_averages())
    assert cupti.enabled
    cupti.alloc(0x3000, 7)
    records.close_interval(interval)
    after = records.open_interval()
    records.close_interval(after)
    records.release()
    assert figures(interval) == {"ctypes": (12, 12, 2)}
    assert interval.seconds >= 0.01
    assert after.seconds == 0
    assert (module._prepare_profiler, module._disable_profiler) == before


def test_profiler_already_running(records, cupti, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        records.acquire()
        interval = records.open_interval()
        assert not cupti.enabled
        now[0] += 2
        nested_interval = records.open_interval()
        now[0] += 1
        records.close_interval(nested_interval)
    assert cupti.enabled
    cupti.alloc(0x1000, 5)
    records.close_interval(interval)
    records.release()
    assert (interval.seconds, nested_interval.seconds) == (3, 1)
    assert figures(interval) == {"ctypes": (5, 5, 1)}


def test_cupti_cannot_start_after_profiler(records, cupti):
    records.acquire()
    interval = records.open_interval()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        cupti.refuses["cuptiActivityEnable"] = 39
    records.close_interval(interval)
    assert "another profiler" in interval.problem


def test_another_profiler_uses_cupti(records, cupti):
    for name in ("cuptiActivityRegisterCallbacks", "cuptiActivityEnable", "cuptiActivityEnableAllocationSource"):
        cupti.refuses = {name: 39}
        with pytest.raises(CuptiError, match="another profiler or debugger is using CUPTI"):
            records.acquire()
        assert not cupti.enabled
    wait_for(lambda: threads() == [])
    cupti.refuses.clear()
    records.acquire()
    assert cupti.enabled


def test_error_during_interval_is_reported(records, cupti):
    records.acquire()
    interval = records.open_interval()
    cupti.alloc(0x1000, 5)
    cupti.refuses["cuptiActivityFlushAll"] = 999
    records.close_interval(interval)
    assert interval.problem == "cuptiActivityFlushAll: CUPTI_ERROR_999"
    cupti.refuses["cuptiActivityDisable"] = 999
    records.release()
    wait_for(lambda: threads() == [])


def test_start_and_stop_in_many_threads(records, cupti):
    def use():
        for _ in range(30):
            records.acquire()
            interval = records.open_interval()
            records.close_interval(interval)
            records.release()

    users = [threading.Thread(target=use) for _ in range(6)]
    for user in users:
        user.start()
    for user in users:
        user.join()
    wait_for(lambda: threads() == [])
    assert not cupti.enabled


def test_interrupt_during_start_stops_recording(records, cupti, monkeypatch):
    from ipygpumem.features.outside import cupti_recorder as outside

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(outside, "pytorch_segments", interrupt)
    with pytest.raises(KeyboardInterrupt):
        records.acquire()
    wait_for(lambda: threads() == [])
    assert not cupti.enabled
    monkeypatch.undo()


def test_unreadable_buffer_is_reported_and_returned(records, cupti, monkeypatch):
    returned, original = 0, ActivityBuffers.recycle

    def recycle(pool, address):
        nonlocal returned
        returned += 1
        original(pool, address)

    monkeypatch.setattr(ActivityBuffers, "recycle", recycle)
    monkeypatch.setattr(records, "_read_buffers", lambda *_: None)
    records.acquire()
    interval = records.open_interval()
    for thread in range(3):
        cupti.alloc(0x1000 + thread, 5, thread=thread)
    refusals = iter([999])
    cupti.cuptiActivityGetNextRecord = lambda *arguments: (
        next(refusals, None) or type(cupti).cuptiActivityGetNextRecord(cupti, *arguments)
    )
    records.close_interval(interval)
    assert interval.problem == "cuptiActivityGetNextRecord: CUPTI_ERROR_999"
    assert figures(interval) == {"ctypes": (10, 10, 2)}
    assert returned == 3


def test_close_stops_recording_for_all(records, cupti):
    records.acquire()
    records.acquire()
    interval = records.open_interval()
    records.close()
    wait_for(lambda: threads() == [])
    assert not cupti.enabled
    records.close_interval(interval)
    records.release()
    records.close()


def test_open_interval_reports_closed_recording(records, cupti):
    records.acquire()
    interval = records.open_interval()
    cupti.alloc(0x1000, 5)
    records.close()
    cupti.alloc(0x2000, 6)  # not recorded
    records.close_interval(interval)
    assert interval.problem == "the extension was unloaded"
    assert figures(interval) == {"ctypes": (5, 5, 1)}


@pytest.mark.parametrize("fetched", [True, False])
def test_records_of_unknown_version_are_reported(records, cupti, monkeypatch, fetched):
    monkeypatch.setattr(records, "_read_buffers", lambda *_: None)  # the fake's buffers are for one thread at a time
    cupti.stride = 112
    cupti.record = lambda *_, **__: cupti.write(bytes(112))
    records.acquire()
    interval = records.open_interval()
    cupti.alloc(0x1000, 5)
    if fetched:
        with records._lock, contextlib.suppress(CuptiError):  # as the reader thread does
            records._collect()
    records.close_interval(interval)
    records.release()
    assert interval.problem == "records of this version of CUPTI have 112 bytes, but at least 128 are required"
    wait_for(lambda: threads() == [])


def test_live_allocations_by_owner(records, cupti):
    assert records.live_by_owner() is None
    before = time.time()
    records.acquire()
    cupti.alloc(0x1000, 5, NCCL)
    cupti.alloc(0x2000, 6, NCCL)
    cupti.alloc(0x3000, 7, CUPY, memory=5)
    cupti.free(0x2000)
    since, owners = records.live_by_owner()
    assert before <= since <= time.time()
    assert {(owner.library, owner.memory): size for owner, size in owners.items()} == {
        ("NCCL", "device"): 5,
        ("CuPy", "managed"): 7,
    }
    records.pause()
    assert records.live_by_owner() is None
    cupti.free(0x1000)
    records.resume()
    second_time, owners = records.live_by_owner()
    assert second_time >= since
    assert owners == {}, "memory from before the pause may have been freed"
    records.release()
    assert records.live_by_owner() is None


SHUTDOWN = f"""
import os, signal, sys, threading
sys.path[:0] = {sys.path!r}
from fakes.cupti import FakeCupti
from ipygpumem.sources.cupti.library import CuptiLibrary
from ipygpumem.features.outside import cupti_recorder as outside
for number, end in enumerate(sys.argv[1:]):  # a process for each, without repeated imports
    child = os.fork()
    if child == 0:
        signal.alarm(60)
        os.dup2(os.open(f"stderr{{number}}", os.O_CREAT | os.O_WRONLY), 2)
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    sys.exit()
cupti = FakeCupti()
outside.CuptiLibrary = lambda: CuptiLibrary(cupti)
outside.cupti_recorder().acquire()
interval = outside.cupti_recorder().open_interval()
def work():
    address = 0x1000
    while True:
        cupti.alloc(address, 512, thread=threading.get_ident())
        cupti.free(address, thread=threading.get_ident())
workers = [threading.Thread(target=work, daemon=True) for _ in range(3)]
workers[0].start()
while not interval.owners:
    outside.cupti_recorder().live_by_owner()
exec(end)
"""
ENDS = {
    "": {0},
    "sys.exit(3)": {3},
    "raise ValueError": {1},
    "os._exit(4)": {4},
    "os.kill(os.getpid(), signal.SIGTERM)": {-15},
    "os.kill(os.getpid(), signal.SIGINT)": {-2, 130},
}


def test_process_exit_while_recording(tmp_path):
    command = [sys.executable, "-c", SHUTDOWN, *ENDS]
    codes = subprocess.run(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=True).stdout.split()
    for number, (end, code) in enumerate(zip(ENDS, codes, strict=True)):
        stderr = (tmp_path / f"stderr{number}").read_text()
        assert int(code) in ENDS[end], (end, stderr)
        assert "Fatal" not in stderr and "Segmentation" not in stderr
        assert ("Traceback" in stderr) == ("ValueError" in end or "SIGINT" in end)
        assert ("KeyboardInterrupt" in stderr) == ("SIGINT" in end)


def test_close_while_other_threads_start(records, cupti):
    stop, intervals = threading.Event(), []

    def cells():
        while not stop.is_set():
            try:
                records.acquire()
                interval = records.open_interval()
            except CuptiError:
                continue
            cupti.alloc(0x1000 + threading.get_ident(), 5)
            records.close_interval(interval)
            records.release()
            intervals.append(interval)

    users = [threading.Thread(target=cells) for _ in range(4)]
    for user in users:
        user.start()
    for _ in range(20):
        records.close()
        time.sleep(0.01)
    stop.set()
    for user in users:
        user.join(timeout=200)
        assert not user.is_alive()
    records.close()
    assert intervals
    wait_for(lambda: threads() == [])
    assert not cupti.enabled


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_forked_child_records_nothing(records, cupti):
    records.acquire()
    interval = records.open_interval()
    locked, proceed = threading.Event(), threading.Event()

    def hold():
        with records._lock:
            locked.set()
            proceed.wait()

    holder = threading.Thread(target=hold)  # as the thread that reads buffers may do at that time
    holder.start()
    locked.wait()

    def close():
        records.close_interval(interval)
        records.release()
        records.close()
        assert records.live_by_owner() is None
        with pytest.raises(CuptiError, match="forked"):
            records.acquire()
        return "forked" in (records.problem() or "")

    assert exit_status_of_child(close) == 0
    proceed.set()
    holder.join()
    cupti.alloc(0x1000, 5)
    records.close_interval(interval)
    assert figures(interval) == {"ctypes": (5, 5, 1)}


def test_pytorch_segments_are_identified_by_address(fake_gpu, records, cupti):
    early = fake_gpu.alloc(100 * MIB)
    segment = torch.cuda.memory_snapshot()[0]
    cupti._sizes[segment["address"]] = segment["total_size"]
    records.acquire()
    interval = records.open_interval()
    fake_gpu.free(early)
    torch.cuda.empty_cache()
    cupti.free(segment["address"])
    block = fake_gpu.alloc(50 * MIB)
    own_segment = torch.cuda.memory_snapshot()[0]
    cupti.alloc(own_segment["address"], own_segment["total_size"], NCCL)  # a pool of PyTorch that uses NCCL's allocator
    records.close_interval(interval)
    assert {name: level for name, (level, _, _) in figures(interval).items() if level} == {
        "PyTorch's allocator": own_segment["total_size"] - segment["total_size"]
    }
    assert interval.devices[0].change == 0
    del block
