"""Tests of the names of other kernels, which are started with jupyter_client."""

from __future__ import annotations

import os

import psutil
import pytest

from ipygpumem.sources import host as processes
from ipygpumem.sources.host import ProcessInfoCache

pytest.importorskip("ipykernel")


@pytest.fixture
def kernel(monkeypatch, make_manager):
    """Start a real kernel with the session name that a Jupyter server would set."""
    monkeypatch.setattr(processes, "_may_be_nested", lambda: False)
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    manager = make_manager()
    manager.start_kernel(env={**os.environ, "JPY_SESSION_NAME": "/home/me/train.ipynb"})
    client = manager.client()
    client.start_channels()
    client.wait_for_ready(timeout=200)
    yield client, manager.provisioner.pid
    client.stop_channels()


def test_kernel_and_its_child(kernel):
    client, pid = kernel
    process = ProcessInfoCache().lookup(pid, trusted=True)
    assert (process.role, process.notebook, process.label) == (
        "kernel",
        "/home/me/train.ipynb",
        "kernel of train.ipynb",
    )
    assert "-m ipykernel" in process.name
    outputs = []
    code = "import subprocess; child = subprocess.Popen(['/bin/sleep', '300']); print(child.pid)"
    client.execute_interactive(
        code, timeout=200, output_hook=lambda message: outputs.append(message["content"].get("text", ""))
    )
    child_pid = int("".join(outputs))
    child = ProcessInfoCache().lookup(child_pid, trusted=True)
    assert (child.role, child.name) == ("", "sleep"), "the child of a kernel is not a kernel"
    assert processes._is_descendant(psutil.Process(child_pid)), "a grandchild is a descendant"
    client.execute_interactive("child.kill()", timeout=200)
