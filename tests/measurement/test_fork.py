from __future__ import annotations

import os
import subprocess
import sys


def test_a_child_is_inert_and_its_parent_is_not():
    script = """
import os
from ipygpumem.measurement import fork
fork.register()
fork.register()
child = os.fork()
if child == 0:
    os._exit(7 if fork.inert() else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), fork.inert())
"""
    assert hasattr(os, "fork")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "7 False\n"
