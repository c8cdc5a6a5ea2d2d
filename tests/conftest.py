"""Fixtures for every room: machines that are not there, and a package that has forgotten the test before."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import shutil
import signal
import sys

import pytest

# a script's shell has SIGINT ignored in what it starts behind it, and here tests interrupt
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# In tests of resident memory, a block of several MiB must come from the system and return to it, whatever ran before.
# glibc keeps such blocks once the process has freed some, and reuses gaps that smaller blocks have left.
_GLIBC = ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
if _GLIBC is not None:
    _M_MMAP_THRESHOLD = -3
    _GLIBC.mallopt(_M_MMAP_THRESHOLD, 4 << 20)


def pytest_runtest_setup(item):
    if item.get_closest_marker("node") and shutil.which("npm") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("Node is not installed, and tests are not skipped in CI")
        pytest.skip("Node is not installed: the viewer's JavaScript is not tested")


def forget():
    """Put the package back to what it was when it was imported: no session, no peaks, no recording, no wrapper."""
    singletons = (
        ("measurement.peaks", "PEAKS"),
        ("measurement.overlap", "OVERLAPS"),
        ("features.oom.observer", "FAILURES"),
    )
    for name, book in singletons:
        module = sys.modules.get(f"ipygpumem.{name}")
        if module is not None:
            getattr(module, book).__init__()
    history = sys.modules.get("ipygpumem.measurement.allocation_history")
    if history is not None:
        history.History._running = history.History._wrapper = None
    fork = sys.modules.get("ipygpumem.measurement.fork")
    if fork is not None:
        fork._in_child = False
    cuda = sys.modules.get("ipygpumem.sources.cuda")
    if cuda is not None:
        cuda._runtime.cache_clear()
    pytorch = sys.modules.get("ipygpumem.sources.pytorch")
    if pytorch is not None:
        for name, original in pytorch._originals.items():
            if hasattr(sys.modules["torch"]._C, name):
                setattr(sys.modules["torch"]._C, name, original)
        pytorch._originals.clear()
        vars(sys.modules.get("torch", pytorch)).pop(pytorch._OOM_LISTENERS, None)
    _forget_outside()
    session = sys.modules.get("ipygpumem.measurement.session")
    if session is not None:
        session._session = session.Session()


def _forget_outside():
    outside = sys.modules.get("ipygpumem.features.outside.cupti_records")
    if outside is not None:
        outside.OUTSIDE.close()
        outside.OUTSIDE.__init__()
    sampler = sys.modules.get("ipygpumem.measurement.sampler")
    if sampler is not None:
        sampler.SAMPLER.close()
        sampler.SAMPLER.__init__()


@pytest.fixture(autouse=True, scope="module")
def frozen_imports():
    """Freeze the objects of pytest, PyTorch and earlier tests: walking a heap with all of them takes a second."""
    gc.collect()
    gc.freeze()
    if _GLIBC is not None:
        _GLIBC.malloc_trim(0)


@pytest.fixture(autouse=True)
def small_heap(request, monkeypatch):
    """Make a heap walk skip frozen objects; ``@pytest.mark.whole_heap`` lets it visit everything."""
    if request.node.get_closest_marker("whole_heap"):
        gc.unfreeze()
        yield
        gc.freeze()
    else:
        monkeypatch.setattr(gc, "get_freeze_count", lambda: 0)
        yield


@pytest.fixture(autouse=True)
def fresh_package():
    """No test sees another's session."""
    yield
    forget()


@pytest.fixture
def make_gpu(fresh_package):
    """Build machines: ``make_gpu(2)``, ``make_gpu(nvml_devices=[...], backend="cudaMallocAsync")``; one at a time."""
    from fakes.cuda import FakeGpu

    machines = []

    def make(*arguments, **options):
        forget()
        for machine in machines:
            machine.uninstall()
        machines.append(FakeGpu(*arguments, **options).install())
        return machines[-1]

    yield make
    forget()
    for machine in reversed(machines):
        machine.uninstall()


@pytest.fixture
def fake_gpu(make_gpu):
    """One H200 under torch and NVML, CUDA not started."""
    return make_gpu()


@pytest.fixture
def two_gpus(make_gpu):
    """Two H200s under torch and NVML, CUDA not started."""
    return make_gpu(2)


@pytest.fixture
def no_cupti(monkeypatch, tmp_path):
    """A process that has not loaded CUPTI. PyTorch's CUDA build loads it when it is imported."""
    from ipygpumem.sources.cupti import library

    maps = tmp_path / "maps without cupti"
    maps.write_text("7f00-7f01 r-xp 00000000 00:00 1 /usr/lib/libc.so.6\n")
    monkeypatch.setattr(library, "Path", lambda name: maps)


@pytest.fixture
def fake_nvml():
    """An NVML library with one card, and no CUDA."""
    from fakes.nvml import FakeNvml, FakeNvmlDevice

    nvml = FakeNvml([FakeNvmlDevice()]).install()
    yield nvml
    nvml.uninstall()
