"""Tests of the two native callbacks that CUPTI invokes."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from pathlib import Path

import pytest

from fakes.cupti import _COMPLETE, _REQUEST
from fakes.workers import exit_status_of_child
from ipygpumem.core.errors import CuptiError
from ipygpumem.sources.cupti import buffers

pytest.importorskip("llvmlite")


@pytest.fixture
def instance():
    return buffers.ActivityBuffers()  # a separate instance, as other tests may have used buffers of the shared one


def request(instance):
    at, size, max_records = ctypes.c_void_p(1), ctypes.c_size_t(2), ctypes.c_size_t(3)
    _REQUEST(instance.request)(at, size, max_records)
    assert max_records.value == 0
    return at.value, size.value


def complete(instance, address, valid, size=1 << 17):
    _COMPLETE(instance.complete)(None, 0, address, size, valid)


def test_pool_is_a_singleton():
    assert buffers.ActivityBuffers.shared() is buffers.ActivityBuffers.shared()


def test_buffer_is_requested_completed_and_returned(instance):
    address, size = request(instance)
    assert size == 1 << 17
    assert address % 8 == 0
    ctypes.memset(address, 7, size)
    complete(instance, address, 640)
    assert instance.completed() == [(address, 640)]
    assert instance.completed() == []
    instance.recycle(address)


def test_requests_without_a_free_buffer_are_counted(instance):
    lost_count = instance.lost
    addresses = [request(instance)[0] for _ in range(256)]
    assert len(set(addresses)) == 256
    assert request(instance) == (None, 0)
    assert instance.lost == lost_count + 1
    for address in addresses:
        complete(instance, address, 128)
    assert instance.lost == lost_count + 1, "all messages fit into the pipe"
    for address, _ in instance.completed():
        instance.recycle(address)
    assert request(instance)[0] is not None


def test_unknown_buffers_are_ignored(instance):
    complete(instance, 0xDEAD000, 128)
    instance.wake()
    address, _ = request(instance)
    complete(instance, address, (1 << 17) + 1)
    assert instance.completed() == []
    instance.recycle(address)


def test_eight_threads(instance):
    lost_count, read_addresses, stop = instance.lost, [], threading.Event()

    def use():
        for _ in range(3000):
            address, _ = request(instance)
            if address is None:
                continue
            ctypes.c_uint64.from_address(address).value = address
            complete(instance, address, 8)

    def fetch():
        while not stop.is_set():
            look()

    def look():
        for address, valid in instance.completed():
            assert valid == 8
            assert ctypes.c_uint64.from_address(address).value == address
            read_addresses.append(address)
            instance.recycle(address)

    threads = [threading.Thread(target=use) for _ in range(8)]
    reader = threading.Thread(target=fetch)
    for thread in (*threads, reader):
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    reader.join()
    look()
    assert len(read_addresses) + (instance.lost - lost_count) == 8 * 3000
    assert len(read_addresses) >= 256, "each was used at least once"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="os.fork is not available")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_messages_in_forked_child_are_dropped(instance):
    address, _ = request(instance)

    def complete_and_request():
        complete(instance, address, 128)
        return request(instance) == (None, 0)

    assert exit_status_of_child(complete_and_request) == 0
    assert instance.completed() == []
    instance.recycle(address)


def test_without_llvmlite(monkeypatch):
    monkeypatch.setitem(sys.modules, "llvmlite", None)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(CuptiError, match=r"^llvmlite is not installed: pip install 'ipygpumem\[outside\]'$"):
        buffers.ActivityBuffers()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_descriptors_are_closed_if_compiling_fails(monkeypatch):
    monkeypatch.setattr(buffers, "_CODE", "define nonsense")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(CuptiError, match=r"^llvmlite cannot compile the CUPTI callbacks: "):
        buffers.ActivityBuffers()
    assert len(list(Path("/proc/self/fd").iterdir())) == before
