"""The book of what is allocated outside PyTorch: windows, threads, profilers, faults; over a CUPTI of the test's."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time

import pytest
import torch

from fakes.cupti import CTYPES, CUPY, NCCL, TORCH, FakeCupti, put_under
from ipygpumem.core.errors import CuptiError
from ipygpumem.features.outside.accounts import Owner
from ipygpumem.sources.cupti.buffers import Buffers

pytest.importorskip("llvmlite")
MIB = 1 << 20


@pytest.fixture
def cupti():
    return FakeCupti()


@pytest.fixture
def book(cupti, monkeypatch):
    return put_under(monkeypatch, cupti)


def figures(window):
    return {one.library: (a.level, a.peak, a.allocations) for one, a in window.accounts.items()}


def threads():
    return [one.name for one in threading.enumerate() if one.name.startswith("ipygpumem")]


def test_a_window_from_beginning_to_end(book, cupti):
    book.acquire()
    assert threads() == ["ipygpumem-outside"]
    cupti.alloc(0x1000, 7 * MIB, NCCL)  # before the window
    window = book.open()
    cupti.alloc(0x2000, 64 * MIB, NCCL)
    cupti.alloc(0x3000, 256 * MIB, CUPY)
    cupti.alloc(0x4000, 20 * MIB, TORCH)
    cupti.free(0x3000)
    cupti.free(0x1000)
    book.shut(window)
    book.shut(window)
    book.release()
    assert figures(window) == {
        "NCCL": (57 * MIB, 64 * MIB, 1),
        "CuPy": (0, 256 * MIB, 1),
        "PyTorch's allocator": (20 * MIB, 20 * MIB, 1),
    }
    assert window.totals[0].peak == 320 * MIB
    assert (window.seconds, window.lost, window.trouble) == (0, 0, "")
    assert threads() == []
    assert not cupti.enabled


def test_nothing_is_recorded_that_nobody_asked_for(book, cupti):
    assert cupti.calls == []
    book.acquire()
    book.acquire()
    book.release()
    assert cupti.enabled
    book.release()
    book.release()
    assert not cupti.enabled
    assert cupti.calls.count("cuptiActivityEnable") == 1


def test_windows_nest_and_overlap(book, cupti):
    book.acquire()
    outer = book.open()
    cupti.alloc(0x1000, 5)
    inner = book.open()
    cupti.alloc(0x2000, 6)
    book.shut(outer)
    cupti.free(0x1000)
    book.shut(inner)
    assert figures(outer) == {"ctypes": (11, 11, 2)}
    assert figures(inner) == {"ctypes": (1, 6, 1)}


def test_from_one_window_to_another_an_address_keeps_its_owner(book, cupti):
    book.acquire()
    first = book.open()
    cupti.alloc(0x1000, 64, CUPY)
    book.shut(first)
    second = book.open()
    cupti.free(0x1000)
    book.shut(second)
    assert figures(second) == {"CuPy": (-64, 0, 0)}


def test_after_a_gap_an_address_says_nothing(book, cupti):
    for _ in range(2):
        book.acquire()
        window = book.open()
        if 0x1000 in cupti._sizes:
            cupti.free(0x1000)
        else:
            cupti.alloc(0x1000, 64, CUPY)
        book.shut(window)
        book.release()
    assert figures(window) == {"allocated before it was watched": (-64, 0, 0)}


def test_buffers_of_several_threads_are_put_into_the_order_of_time(book, cupti):
    book.acquire()
    window = book.open()
    start = cupti.clock
    cupti.record(1, 0x1000, 100, source=NCCL, time=start + 1, thread=1)
    cupti.record(2, 0x1000, 100, source=None, time=start + 2, thread=2)
    cupti.record(1, 0x2000, 100, source=NCCL, time=start + 3, thread=1)
    book.shut(window)
    assert figures(window) == {"NCCL": (100, 100, 2)}


def test_more_records_than_buffers_are_fetched_meanwhile(book, cupti):
    book.acquire()
    window = book.open()
    lost = Buffers.pool().lost
    for i in range(150_000):  # the buffers hold 262,144 records
        cupti.alloc(0x1000, 512)
        cupti.free(0x1000)
        if i % 20_000 == 0:
            time.sleep(0.15)
    book.shut(window)
    assert Buffers.pool().lost == lost
    assert figures(window) == {"ctypes": (0, 512, 150_000)}
    assert len(book._waiting) == 0


def test_records_that_found_no_buffer_are_told(book, cupti, monkeypatch):
    monkeypatch.setattr(book, "_fetch", lambda *_: None)
    book.acquire()
    window = book.open()
    for _ in range(140_000):
        cupti.alloc(0x1000, 512)
        cupti.free(0x1000)
    book.shut(window)
    assert cupti.dropped == window.lost > 0
    again = book.open()
    cupti.alloc(0x9000, 512)
    book.shut(again)
    assert again.lost == 0
    assert again.accounts[Owner.of(0, "device", CTYPES, pooled=False)].allocations == 1


def test_the_profiler_has_cupti_to_itself_and_ours_comes_back(book, cupti):
    import torch.autograd.profiler as module

    before = module._prepare_profiler, module._disable_profiler
    book.acquire()
    window = book.open()
    cupti.alloc(0x1000, 5)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        assert not cupti.enabled
        assert not cupti._open, "no buffer of ours is out while the profiler's are"
        cupti.alloc(0x2000, 6)
        time.sleep(0.01)
        torch.ones(3).sum()
    assert any(one.key == "aten::sum" for one in profile.key_averages())
    assert cupti.enabled
    cupti.alloc(0x3000, 7)
    book.shut(window)
    after = book.open()
    book.shut(after)
    book.release()
    assert figures(window) == {"ctypes": (12, 12, 2)}
    assert window.seconds >= 0.01
    assert after.seconds == 0
    assert (module._prepare_profiler, module._disable_profiler) == before


def test_a_profiler_that_runs_already(book, cupti):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        book.acquire()
        window = book.open()
        assert not cupti.enabled
        time.sleep(0.01)
        inside = book.open()
        book.shut(inside)
    assert cupti.enabled
    cupti.alloc(0x1000, 5)
    book.shut(window)
    book.release()
    assert window.seconds >= 0.01 > inside.seconds >= 0
    assert figures(window) == {"ctypes": (5, 5, 1)}


def test_cupti_that_does_not_come_back_after_a_profiler(book, cupti):
    book.acquire()
    window = book.open()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        cupti.refuses["cuptiActivityEnable"] = 39
    book.shut(window)
    assert "another profiler" in window.trouble


def test_another_profiler_holds_cupti(book, cupti):
    for name in ("cuptiActivityRegisterCallbacks", "cuptiActivityEnable", "cuptiActivityEnableAllocationSource"):
        cupti.refuses = {name: 39}
        with pytest.raises(CuptiError, match="another profiler holds CUPTI"):
            book.acquire()
        assert not cupti.enabled
    assert threads() == []
    cupti.refuses.clear()
    book.acquire()
    assert cupti.enabled


def test_cupti_that_fails_in_the_middle_is_told(book, cupti):
    book.acquire()
    window = book.open()
    cupti.alloc(0x1000, 5)
    cupti.refuses["cuptiActivityFlushAll"] = 999
    book.shut(window)
    assert window.trouble == "cuptiActivityFlushAll: CUPTI_ERROR_999"
    cupti.refuses["cuptiActivityDisable"] = 999
    book.release()
    assert threads() == []


def test_it_begins_and_ends_in_many_threads_at_once(book, cupti):
    def use():
        for _ in range(30):
            book.acquire()
            window = book.open()
            book.shut(window)
            book.release()

    users = [threading.Thread(target=use) for _ in range(6)]
    for one in users:
        one.start()
    for one in users:
        one.join()
    assert threads() == []
    assert not cupti.enabled


def test_an_interrupt_at_the_beginning_leaves_nothing(book, cupti, monkeypatch):
    from ipygpumem.features.outside import cupti_records as outside

    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(outside, "_segments", interrupt)
    with pytest.raises(KeyboardInterrupt):
        book.acquire()
    assert threads() == []
    assert not cupti.enabled
    monkeypatch.undo()


def test_a_buffer_that_cannot_be_read_is_told_and_goes_back(book, cupti, monkeypatch):
    given, back = 0, Buffers.give_back

    def give_back(pool, address):
        nonlocal given
        given += 1
        back(pool, address)

    monkeypatch.setattr(Buffers, "give_back", give_back)
    monkeypatch.setattr(book, "_fetch", lambda *_: None)
    book.acquire()
    window = book.open()
    for thread in range(3):
        cupti.alloc(0x1000 + thread, 5, thread=thread)
    refusals = iter([999])
    cupti.cuptiActivityGetNextRecord = lambda *arguments: (
        next(refusals, None) or type(cupti).cuptiActivityGetNextRecord(cupti, *arguments)
    )
    book.shut(window)
    assert window.trouble == "cuptiActivityGetNextRecord: CUPTI_ERROR_999"
    assert figures(window) == {"ctypes": (10, 10, 2)}
    assert given == 3


def test_close_ends_it_whoever_asks(book, cupti):
    book.acquire()
    book.acquire()
    window = book.open()
    book.close()
    assert threads() == []
    assert not cupti.enabled
    book.shut(window)
    book.release()
    book.close()


def test_who_is_still_open_when_all_ends_is_told_so(book, cupti):
    book.acquire()
    window = book.open()
    cupti.alloc(0x1000, 5)
    book.close()
    cupti.alloc(0x2000, 6)  # nobody records this
    book.shut(window)
    assert window.trouble == "recording was ended for all: the extension was unloaded"
    assert figures(window) == {"ctypes": (5, 5, 1)}


@pytest.mark.parametrize("fetched", [True, False])
def test_records_of_another_version_are_told(book, cupti, monkeypatch, fetched):
    monkeypatch.setattr(book, "_fetch", lambda *_: None)  # the fake's buffers are for one thread at a time
    cupti.stride = 112
    cupti.record = lambda *_, **__: cupti.write(bytes(112))
    book.acquire()
    window = book.open()
    cupti.alloc(0x1000, 5)
    if fetched:
        with book._lock, contextlib.suppress(CuptiError):  # as the thread does, which nobody hears
            book._collect()
    book.shut(window)
    book.release()
    assert window.trouble == "this CUPTI writes records of 112 bytes, not of 128: another version"
    assert threads() == []


def test_what_stands_is_what_came_and_did_not_go(book, cupti):
    assert book.standing() is None
    before = time.time()
    book.acquire()
    cupti.alloc(0x1000, 5, NCCL)
    cupti.alloc(0x2000, 6, NCCL)
    cupti.alloc(0x3000, 7, CUPY, memory=5)
    cupti.free(0x2000)
    since, owners = book.standing()
    assert before <= since <= time.time()
    assert {(one.library, one.memory): size for one, size in owners.items()} == {
        ("NCCL", "device"): 5,
        ("CuPy", "managed"): 7,
    }
    book.pause()
    assert book.standing() is None
    cupti.free(0x1000)
    book.resume()
    later, owners = book.standing()
    assert later >= since
    assert owners == {}, "what was there before the pause may have gone meanwhile"
    book.release()
    assert book.standing() is None


SHUTDOWN = """
import sys, threading
sys.path[:0] = {path!r}
from fakes.cupti import FakeCupti
from ipygpumem.sources.cupti.library import Cupti
from ipygpumem.features.outside import cupti_records as outside
cupti = FakeCupti()
outside.Cupti = lambda: Cupti(cupti)
outside.outside_records().acquire()
window = outside.outside_records().open()
def work():
    address = 0x1000
    while True:
        cupti.alloc(address, 512, thread=threading.get_ident())
        cupti.free(address, thread=threading.get_ident())
workers = [threading.Thread(target=work, daemon=True) for _ in range(3)]
for one in workers[:1]:
    one.start()
while not window.accounts:
    outside.outside_records().standing()
{end}
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("sys.exit(3)", 3),
        ("raise ValueError('the user\\'s')", 1),
        ("import os; os._exit(4)", 4),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -15),
        ("import os, signal; os.kill(os.getpid(), signal.SIGINT)", None),
    ],
)
def test_a_process_that_ends_with_records_in_flight(end, code):
    script = SHUTDOWN.format(path=sys.path, end=end)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    if code is None:  # Python's own way to end by an interrupt
        assert done.returncode in {-2, 130} and "KeyboardInterrupt" in done.stderr
    else:
        assert done.returncode == code, done.stderr
    assert "Fatal" not in done.stderr and "Segmentation" not in done.stderr
    assert ("Traceback" in done.stderr) == (code in {1, None})


def test_an_end_for_all_while_others_begin(book, cupti):
    """Somebody ends it while cells begin and end in other threads: nobody hangs, nobody is told wrong."""
    stop, seen = threading.Event(), []

    def cells():
        while not stop.is_set():
            try:
                book.acquire()
                window = book.open()
            except CuptiError:
                continue
            cupti.alloc(0x1000 + threading.get_ident(), 5)
            book.shut(window)
            book.release()
            seen.append(window)

    users = [threading.Thread(target=cells) for _ in range(4)]
    for one in users:
        one.start()
    for _ in range(20):
        book.close()
        time.sleep(0.01)
    stop.set()
    for one in users:
        one.join(timeout=30)
        assert not one.is_alive()
    book.close()
    assert seen
    assert threads() == []
    assert not cupti.enabled


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_leaves_it_alone(book, cupti):
    book.acquire()
    window = book.open()
    held, go = threading.Event(), threading.Event()

    def hold():
        with book._lock:
            held.set()
            go.wait()

    holder = threading.Thread(target=hold)  # as the thread that fetches may, at that moment
    holder.start()
    held.wait()
    pid = os.fork()
    if pid == 0:
        try:
            book.shut(window)
            book.release()
            book.close()
            assert book.standing() is None
            with pytest.raises(CuptiError, match="forked"):
                book.acquire()
            os._exit(0 if "forked" in (book.obstacle() or "") else 1)
        except BaseException:  # a child must not go on as a second pytest
            os._exit(2)
    go.set()
    holder.join()
    assert os.waitpid(pid, 0)[1] == 0
    cupti.alloc(0x1000, 5)
    book.shut(window)
    assert figures(window) == {"ctypes": (5, 5, 1)}


def test_pytorchs_segments_are_known_by_address(book, cupti, fake_gpu):
    early = fake_gpu.alloc(100 * MIB)
    segment = torch.cuda.memory_snapshot()[0]
    cupti._sizes[segment["address"]] = segment["total_size"]
    book.acquire()
    window = book.open()
    fake_gpu.free(early)
    torch.cuda.empty_cache()
    cupti.free(segment["address"])
    kept = fake_gpu.alloc(50 * MIB)
    mine = torch.cuda.memory_snapshot()[0]
    cupti.alloc(mine["address"], mine["total_size"], NCCL)  # a pool of PyTorch's with an allocator of NCCL's
    book.shut(window)
    assert {name: level for name, (level, _, _) in figures(window).items() if level} == {
        "PyTorch's allocator": mine["total_size"] - segment["total_size"]
    }
    assert window.totals[0].level == 0
    del kept
