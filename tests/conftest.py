"""Fixtures for all tests: fake GPUs, and a new runtime for each test."""

from __future__ import annotations

import ctypes
import functools
import gc
import inspect
import os
import platform
import shutil
import signal
import sys
import traceback
from importlib.metadata import version
from pathlib import Path

import hypothesis
import pytest

import ipygpumem

# shells ignore SIGINT in background processes, but some tests send it
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# Hypothesis chooses the same examples in each run, however slowly they are generated and tested. The programs in
# tests/fuzz choose others each time.
hypothesis.settings.register_profile(
    "tests",
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.function_scoped_fixture],
)
hypothesis.settings.load_profile("tests")

# several test processes share the cores, and waiting OpenMP threads occupy a core
for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

# In tests of resident memory, a block of several MiB must come from the system and return to it, independently
# of earlier tests. glibc keeps such blocks once the process has freed some, and reuses gaps that smaller blocks left.
_GLIBC = ctypes.CDLL(None) if platform.libc_ver()[0] == "glibc" else None
if _GLIBC is not None:
    _M_MMAP_THRESHOLD = -3
    _GLIBC.mallopt(_M_MMAP_THRESHOLD, 4 << 20)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Disable garbage collection during test collection, which creates many objects and hardly any garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.set_threshold(20_000, 10, 10)


def pytest_configure(config):
    """Ignore warnings that PyTorch 2.4, ipywidgets 7 and matplotlib 3.6 cause."""
    if version("torch").startswith("2.4"):
        config.addinivalue_line("filterwarnings", "ignore:`torch.cpu.amp.autocast:FutureWarning")
        config.addinivalue_line("filterwarnings", "ignore:You are using `torch.load`:FutureWarning")
    if version("ipywidgets").startswith("7."):
        config.addinivalue_line("filterwarnings", "ignore:The `ipykernel.comm.Comm` class:DeprecationWarning")
        config.addinivalue_line("filterwarnings", "ignore:Deprecated in traitlets 4.1:DeprecationWarning")
    if version("matplotlib").startswith("3.6"):
        config.addinivalue_line("filterwarnings", "ignore:.* deprecated - use:DeprecationWarning")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Run the tests that use a browser first, and then the tests that use a kernel. They take the longest.

    In random order, each test process would start a browser and JupyterLab, and again for each module. The order within
    both groups remains random.
    """
    items.sort(key=lambda item: (not item.get_closest_marker("browser"), not item.get_closest_marker("kernel")))


class FailureLog:
    """Print each failure immediately, so that the output contains it even if the test run is stopped."""

    def __init__(self, reporter):
        self.reporter = reporter

    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.reporter.write_line(f"\n{report.nodeid} failed in {report.when}:\n{report.longreprtext[-2000:]}")


def pytest_sessionstart(session):
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if os.environ.get("CI") == "true" and reporter is not None:
        session.config.pluginmanager.register(FailureLog(reporter))


def pytest_runtest_setup(item):
    if item.get_closest_marker("node") and shutil.which("npm") is None:
        if os.environ.get("CI") == "true":
            pytest.fail("Node is not installed, and tests are not skipped in CI")
        pytest.skip("Node is not installed: the viewer's JavaScript is not tested")


_TESTS_AND_PACKAGE = (str(Path(__file__).parent), str(Path(ipygpumem.__file__).parent))


@functools.cache
def is_own_module(name):
    return str(getattr(sys.modules[name], "__file__", None)).startswith(_TESTS_AND_PACKAGE)


def close_runtime():
    """Close the runtime of the package and forget its out-of-memory observers; the next use creates a new runtime."""
    runtime = sys.modules.get("ipygpumem.measurement.runtime")
    if runtime is not None:
        runtime.close()
    torch = sys.modules.get("torch")
    if torch is not None:
        vars(torch).pop("_ipygpumem_oom_listeners", None)  # each fake machine has its own list of observers


@pytest.fixture(autouse=True)
def new_runtime():
    """Close the runtime after the test, so that each test has its own."""
    yield
    close_runtime()


@pytest.fixture(autouse=True, scope="module")
def frozen_imports():
    """Freeze existing objects: walking a heap with those of pytest, PyTorch and earlier tests takes a second."""
    gc.collect()
    gc.freeze()
    if _GLIBC is not None:
        _GLIBC.malloc_trim(0)


_PYTEST_FOLDERS = (f"{os.sep}_pytest{os.sep}", f"{os.sep}pluggy{os.sep}")


@pytest.fixture(autouse=True, scope="module")
def small_heap(request):
    """Let searches for holders skip frozen objects, the other test modules, pytest's objects and this package.

    If the package is installed, searches skip it as they skip all libraries. The frames of pytest and
    of pluggy, which calls its hooks, refer to all tests. The `monkeypatch` fixture is not used because its changes
    would be undone only after a fake GPU has been removed.
    """
    from ipygpumem.features.holders.tracked_objects import TrackedObjects  # here, because it imports NumPy

    config = request.config
    pytest_objects = (request.session.items, config, config.pluginmanager, *config.pluginmanager.get_plugins())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "get_freeze_count", lambda: 375)  # as in Python 3.12, where no call froze them
        initialize = TrackedObjects.__init__

        def initialize_small(heap, *arguments, **options):
            initialize(heap, *arguments, **options)
            if heap._finds_tracked:
                modules = [sys.modules[name] for name in list(sys.modules) if is_own_module(name)]
                own = [vars(module) for module in modules if module is not request.module]
                if heap._stop_ids is not None:
                    heap._stop_ids = {*heap._stop_ids, *map(id, own)}
                heap.seen_ids.update(map(id, [*own, *pytest_objects]))
                for frame, _ in traceback.walk_stack(None):
                    if any(folder in frame.f_code.co_filename for folder in _PYTEST_FOLDERS):
                        heap.seen_ids.update(map(id, frame.f_locals.values()))

        patch.setattr(TrackedObjects, "__init__", initialize_small)
        yield


@pytest.fixture(autouse=True, scope="session")
def long_time_limits():
    """Raise the time limits after which the package stops searching. Tests of these limits set their own."""
    from ipygpumem.features.holders import collect, search
    from ipygpumem.features.oom import expandable_segments, observer
    from ipygpumem.measurement import periodic_thread

    with pytest.MonkeyPatch.context() as patch:
        for function in (collect.holders, collect.find_holders, search.search_holders):
            patch.setitem(inspect.unwrap(function).__kwdefaults__, "limit", 300.0)
        patch.setattr(collect, "_CELL_LIMIT", 300.0)
        patch.setattr(expandable_segments, "_TIME_LIMIT", 300.0)
        patch.setattr(observer, "_SEARCH_LIMIT", 300.0)
        patch.setattr(periodic_thread, "_JOIN_TIMEOUT", 60.0)
        yield


@pytest.fixture
def default_handler():
    """Install Python's default handler of SIGINT, and check that it is still installed after the test."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    signal.signal(signal.SIGINT, previous)


@pytest.fixture
def make_gpu(new_runtime):
    """A function that replaces the fake machine: ``make_gpu(2)``, ``make_gpu(backend="cudaMallocAsync")``."""
    from fakes.cuda import FakeGpu

    machines = []

    def make(*arguments, **options):
        close_runtime()
        for machine in machines:
            machine.uninstall()
        machines.append(FakeGpu(*arguments, **options).install())
        return machines[-1]

    yield make
    close_runtime()
    for machine in reversed(machines):
        machine.uninstall()


@pytest.fixture
def fake_gpu(make_gpu):
    """A fake machine with one H200, on which CUDA is not initialized."""
    return make_gpu()


@pytest.fixture
def two_gpus(make_gpu):
    """A fake machine with two H200s, on which CUDA is not initialized."""
    return make_gpu(2)


@pytest.fixture
def no_cupti(monkeypatch, tmp_path):
    """Simulate a process that has not loaded CUPTI, which PyTorch's CUDA build loads when it is imported."""
    from ipygpumem.sources import host

    maps = tmp_path / "maps without cupti"
    maps.write_text("7f00-7f01 r-xp 00000000 00:00 1 /usr/lib/libc.so.6\n")
    monkeypatch.setattr(host, "_MAPS", str(maps))


@pytest.fixture
def fake_nvml():
    """A fake NVML library with one device, without CUDA."""
    from fakes.nvml import FakeNvml, FakeNvmlDevice

    nvml = FakeNvml([FakeNvmlDevice()]).install()
    yield nvml
    nvml.uninstall()
