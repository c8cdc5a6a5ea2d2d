"""A forked child process must not use the parent's CUDA or NVML."""

from __future__ import annotations

import subprocess
import sys


def test_forked_child():
    script = """
import os
from ipygpumem.measurement.runtime import current
runtime = current()
child = os.fork()
if child == 0:
    os._exit(7 if current().forked else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), runtime.forked)
"""
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=200)
    assert process.stdout == "7 False\n"
