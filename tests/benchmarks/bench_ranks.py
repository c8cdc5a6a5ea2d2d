"""Time and memory of `read_ranks` for up to 256 ranks with 100,000 events each."""

from __future__ import annotations

import lzma
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MIB = 1 << 20
RANKS = (64, 256)
_EVENTS = 100_000
_CODE = """
import resource, sys, time
from ipygpumem.features.ranks.collect import read_ranks
start = time.perf_counter()
ranks = read_ranks(sys.argv[1], workers=2)
seconds = time.perf_counter() - start
own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
child = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
events = sum(rank.highest.events for rank in ranks.members)
print(seconds, own, child, len(ranks.members), events, ranks.difference.outlier)
"""


def write_recording(folder):
    """Write a recording of 100,000 events that repeats a real one, so that every event has frames."""
    data = Path(__file__).parents[1] / "data" / "gpt_small.pickle.xz"
    snapshot = pickle.loads(lzma.decompress(data.read_bytes()))
    traces = snapshot["device_traces"]
    device = max(range(len(traces)), key=lambda index: len(traces[index]))
    trace = traces[device]
    step = trace[-1]["time_us"] - trace[0]["time_us"] + 1
    times = -(-_EVENTS // len(trace))
    traces[device] = [
        {**event, "time_us": event["time_us"] - (times - 1 - turn) * step} for turn in range(times) for event in trace
    ][-_EVENTS:]
    path = folder / "one.pickle"
    path.write_bytes(pickle.dumps(snapshot, protocol=4))
    return path


def run():
    """Measure each number of ranks, compared with unpickling one file in the same run."""
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = write_recording(folder)
        start = time.perf_counter()
        with source.open("rb") as file:
            pickle.load(file)
        load_seconds = time.perf_counter() - start
        for count in RANKS:
            run_folder = folder / f"run{count}"
            run_folder.mkdir()
            for rank in range(count):
                os.link(source, run_folder / f"rank_{rank:05}.pickle")
            completed = subprocess.run(
                [sys.executable, "-c", _CODE, str(run_folder)], capture_output=True, text=True, check=True, timeout=600
            )
            seconds, own, child, members, events, _ = completed.stdout.split()
            assert int(members) == count and int(events) == count * _EVENTS
            ratio = float(seconds) / count / load_seconds
            value = (
                f"{float(seconds):.1f} s with 2 workers = {ratio:.2f} x pickle.load of one file after the other; "
                f"memory {int(own) / 1024:.0f} MiB in this process, {int(child) / 1024:.0f} MiB per worker"
            )
            measure = f"{count} ranks of {_EVENTS:,} events ({source.stat().st_size / MIB:.1f} MiB each)"
            target = "60 s on two cores, constant memory" if count == max(RANKS) else ""
            rows.append({"measure": measure, "value": value, "target": target})
            shutil.rmtree(run_folder)
    return rows
