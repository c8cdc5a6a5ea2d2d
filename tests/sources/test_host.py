from __future__ import annotations

import os
import resource
import subprocess
import sys

import psutil
import pytest

from ipygpumem.sources import host
from ipygpumem.sources.host import namespace_pids, read_host, reset_peak

MIB = 1 << 20


def test_the_reading_is_the_kernels():
    reading = read_host(pinned=5, available=True)
    process = psutil.Process()
    assert abs(reading.rss - process.memory_info().rss) < 2 * MIB
    assert abs(reading.peak - resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024) < 2 * MIB
    assert reading.total == psutil.virtual_memory().total
    assert 0 < reading.available < reading.total
    assert reading.pinned == 5
    assert read_host().available is None, "costs 50 us: only when asked for"


def test_memory_that_came_and_went_is_in_the_high_water_mark():
    script = """
from ipygpumem.sources.host import read_host, reset_peak
held = bytearray(200 << 20)
del held
before = read_host()
assert before.peak - before.rss > 150 << 20, before
assert reset_peak()
after = read_host()
assert after.peak - after.rss < 5 << 20, after
"""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("this kernel has no clear_refs")
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_without_proc_the_library_tells(monkeypatch):
    monkeypatch.setattr("ipygpumem.sources.host._STATUS", "/nowhere/status")
    host._status.cache_clear()
    reading = read_host()
    assert abs(reading.rss - psutil.Process().memory_info().rss) < 2 * MIB
    assert reading.peak is None
    assert namespace_pids() == (os.getpid(),)


def test_a_reset_that_the_system_refuses_is_told(monkeypatch):
    monkeypatch.setattr("pathlib.Path.open", _refuse)
    assert reset_peak() is False


def _refuse(*arguments, **options):
    raise PermissionError


def test_our_numbers_in_every_namespace_own_first(monkeypatch, tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nNSpid:\t4000\t12\t1\n")
    monkeypatch.setattr("ipygpumem.sources.host._STATUS", str(status))
    assert namespace_pids() == (os.getpid(), 4000, 12, 1)


def test_a_stranger_on_our_descriptor_is_not_read(tmp_path):
    """A program that closes every descriptor may get ours back for a file of its own."""
    read_host()
    ours = host._status(os.getpid())
    other = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    os.dup2(other, ours)
    assert read_host().rss > 0
    os.close(other)
    host._status.cache_clear()
    os.close(ours)
