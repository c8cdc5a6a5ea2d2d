"""Fixtures for tests on a real GPU, for example a new process for code that can run only once per process."""

import fcntl
import gc
import json
import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items):
    gpu_tests = [item for item in items if Path(item.fspath).is_relative_to(Path(__file__).parent)]
    try:
        import torch

        reason = "" if torch.cuda.is_available() else "no NVIDIA GPU on this machine"
    except ImportError:
        reason = "torch is not installed"
    for item in gpu_tests:
        item.add_marker(pytest.mark.gpu)
        if reason:
            item.add_marker(pytest.mark.skip(reason=reason))


def run_in_new_process(code, timeout=240, **environment):
    """Run code in a new process, and return the values that it passes to ``emit(name=value)``.

    The returned dict also contains ``stdout``, ``stderr`` and ``returncode`` of the process.
    """
    head = "import json\ndef emit(**values):\n    print('VALUES ' + json.dumps(values), flush=True)\n"
    completed = subprocess.run(
        [sys.executable, "-c", head + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(CHECKOUT), str(CHECKOUT / "tests"), os.environ.get("PYTHONPATH", "")]),
            **environment,
        },
    )
    values = {}
    for line in completed.stdout.splitlines():
        if line.startswith("VALUES "):
            values.update(json.loads(line.removeprefix("VALUES ")))
    assert values and completed.returncode == 0, f"{completed.stdout}\n{completed.stderr}"
    values["stdout"], values["stderr"], values["returncode"] = completed.stdout, completed.stderr, completed.returncode
    return values


@pytest.fixture(scope="session")
def run_python():
    return run_in_new_process


@pytest.fixture(scope="session")
def torch():
    """PyTorch with CUDA initialized and the first kernels loaded, as after ``%load_ext``."""
    import torch

    import ipygpumem

    ipygpumem.preload_pytorch()
    return torch


@pytest.fixture(scope="module")
def most_of_the_gpu():
    """Wait until no other test process uses this fixture, because the tests of the module need most of the memory."""
    import torch

    path = Path(tempfile.gettempdir()) / f"ipygpumem-tests-{os.getuid()}.lock"
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        gc.collect()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        if free < 0.8 * total:
            pytest.fail(f"other processes use the GPU: only {free / total:.0%} of its memory is free")
        yield
        torch.cuda.empty_cache()


def other_processes():
    """Return the ids of the other processes that use the first GPU."""
    pynvml = pytest.importorskip("pynvml")
    pynvml.nvmlInit()
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(pynvml.nvmlDeviceGetHandleByIndex(0))
    return sorted({process.pid for process in processes} - {os.getpid()})


@pytest.fixture
def exclusive_gpu():
    """Fail with a clear message if other processes use the GPU, because the test expects exact sizes."""
    if before := other_processes():
        pytest.fail(f"the test requires exclusive use of the GPU: stop the other processes {before} and run it again")
    yield
    if after := other_processes():  # pytest shows this text if the test has failed
        print(f"the test requires exclusive use of the GPU, but at its end, the processes {after} used it, too")


@pytest.fixture(autouse=True)
def clean(request):
    if "torch" in request.fixturenames:
        for name in ("last_exc", "last_type", "last_value", "last_traceback"):
            vars(sys).pop(name, None)  # pytest keeps the traceback of a failed test, and with it the test's tensors
        gc.collect()
    yield
    if "torch" in request.fixturenames:
        import torch

        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


@pytest.fixture
def torch_on_two_gpus(torch):
    if torch.cuda.device_count() < 2:
        pytest.skip("the test needs two GPUs")
    return torch
