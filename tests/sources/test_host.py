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


def test_reading_matches_kernel():
    reading = read_host(pinned=5, available=True)
    process = psutil.Process()
    assert abs(reading.rss - process.memory_info().rss) < 2 * MIB
    assert abs(reading.peak - resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024) < 2 * MIB
    assert reading.total == psutil.virtual_memory().total
    assert 0 < reading.available < reading.total
    assert reading.pinned == 5
    assert read_host().available is None, "it takes 50 us"


def test_freed_memory_is_in_the_high_water_mark():
    script = """
from ipygpumem.sources.host import read_host, reset_peak
block = bytearray(200 << 20)
del block
before = read_host()
assert before.peak - before.rss > 150 << 20, before
assert reset_peak()
after = read_host()
assert after.peak - after.rss < 5 << 20, after
"""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("the Linux kernel does not support clear_refs")
    subprocess.run([sys.executable, "-c", script], check=True, timeout=200)


def test_psutil_is_used_without_proc(monkeypatch):
    monkeypatch.setattr("ipygpumem.sources.host._STATUS", "/nowhere/status")
    host._status.cache_clear()
    reading = read_host()
    assert abs(reading.rss - psutil.Process().memory_info().rss) < 2 * MIB
    assert reading.peak is None
    assert namespace_pids() == (os.getpid(),)


def test_failed_reset(monkeypatch):
    monkeypatch.setattr("pathlib.Path.open", _refuse)
    assert reset_peak() is False


def _refuse(*arguments, **options):
    raise PermissionError


def test_pids_in_all_namespaces(monkeypatch, tmp_path):
    status = tmp_path / "status"
    status.write_text("Name:\tpython\nNSpid:\t4000\t12\t1\n")
    monkeypatch.setattr("ipygpumem.sources.host._STATUS", str(status))
    assert namespace_pids() == (os.getpid(), 4000, 12, 1)


def test_reused_file_descriptor_is_not_read(tmp_path):
    """After closing all descriptors, a program may open another file that has the same descriptor."""
    read_host()
    descriptor = host._status(os.getpid())
    file = os.open(tmp_path / "other", os.O_RDWR | os.O_CREAT)
    os.dup2(file, descriptor)
    assert read_host().rss > 0
    os.close(file)
    host._status.cache_clear()
    os.close(descriptor)
