"""The overhead of a measurement, an empty cell, an eager loop, loading the extension, and a recording."""

from __future__ import annotations

import importlib.util
import os
import statistics
import subprocess
import sys
import textwrap
import time

CELLS = 300


def _gpu():
    try:
        import torch
    except ImportError:
        return None
    return torch if torch.cuda.is_available() else None


def _median(function, times=CELLS):
    samples = []
    for _ in range(times):
        start = time.perf_counter()
        function()
        samples.append(time.perf_counter() - start)
    return statistics.median(samples)


def _start_and_end():
    import ipygpumem
    from ipygpumem.measurement.measurement import Measurement
    from ipygpumem.measurement.runtime import current

    ipygpumem.preload_pytorch()
    runtime = current()

    def start_and_end():
        measurement = Measurement(runtime)
        measurement.begin()
        measurement.end()

    start_and_end()
    memory_kind = "one device" if runtime.monitor.devices else "host memory"
    cost = _median(start_and_end) * 1e6
    return [
        {
            "measure": f"one measurement, {memory_kind}, median",
            "value": f"{cost:.0f} us",
            "us": cost,
            "target": "<= 150 us",
        }
    ]


KERNEL = """
import statistics, sys, time
from jupyter_client.manager import start_new_kernel
manager, client = start_new_kernel()
def cell(code):
    message = client.execute(code)
    while True:
        reply = client.get_iopub_msg(timeout=60)
        if reply["parent_header"].get("msg_id") == message and reply["content"].get("execution_state") == "idle":
            break
    client.get_shell_msg(timeout=60)
for code in sys.argv[1:]:
    cell(code)
for _ in range(20):
    cell("0")
samples = []
for _ in range(100):
    start = time.perf_counter()
    cell("0")
    samples.append(time.perf_counter() - start)
print("MS", statistics.median(samples) * 1e3)
client.stop_channels()
manager.shutdown_kernel(now=True)
"""

START = (
    "import torch\nif torch.cuda.is_available(): torch.ones(64, 64, device='cuda') @ torch.ones(64, 64, device='cuda')"
)


def _kernel_cell(*setup):
    """Return the time of an empty cell in a real kernel, in milliseconds."""
    completed = subprocess.run(
        [sys.executable, "-c", KERNEL, *setup], capture_output=True, text=True, timeout=300, check=False
    )
    for line in completed.stdout.splitlines():
        if line.startswith("MS "):
            return float(line[3:])
    raise RuntimeError(completed.stderr)


def _empty_cell():
    rounds = [(_kernel_cell(START), _kernel_cell(START, "%load_ext ipygpumem")) for _ in range(3)]
    bare, with_ipygpumem = (statistics.median(values) for values in zip(*rounds, strict=True))
    rows = [
        {"measure": "empty cell, bare kernel", "value": f"{bare:.2f} ms", "ms": bare},
        {
            "measure": "empty cell, ipygpumem loaded",
            "value": f"{with_ipygpumem:.2f} ms = {with_ipygpumem / bare:.2f} x",
            "ms": with_ipygpumem,
            "ratio": with_ipygpumem / bare,
            "target": "<= 1.25 x",
        },
    ]
    if importlib.util.find_spec("ipyexperiments"):
        kind = "Pytorch" if _gpu() else "CPU"
        ipyexperiments = _kernel_cell(
            START, f"from ipyexperiments import IPyExperiments{kind}\nexp = IPyExperiments{kind}()"
        )
        rows.append(
            {
                "measure": "empty cell, ipyexperiments",
                "value": f"{ipyexperiments:.2f} ms = {ipyexperiments / bare:.2f} x",
            }
        )
    return rows


LOOP = """
import sys, time, statistics
sys.argv = ["ipython"]
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
import torch
shell.user_ns["device"] = "cuda" if torch.cuda.is_available() else "cpu"
shell.run_cell("import torch; x = torch.ones(8, device=device); y = x @ x", store_history=True)
shell.run_cell({setup!r}, store_history=True)
import time
shell.user_ns["out"] = out = []
cell = '''
import time
for i in range(2000): x = x + 1
t = time.perf_counter()
for i in range(30000): x = x + 1
if device == "cuda": torch.cuda.synchronize()
out.append(time.perf_counter() - t)
'''
for _ in range(7):
    shell.run_cell(cell, store_history=True)
print("S", statistics.median(out))
"""


def _loop(setup):
    code = LOOP.format(setup=setup)
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    for line in completed.stdout.splitlines():
        if line.startswith("S "):
            return float(line[2:])
    raise RuntimeError(completed.stdout + completed.stderr)


def _eager_loop():
    rounds = [(_loop("pass"), _loop("%load_ext ipygpumem")) for _ in range(4)]
    ratios = [with_ipygpumem / bare for bare, with_ipygpumem in rounds]
    bare, with_ipygpumem = (statistics.median(values) for values in zip(*rounds, strict=True))
    ratio = statistics.median(ratios)
    row = {
        "measure": "eager loop of 30,000 small ops in a cell, with / without",
        "value": f"{with_ipygpumem * 1e3:.0f} ms / {bare * 1e3:.0f} ms = {ratio:.3f} x",
        "ratio": ratio,
        "target": "<= 1.02 x",
    }
    return [row]


LOAD = """
import sys, time
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
import torch
start = time.perf_counter()
shell.run_line_magic("load_ext", "ipygpumem")
print("S", time.perf_counter() - start)
"""

IMPORT = """
import time
start = time.perf_counter()
import ipygpumem
print("S", time.perf_counter() - start)
"""


def _fresh_seconds(code):
    completed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    return float(next(line for line in completed.stdout.splitlines() if line.startswith("S "))[2:])


def _load():
    load = statistics.median(_fresh_seconds(LOAD) for _ in range(3))
    import_seconds = statistics.median(_fresh_seconds(IMPORT) for _ in range(5))
    return [
        {"measure": "%load_ext with torch already imported", "value": f"{load:.2f} s", "s": load, "target": "<= 2 s"},
        {
            "measure": "import ipygpumem in a running Python",
            "value": f"{import_seconds * 1e3:.1f} ms",
            "s": import_seconds,
            "target": "< 50 ms",
        },
    ]


RECORDING = """
import os, sys, tempfile, time
import torch
import ipygpumem
path = os.path.join(tempfile.mkdtemp(), "x.pickle")
layers = [torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(12)]
model = torch.nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
data = torch.ones(32, 256, device="cuda")
def train(steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(data).sum().backward()
        optimizer.step()
    torch.cuda.synchronize()
train(20)
def pytorch_only():
    torch.cuda.memory._record_memory_history(stacks="python", max_entries=1_000_000)
    train(STEPS)
    torch.cuda.memory._dump_snapshot(path)
    torch.cuda.memory._record_memory_history(enabled=None)
def with_ipygpumem():
    with ipygpumem.measure(snapshot=path):
        train(STEPS)
STEPS = 150
pytorch_only(); with_ipygpumem()
pairs = []
for _ in range(5):
    row = []
    for work in (pytorch_only, with_ipygpumem):
        start = time.perf_counter()
        work()
        row.append(time.perf_counter() - start)
    pairs.append(row)
import json
print("JSON " + json.dumps(pairs))
"""


def _recording():
    if _gpu() is None:
        return [{"measure": "train, record and save, compared with torch's own recording", "value": "needs a GPU"}]
    completed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(RECORDING)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    if completed.returncode:
        raise RuntimeError(completed.stderr)
    import json

    pairs = json.loads(next(line for line in completed.stdout.splitlines() if line.startswith("JSON "))[5:])
    ratio = statistics.median(with_ipygpumem / pytorch_only for pytorch_only, with_ipygpumem in pairs)
    pytorch_only, with_ipygpumem = (statistics.median(values) for values in zip(*pairs, strict=True))
    row = {
        "measure": "train, record and save, compared with torch's own recording",
        "value": f"{with_ipygpumem:.2f} s / {pytorch_only:.2f} s = {ratio:.3f} x",
        "ratio": ratio,
        "target": "<= 1.05 x",
    }
    return [row]


def _import():
    """Measure how much longer Python takes to start with `import ipygpumem`, using the shortest of several runs."""

    def shortest_run(code):
        times = []
        for _ in range(7):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
            times.append(time.perf_counter() - start)
        return min(times)

    bare = shortest_run("pass")
    cost = (shortest_run("import ipygpumem") - bare) * 1e3
    value = f"{cost:.1f} ms = {cost / bare / 1e3:.2f} x starting Python"
    return [{"measure": "import ipygpumem", "value": value, "ms": cost, "target": "<= 50 ms"}]


def run():
    return [*_import(), *_start_and_end(), *_load(), *_empty_cell(), *_eager_loop(), *_recording()]
