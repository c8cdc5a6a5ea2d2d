"""The overhead of a measurement, an empty cell, an eager loop, loading the extension, and a recording."""

from __future__ import annotations

import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
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
    functions = [start_and_end]
    if runtime.monitor.devices:
        functions.append(_bare_reads(runtime))
    times = {function: [] for function in functions}
    for _ in range(10):
        for function in functions:
            times[function].append(_median(function, 100))
    cost, *reads = (statistics.median(values) * 1e6 for values in times.values())
    row = {"measure": f"one measurement, {memory_kind}, median", "value": f"{cost:.0f} us", "us": cost}
    if reads:
        row["value"] += f" = {cost / reads[0]:.2f} x reading all counters twice ({reads[0]:.0f} us)"
        row |= {"ratio": cost / reads[0], "target": "<= 1.5 x"}
    return [row]


def _bare_reads(runtime):
    """Return a function that only calls the libraries that provide the counters, as two complete readings do."""
    import ctypes

    import pynvml
    import torch

    from ipygpumem.sources.cuda import RelaxedCaptureMode

    stats, reset = map(runtime.peaks._functions.original, ("_cuda_memoryStats", "_cuda_resetPeakMemoryStats"))
    handle, status = runtime.monitor.devices[0].handle, os.open("/proc/self/status", os.O_RDONLY)
    memory, processes = map(
        pynvml._nvmlGetFunctionPointer, ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetComputeRunningProcesses_v3")
    )

    def read():
        torch.cuda.is_current_stream_capturing()
        torch._C._cuda_hasPrimaryContext(0)
        info = pynvml.c_nvmlMemory_v2_t(version=pynvml.nvmlMemory_v2)
        memory(handle, ctypes.byref(info))
        count, entries = ctypes.c_uint(32), (pynvml.c_nvmlProcessInfo_v2_t * 32)()
        processes(handle, ctypes.byref(count), entries)
        stats(0)
        torch._C._cuda_hostMemoryStats()
        os.pread(status, 4096, 0)

    def reads():
        read()
        reset(0)
        read()
        with RelaxedCaptureMode():
            torch.cuda.current_stream(0).query()

    return reads


KERNELS = """
import json, statistics, sys, time
from concurrent.futures import ThreadPoolExecutor
from jupyter_client.manager import start_new_kernel
variants, rounds = json.loads(sys.argv[1]), int(sys.argv[2])
with ThreadPoolExecutor() as pool:
    kernels = list(pool.map(lambda _: start_new_kernel(), variants))
def cell(client, code):
    start = time.perf_counter()
    message = client.execute(code)
    while True:
        reply = client.get_iopub_msg(timeout=60)
        if reply["parent_header"].get("msg_id") == message:
            if reply["content"].get("name") == "stdout" and "VALUE" in reply["content"]["text"]:
                values.append(float(reply["content"]["text"].split()[1]))
            if reply["content"].get("execution_state") == "idle":
                break
    client.get_shell_msg(timeout=60)
    return time.perf_counter() - start
values = []
times = [[] for _ in variants]
def set_up(kernel, variant):
    for line in [*variant[0], *[variant[1]] * 20]:
        cell(kernel[1], line)
with ThreadPoolExecutor() as pool:
    list(pool.map(set_up, kernels, variants))
for number in range(rounds):
    for index in range(len(variants))[:: 1 if number % 2 else -1]:
        times[index].append(cell(kernels[index][1], variants[index][1]))
for (manager, client), (setup, code) in zip(kernels, variants):
    cell(client, "import gc; gc.collect(); print('VALUE', open('/proc/self/statm').read().split()[1])")
    client.stop_channels()
    manager.shutdown_kernel(now=True)
print("JSON " + json.dumps({"ms": [statistics.median(t) * 1e3 for t in times], "min": [min(t) * 1e3 for t in times],
                            "pages": values}))
"""

START = (
    "import torch\nif torch.cuda.is_available(): torch.ones(64, 64, device='cuda') @ torch.ones(64, 64, device='cuda')"
)


def _kernel_cells(*variants, rounds=150):
    """Run cells alternately in one kernel for each pair ``(setup, cell)``. Return their median and minimum times."""
    completed = subprocess.run(
        [sys.executable, "-c", KERNELS, json.dumps(variants), str(rounds)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    for line in completed.stdout.splitlines():
        if line.startswith("JSON "):
            return json.loads(line[5:])
    raise RuntimeError(completed.stderr)


LOAD_EXTENSION = "%load_ext ipygpumem"


EMPTY_CELL_SETS = 3


def _empty_cell():
    """Measure empty cells in several sets of kernels, because the medians of equal kernels differ by up to 4%."""
    variants = [([START], "0"), ([START, LOAD_EXTENSION], "0")] * 2
    if importlib.util.find_spec("ipyexperiments"):
        kind = "Pytorch" if _gpu() else "CPU"
        code = f"from ipyexperiments import IPyExperiments{kind}\nexp = IPyExperiments{kind}()"
        variants.append(([START, code], "0"))
    results = [_kernel_cells(*variants) for _ in range(EMPTY_CELL_SETS)]
    bare, loaded, other = (
        [ms for result in results for ms in result["ms"][kernels]]
        for kernels in (slice(0, 4, 2), slice(1, 4, 2), slice(4, 5))
    )
    shortest = [min(ms for result in results for ms in result["min"][first:4:2]) for first in (0, 1)]
    ratio = statistics.mean(loaded) / statistics.mean(bare)
    sets = [sum(result["ms"][1:4:2]) / sum(result["ms"][:4:2]) for result in results]
    rows = [
        {
            "measure": "empty cell, bare kernel",
            "value": f"{statistics.mean(bare):.2f} ms (min {shortest[0]:.2f})",
            "ms": statistics.mean(bare),
        },
        {
            "measure": "empty cell, ipygpumem loaded",
            "value": f"{statistics.mean(loaded):.2f} ms (min {shortest[1]:.2f}) = {ratio:.2f} x "
            f"(sets of kernels: {', '.join(f'{value:.2f}' for value in sets)})",
            "ms": statistics.mean(loaded),
            "ratio": ratio,
            "target": "<= 1.10 x",
        },
    ]
    if other:
        value = f"{statistics.mean(other):.2f} ms = {statistics.mean(other) / statistics.mean(bare):.2f} x"
        rows.append({"measure": "empty cell, ipyexperiments", "value": value})
    return rows


DEVICE = "device = 'cuda' if torch.cuda.is_available() else 'cpu'"
SETTINGS = "settings = get_ipython().magics_manager.registry['GPUMem']; settings.min_change = 1 << 40"


def _report_cell():
    """Measure how much longer a cell takes if it shows a report."""
    cells = [f"torch.ones(2 << 20, device=device); settings.report = '{report}'" for report in ("changed", "always")]
    result = _kernel_cells(*(([START, DEVICE, LOAD_EXTENSION, SETTINGS], cell) for cell in cells * 2))
    without, with_report = (statistics.mean(result["ms"][first::2]) for first in (0, 1))
    shortest = min(result["min"][1::2]) - min(result["min"][::2])
    return [
        {
            "measure": "cell with a report, longer than without",
            "value": f"{with_report:.2f} ms - {without:.2f} ms = {with_report - without:.2f} ms (min {shortest:.2f})",
            "ms": with_report - without,
            "target": "<= 1.0 ms",
        }
    ]


PROGRAM = """
import numpy
words = {str(number): [number] for number in range(20_000)}
values, counts = numpy.unique(numpy.arange(20_000) % 100, return_inverse=True)
numpy.searchsorted(values, counts[numpy.argsort(counts, kind="stable")])
x = torch.ones(64, 64, device=device)
torch.nn.functional.layer_norm(torch.softmax(x.bfloat16() @ x.bfloat16(), -1).float(), (64,)).relu().sum().item()
del words, values, counts, x
"""


MEMORY_ROUNDS = 3


def _memory():
    """Measure the resident memory of kernels after the same cells, with and without the extension.

    The kernels first run an ordinary program, because code and memory that any program uses are not those of the
    extension. The memory of kernels that run the same cells differs by up to 1.3 MiB. The value is therefore the median
    of several pairs of kernels.
    """
    cells = ["x = torch.ones(2 << 20, device=device); del x"] * 500
    work = "x = [torch.ones(1000, device=device) for _ in range(100)]; del x"
    start = [START, DEVICE, PROGRAM]
    with tempfile.TemporaryDirectory() as folder:
        recorded = f"%%gpumem --snapshot {folder}/x.pickle\n{work}" if _gpu() else work
        bare = [*start, *cells, *[work] * 20]
        loaded = [*start, LOAD_EXTENSION, *cells, *[recorded] * 20, *["%gpumem who"] * 20]
        variants = [(bare, "0"), (loaded, "0"), ([*start, LOAD_EXTENSION], "0")]
        pages = [_kernel_cells(*variants, rounds=1)["pages"] for _ in range(MEMORY_ROUNDS)]
    mib = os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    differences = [(with_extension - without) * mib for without, with_extension, _ in pages]
    after_loading = statistics.median((with_extension - at_start) * mib for _, with_extension, at_start in pages)
    difference, values = statistics.median(differences), ", ".join(f"{value:.1f}" for value in sorted(differences))
    return [
        {
            "measure": "kernel after 500 reports, 20 recordings, 20 searches: more memory than without the extension",
            "value": f"{difference:.1f} MiB (median of {values}), of which {after_loading:.1f} MiB after loading",
            "mib": difference,
            "target": "<= 5 MiB",
        }
    ]


LOOP = """
import json, sys, time
sys.argv = ["ipython"]
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
import torch
shell.user_ns["device"] = "cuda" if torch.cuda.is_available() else "cpu"
shell.run_cell("import time, torch; x = torch.ones(8, device=device); y = x @ x", store_history=True)
cell = '''
for i in range(2000): x = x + 1
t = time.perf_counter()
for i in range(30000): x = x + 1
if device == "cuda": torch.cuda.synchronize()
out.append(time.perf_counter() - t)
'''
out = {"bare": [], "loaded": []}
for number in range(13):
    for name in list(out)[:: 1 if number % 2 else -1]:
        shell.run_cell("%load_ext ipygpumem" if name == "loaded" else "pass", store_history=True)
        shell.user_ns["out"] = out[name]
        shell.run_cell(cell, store_history=True)
        shell.run_cell("%unload_ext ipygpumem" if name == "loaded" else "pass", store_history=True)
print("JSON " + json.dumps([out["bare"][1:], out["loaded"][1:]]))
"""


def _eager_loop():
    """Run the loop alternately with and without the extension in one process, because processes differ in speed."""
    rounds = []
    for _ in range(3):
        completed = subprocess.run(
            [sys.executable, "-c", LOOP], capture_output=True, text=True, timeout=300, check=False
        )
        line = next((line for line in completed.stdout.splitlines() if line.startswith("JSON ")), None)
        if line is None:
            raise RuntimeError(completed.stdout + completed.stderr)
        rounds.append(json.loads(line[5:]))
    ratio = statistics.median(loaded / bare for pair in rounds for bare, loaded in zip(*pair, strict=True))
    bare, loaded = ([seconds * 1e3 for pair in rounds for seconds in pair[index]] for index in (0, 1))
    value = f"{statistics.median(loaded):.0f} ms / {statistics.median(bare):.0f} ms = {ratio:.3f} x"
    row = {
        "measure": "eager loop of 30,000 small ops in a cell, with / without",
        "value": f"{value} (min {min(loaded):.0f} / {min(bare):.0f} ms)",
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
    functions = (_import, _start_and_end, _load, _empty_cell, _report_cell, _memory, _eager_loop, _recording)
    return [row for function in functions for row in function()]
