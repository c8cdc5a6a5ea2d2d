"""Snapshots: reading, replay, summary and size, compared with `pickle.load` and PyTorch's `_memory_viz trace`."""

from __future__ import annotations

import importlib.util
import json
import lzma
import pickle
import shutil
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from pathlib import Path

ROOT = Path(__file__).parents[2]
LARGE = ROOT.parent / "shared" / "data" / "gpt_500k.pickle.xz"
REPEATS = 5
PARTS = 5

TIMES = """
import gc, json, pickle, statistics, sys, time
from ipygpumem.snapshot import Snapshot
def pickle_load(path):
    with open(path, "rb") as file:
        return pickle.load(file)
def pickle_without_gc(path):
    gc.disable()
    try:
        return pickle_load(path)
    finally:
        gc.enable()
def ours(path):
    snapshot = Snapshot.load(path)
    return snapshot, snapshot.peak(), snapshot.by_line()
seconds = {}
for work in (pickle_load, pickle_without_gc, ours):
    for path in sys.argv[2:]:
        seconds[f"{work.__name__} {path}"] = []
for _ in range(int(sys.argv[1])):
    for work in (pickle_load, pickle_without_gc, ours):
        for path in sys.argv[2:]:
            gc.collect()
            started = time.perf_counter()
            result = work(path)
            seconds[f"{work.__name__} {path}"].append(time.perf_counter() - started)
            del result
print(json.dumps({name: statistics.median(times) for name, times in seconds.items()}))
"""
MEMORY = """
import sys
if sys.argv[1] == "plain":
    import pickle
    with open(sys.argv[2], "rb") as file:
        result = pickle.load(file)
else:
    from ipygpumem.snapshot import Snapshot
    snapshot = Snapshot.load(sys.argv[2])
    result = snapshot.peak(), snapshot.by_line()
with open("/proc/self/status") as file:
    print(next(line.split()[1] for line in file if line.startswith("VmHWM")))
"""
SMALL = """
import json, sys, time
from ipygpumem.snapshot import Snapshot
snapshot = Snapshot.load(sys.argv[1])
started = time.perf_counter()
size = len(snapshot.encode())
encoded = time.perf_counter() - started
count = len(snapshot.timeline().trace)
snapshot.state_at(0)
times = []
for event in range(0, count, count // 50):
    started = time.perf_counter()
    snapshot.state_at(event)
    times.append(time.perf_counter() - started)
print(json.dumps({"size": size, "encoded": encoded, "state": max(times)}))
"""
REPLAY = """
import json, sys, time, tracemalloc
from ipygpumem.snapshot import Snapshot
MIB = 1 << 20
def resident(field):
    with open("/proc/self/status") as file:
        return int(next(line.split()[1] for line in file if line.startswith(field))) / 1024
def replays(snapshot):
    times = []
    for _ in range(int(sys.argv[3])):
        snapshot.clear_caches()
        clocks = [(time.perf_counter(), time.process_time())]
        for settings in (None, "expandable_segments:True"):
            snapshot.replay(settings)
            clocks.append((time.perf_counter(), time.process_time()))
        times.append([after - before for pair in zip(clocks, clocks[1:]) for before, after in zip(*pair)])
    return {"times": [min(column) for column in zip(*times)], "grade": snapshot.replay().grade}
if sys.argv[2] == "time":
    imported = resident("VmRSS")
    snapshot = Snapshot.load(sys.argv[1])
    loaded = resident("VmRSS") - imported
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets VmHWM
    result = replays(snapshot)
    peak = resident("VmHWM") - imported
else:
    tracemalloc.start()  # includes the arrays of NumPy
    snapshot = Snapshot.load(sys.argv[1])
    loaded = tracemalloc.get_traced_memory()[0] / MIB
    tracemalloc.reset_peak()
    result = replays(snapshot)
    peak = tracemalloc.get_traced_memory()[1] / MIB
print(json.dumps({**result, "loaded": loaded, "peak": peak}))
"""


def run_python(code, *arguments):
    completed = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    return json.loads(completed.stdout)


def wall_time(*arguments):
    """Return the median run time of a process, in seconds. Its output is discarded."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        subprocess.run([sys.executable, *map(str, arguments)], stdout=subprocess.DEVNULL, check=True, cwd=ROOT)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def row(measure, value, target=""):
    return {"measure": measure, "value": value, "target": target}


def run():
    if not LARGE.is_file():
        return [row("skipped", "../shared/data/gpt_500k.pickle.xz does not exist")]
    with tempfile.TemporaryDirectory() as folder:
        complete, partial = Path(folder, "whole.pickle"), Path(folder, "part.pickle")
        with lzma.open(LARGE) as packed, complete.open("wb") as file:
            shutil.copyfileobj(packed, file)
        raw = pickle.loads(complete.read_bytes())
        events = len(raw["device_traces"][0])
        trace = raw["device_traces"][0]
        raw["device_traces"][0] = trace[: events // PARTS]
        partial.write_bytes(pickle.dumps(raw, 4))
        rows = measure(complete, partial, events)
        # the recording begins and ends between steps, so that it can be repeated
        duration = trace[-1]["time_us"] - trace[0]["time_us"] + 1
        repeated = [{**entry, "time_us": entry["time_us"] + n * duration} for n in range(PARTS) for entry in trace]
        raw["device_traces"][0] = repeated
        complete.write_bytes(pickle.dumps(raw, 4))
        return rows + replay_rows(complete, f"replay of {len(repeated):,} events", "<= 3 s")


def replay_rows(path, name, target):
    replay, traced = (run_python(REPLAY, path, *kind) for kind in (("time", REPEATS), ("memory", 1)))
    recorded, cpu, other, other_cpu = replay["times"]
    seconds = f"{recorded:.2f} s (CPU {cpu:.2f} s), other settings {other:.2f} s (CPU {other_cpu:.2f} s)"
    rows = [row(f"{name} after loading ({replay['grade']})", seconds, target)]
    for what, memory in (("allocated memory", traced), ("resident memory", replay)):
        peak, loaded = memory["peak"], memory["loaded"]
        value = f"{peak / loaded:.2f} x that of the loaded snapshot ({peak:.0f} and {loaded:.0f} MiB)"
        rows.append(row(f"{name}, peak of {what}", value, "<= 2 x"))
    return rows


def measure(complete, partial, events):
    times = run_python(TIMES, REPEATS, complete, partial)
    unpickle_time, without_gc, ours = (
        times[f"{name} {complete}"] for name in ("pickle_load", "pickle_without_gc", "ours")
    )
    growth = ours / times[f"ours {partial}"]
    plain_growth = without_gc / times[f"pickle_without_gc {partial}"]
    pickle_memory, ours_memory = (run_python(MEMORY, kind, complete) / 1024 for kind in ("plain", "ours"))
    small = run_python(SMALL, complete)
    rows = [
        row("file", f"{events:,} events, {complete.stat().st_size / 1e6:.0f} MB"),
        row("pickle.load, collector on / off", f"{unpickle_time:.2f} s / {without_gc:.2f} s"),
        row("load + peak + by_line", f"{ours:.2f} s = {ours / unpickle_time:.2f} x pickle.load", "<= 0.8 x"),
        row(
            f"growth from 1/{PARTS} of the events",
            f"{growth:.2f} x = {growth / plain_growth:.2f} x that of pickle.load, collector off ({plain_growth:.2f} x)",
            "<= 1.1 x",
        ),
        row(
            "peak memory of the process, without subprocesses",
            f"{ours_memory:.0f} MiB = {ours_memory / pickle_memory:.2f} x pickle.load ({pickle_memory:.0f} MiB)",
            "<= 1.0 x",
        ),
        row("columns encoded", f"{small['size'] / 1e6:.2f} MB in {small['encoded']:.2f} s", "<= 1 MB"),
        row("state_at, the slowest of 50", f"{small['state'] * 1000:.1f} ms", "<= 50 ms"),
    ]
    rows += replay_rows(complete, f"replay of {events:,} events", "<= 0.6 s")
    summary = wall_time("-m", "ipygpumem", "summary", complete)
    rows.append(row("ipygpumem summary, whole process", f"{summary:.2f} s"))
    if importlib.util.find_spec("torch") is None:
        rows.append(row("_memory_viz trace", "torch is not installed"))
    else:
        torch_time = wall_time("-m", "torch.cuda._memory_viz", "trace", complete)
        rows.append(
            row(
                "_memory_viz trace, whole process",
                f"{torch_time:.2f} s = {torch_time / summary:.1f} x ours",
                ">= 4 x",
            )
        )
    return rows
