"""Fixtures for tests on a real GPU, such as new processes for code that can run only once in a process."""

import json
import os
import subprocess
import sys
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


def run_fresh(code, timeout=240, **environment):
    """Run code in a new process, and return the arguments of its calls of ``tell(...)``."""
    head = "import json\ndef tell(**facts):\n    print('FACTS ' + json.dumps(facts), flush=True)\n"
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
    facts = {}
    for line in completed.stdout.splitlines():
        if line.startswith("FACTS "):
            facts.update(json.loads(line[6:]))
    assert facts and completed.returncode == 0, f"{completed.stdout}\n{completed.stderr}"
    facts["stdout"], facts["stderr"], facts["returncode"] = completed.stdout, completed.stderr, completed.returncode
    return facts


@pytest.fixture
def fresh():
    return run_fresh


@pytest.fixture(scope="session")
def torch():
    """CUDA is initialized and the first kernels are loaded, as after ``%load_ext``."""
    import torch

    import ipygpumem

    ipygpumem.preload_pytorch()
    return torch


@pytest.fixture(autouse=True)
def clean(request):
    yield
    if "torch" in request.fixturenames:
        import gc

        import torch

        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()


@pytest.fixture
def two(torch):
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU only: this needs two")
    return torch
