"""CPU usage of the sampler, the live display and the monitor in a real kernel."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import sys
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel()
def cell(code, seconds=60):
    request = client.session.msg("execute_request", dict(code=code, silent=False, store_history=True, allow_stdin=True))
    request["metadata"] = {"cellId": "c1"}  # as a notebook does; consoles have no live display
    client.shell_channel.send(request)
    message = request["header"]["msg_id"]
    while True:
        reply = client.get_iopub_msg(timeout=seconds)
        if reply["parent_header"].get("msg_id") != message:
            continue
        if reply["content"].get("name") == "stdout":
            sys.stdout.write(reply["content"]["text"])
        if reply["msg_type"] == "error":
            sys.stdout.write("\\n".join(reply["content"]["traceback"]))
        if reply["content"].get("execution_state") == "idle":
            return
for code in sys.argv[1:]:
    cell(code)
client.stop_channels()
manager.shutdown_kernel(now=True)
"""
START = f"""
import sys, time, torch, threading
if not torch.cuda.is_available():
    sys.path.insert(0, {str(Path(__file__).parents[1])!r})
    from fakes.cuda import FakeGpu
    gpu = FakeGpu().install()
%load_ext ipygpumem
"""
IDLE = """
start = time.process_time()
time.sleep(12)
print("SHARE", (time.process_time() - start) / 12)
"""


def _share(*cells):
    completed = subprocess.run(
        [sys.executable, "-c", CODE, *cells], capture_output=True, text=True, timeout=180, check=False
    )
    for line in completed.stdout.splitlines():
        if line.startswith("SHARE "):
            return float(line[6:])
    raise RuntimeError(completed.stdout + completed.stderr)


def run():
    """Measure the CPU time of the process while a cell sleeps, so that only this package is active."""
    try:
        import torch
    except ImportError:
        return []
    machine = "on a GPU" if torch.cuda.is_available() else "on a fake GPU"
    off = "%config GPUMem.live = 'off'"
    sampler = "from ipygpumem.measurement.runtime import current; current().sampler.begin = lambda devices: None"
    bare = _share(START, off, sampler, IDLE)
    rows = []
    for name, cells, target in (
        ("the sampler, every 5 ms", (off,), None),
        ("the live display, twice a second", (sampler,), None),
        ("the monitor, once a second", (off, sampler, "%gpumem monitor"), "<= 0.5 %"),
    ):
        share = _share(START, *cells, IDLE) - bare
        rows.append(
            {
                "measure": f"{name}, {machine}, of one core",
                "value": f"{share:.2%}",
                "share": share,
                "target": target,
            }
        )
    return rows
